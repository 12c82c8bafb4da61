import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy

from steelyard.analyse import distributions, verdict
from steelyard.analyse.verdict import Policy

POLICY = Policy()


def blocks(seed, count, noise=0.01):
    """Draw logarithms of new over base."""
    draw = random.Random(seed)
    return [draw.gauss(0, noise) for _ in range(count)]


@given(st.floats(-50, 50), st.integers(1, 60))
def test_student_s_distribution_is_scipy_s(t, freedom):
    """Its function; near 0 SciPy's own is off by 5e-12, and the series' first term is exact."""
    near = 0 < abs(t) < 1e-4
    expected = 0.5 + t * scipy.t.pdf(0, freedom) if near else scipy.t.cdf(t, freedom)
    assert distributions.cumulative(t, freedom) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("freedom", [1, 2, 3, 11, 40])
@pytest.mark.parametrize("probability", [0.05, 0.9, 0.975])
def test_quantiles_are_scipy_s(probability, freedom):
    """To the sixth figure."""
    expected = scipy.t.ppf(probability, freedom)
    assert distributions.quantile(probability, freedom) == pytest.approx(
        expected, rel=1e-6
    )


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
    lean = Policy(tolerance=tolerance).screening_threshold(error)
    assert POLICY.margin <= lean <= max(POLICY.margin, verdict.ERRORS * error)
    assert lean <= max(POLICY.margin, tolerance / 5)
    assert POLICY.screening_threshold(error) == pytest.approx(POLICY.margin)


@pytest.mark.parametrize("count", [2, 5, 30])
def test_the_mean_is_student_s(count):
    """Its interval and its p-value are SciPy's."""
    drawn = blocks(count, count)
    found = verdict.mean(drawn)
    low, high = scipy.ttest_1samp(drawn, 0).confidence_interval(0.95)
    assert found.value - found.half() == pytest.approx(low)
    assert found.value + found.half() == pytest.approx(high)
    expected = scipy.ttest_1samp(drawn, 0.01, alternative="greater").pvalue
    assert found.exceeds(0.01) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("count", [6, 12, 30])
def test_the_trimmed_mean_is_yuen_s(count):
    """Against a side without any spread, of which SciPy's test has two."""
    drawn = [*blocks(count, count - 1), 5.0]
    found = verdict.trimmed(drawn)
    expected = scipy.ttest_ind(
        drawn, [0.0] * 100, trim=verdict.TRIMMED, equal_var=False
    )
    assert found.value == pytest.approx(scipy.trim_mean(drawn, verdict.TRIMMED))
    assert found.value / found.error == pytest.approx(expected.statistic)


def test_blocks_differ_by_what_their_clock_cannot_tell_at_least():
    """However equal they read: a p-value of 0 is none."""
    assert verdict.mean([0.03] * 10).exceeds(0.01) == 0
    assert verdict.mean([0.03] * 10, 0.02).exceeds(0.01) > 0.001
    assert verdict.trimmed([0.03] * 10, 0.02).exceeds(0.01) > 0.001


def test_the_blocks_that_a_test_takes_are_those_that_it_asks_for():
    """At least one, and no more than a case is given up after."""
    policy = Policy()
    for spread in (0.001, 0.02, 0.05):
        more = verdict.needed(spread, policy, 3)
        assert verdict.planned(spread, policy, 3 + more) <= policy.tolerance
    assert verdict.needed(1.0, policy, 3) == policy.most - 3
    assert verdict.needed(1.0, policy, policy.most) == 1


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 1), max_size=30))
def test_false_discoveries_are_held_down_as_scipy_does(values):
    """The same cases as those whose adjusted p-value is at most the rate."""
    found = verdict.benjamini_hochberg(values, len(values), 0.05)
    if values:
        adjusted = scipy.false_discovery_control(list(values.values()))
        expected = zip(values, adjusted, strict=True)
        assert found == {case for case, p in expected if p <= 0.05}
    else:
        assert found == set()


def test_however_few_the_cases_a_p_value_must_be_small():
    """One alone would be a discovery at the rate itself."""
    assert verdict.benjamini_hochberg({"a": 0.004}, 1, 0.009) == {"a"}
    assert verdict.benjamini_hochberg({"a": 0.004}, 1, 0.009, 0.001) == set()
