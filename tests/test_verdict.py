import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy

from steelyard import verdict
from steelyard.verdict import Policy, Verdict, judge, suspect

POLICY = Policy()


def blocks(seed, count, change=0.0, noise=0.005):
    """Draw logarithms of new over base."""
    draw = random.Random(seed)
    return [draw.gauss(math.log1p(change), noise) for _ in range(count)]


@given(st.floats(-50, 50), st.integers(1, 60))
def test_student_s_distribution_is_scipy_s(t, freedom):
    """Its function; near 0 SciPy's own is flat, and the series' first term is exact."""
    if 0 < abs(t) < 1e-6:
        slope = scipy.t.pdf(0, freedom)
        assert verdict.cumulative(t, freedom) == pytest.approx(0.5 + t * slope)
        return
    expected = scipy.t.cdf(t, freedom)
    assert verdict.cumulative(t, freedom) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("freedom", [1, 2, 3, 11, 40])
@pytest.mark.parametrize("probability", [0.05, 0.9, 0.975])
def test_quantiles_are_scipy_s(probability, freedom):
    """To the sixth figure."""
    expected = scipy.t.ppf(probability, freedom)
    assert verdict.quantile(probability, freedom) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (0.05, Verdict.SLOWER),
        (-0.05, Verdict.FASTER),
        (0.0, Verdict.SAME),
        (0.005, Verdict.SAME),
    ],
)
def test_confirmed_blocks_decide(change, expected):
    """Whatever was screened; a change below the margin is none."""
    screened, confirmed = {"a": blocks(0, 3, 0.2)}, {"a": blocks(1, 12, change)}
    assert judge(screened, confirmed, POLICY)["a"].verdict is expected


def test_screened_blocks_alone_never_say_slower():
    """What looks so has to be confirmed by fresh blocks."""
    found = judge({"a": blocks(0, 3, 0.5)}, {}, POLICY)["a"]
    assert found.verdict not in {Verdict.SLOWER, Verdict.FASTER}


def test_noise_is_unresolved_or_not_gateable_and_never_the_same():
    """With the blocks that would decide it, where any number would."""
    some = judge({"a": blocks(3, 3, noise=0.03)}, {}, POLICY)["a"]
    assert some.verdict is Verdict.UNRESOLVED
    assert 0 < some.more <= POLICY.most
    wild = judge({"a": blocks(4, 12, noise=0.3)}, {}, POLICY)["a"]
    assert wild.verdict is Verdict.NOT_GATEABLE
    assert wild.detectable > POLICY.tolerance


def test_a_case_that_may_move_more_is_judged_by_its_own_policy():
    """By one alone: its neighbours with the very same blocks are judged as before."""
    loose = Policy(tolerances={"b": 0.1})
    some, little = 6 * [0.1, -0.1], blocks(1, 30, 0.015, 0.001)
    for each, (strict, wide) in (
        (some, (Verdict.NOT_GATEABLE, Verdict.SAME)),
        (little, (Verdict.SLOWER, Verdict.SLOWER)),
        (blocks(2, 30, 0.2), (Verdict.SLOWER, Verdict.SLOWER)),
    ):
        both = {"a": each, "b": each}
        found = judge(both, both, loose)
        assert (found["a"].verdict, found["b"].verdict) == (strict, wide)


@given(st.floats(0, 0.15))
def test_a_tolerance_widens_what_is_the_same_and_never_what_is_slower(share):
    """Below the gate's own it makes no finer gate; nobody else's policy changes."""
    policy = Policy(tolerances={"a": share})
    own = policy.of("a")
    assert own.tolerance == max(share, POLICY.tolerance)
    assert own.margin == POLICY.margin
    assert policy.of("b") == policy


@given(st.floats(0, 1), st.floats(0.05, 0.15))
def test_only_noise_that_is_tolerated_hides_a_lean(error, tolerance):
    """A quiet case leans from the margin on, whatever its policy lets pass."""
    lean = Policy(tolerance=tolerance).lean(error)
    assert POLICY.margin <= lean <= max(POLICY.margin, verdict.ERRORS * error)
    assert lean <= max(POLICY.margin, tolerance / 5)
    assert POLICY.lean(error) == pytest.approx(POLICY.margin)


@pytest.mark.parametrize("few", [[0.0], [0.3], [0.0, 0.0], [0.1, 0.1]])
def test_one_block_and_equal_blocks_are_judged(few):
    """Nothing is divided by their noise."""
    found = judge({"a": few}, {}, POLICY)["a"]
    assert found.blocks == len(few)
    assert not math.isnan(found.ratio.value)
    if few == [0.0, 0.0]:
        assert found.verdict is Verdict.SAME


def test_both_directions_are_treated_alike():
    """Of mirrored blocks the verdicts are mirrored."""
    up = {str(n): blocks(n, 12, 0.03, 0.02) for n in range(40)}
    down = {case: [-x for x in each] for case, each in up.items()}
    slower = {c for c, j in judge(up, up, POLICY).items() if j.verdict == "slower"}
    faster = {c for c, j in judge(down, down, POLICY).items() if j.verdict == "faster"}
    assert slower == faster
    assert slower


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 1), max_size=30))
def test_false_discoveries_are_held_down_as_scipy_does(values):
    """The same cases as those whose adjusted p-value is at most the rate."""
    found = verdict.benjamini_hochberg(values, 0.05)
    if values:
        adjusted = scipy.false_discovery_control(list(values.values()))
        for case, value in zip(values, adjusted, strict=True):
            if abs(value - 0.05) > 1e-12:
                assert (case in found) == (value <= 0.05)
    else:
        assert found == set()


def test_of_200_unchanged_cases_with_2_percent_noise_none_is_slower():
    """And of 5 that are 5 % slower nearly all are found (ci/nulls.py has the curve)."""
    draw = random.Random(0)
    planted = {str(n): math.log1p(0.05) for n in range(5)}
    names = list(map(str, range(200)))

    def some(case, count):
        return [draw.gauss(planted.get(case, 0.0), 0.02) for _ in range(count)]

    found = []
    for _ in range(10):
        screened = {case: some(case, POLICY.screen) for case in names}
        suspects = [case for case in names if suspect(screened[case], POLICY)]
        confirmed = {case: some(case, POLICY.confirm) for case in suspects}
        made = judge(screened, confirmed, POLICY)
        slower = {case for case, one in made.items() if one.verdict is Verdict.SLOWER}
        assert slower <= planted.keys()
        found.append(len(slower))
    assert statistics.fmean(found) >= 4.8
