import math
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import nulls
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.analyse.stats import Estimate
from steelyard.analyse.verdict import CHANGED, Judgement, Verdict
from steelyard.errors import FAILED, FINE, REGRESSION, UNRESOLVED
from steelyard.gate import decide
from steelyard.gate.decide import POLICY, Evidence
from steelyard.gate.outcome import Finding, Outcome

blocks = st.lists(st.floats(-0.5, 0.5), max_size=40).map(tuple)


def gated(changes, noise, seed, policy=POLICY, means=None):
    """Play a whole gate over made-up cases of a noise, each with its change."""
    draw = random.Random(seed)
    seen = {case: Evidence() for case in changes}
    while wanted := decide.undecided(seen, policy):
        for case in sorted(wanted):
            block = math.log1p(changes[case]) + draw.gauss(0, noise)
            mean = means(draw) if means else None
            seen[case] = seen[case].add(block, mean)
    judged = decide.judge(seen, {}, policy)
    return seen, {case: one for case, (one, _) in judged.items()}


def verdicts(*asked, **more):
    """Return what such a gate says, counted."""
    return Counter(one.verdict for one in gated(*asked, **more)[1].values())


def cases(count, change=0.0):
    """Return so many cases of one change."""
    return {str(n): change for n in range(count)}


def count(seen):
    """Return the blocks of a case on average."""
    return sum(len(one.blocks) for one in seen.values()) / len(seen)


@pytest.mark.parametrize("noise", [0.001, 0.005, 0.01, 0.02])
def test_an_unchanged_suite_is_the_same_within_four_blocks_a_case(noise):
    """The bar on what a gate costs, without a false alarm of two hundred cases.

    The interval that is printed lies within the tolerance: a row says what it rests on.
    """
    seen, judged = gated(cases(200), noise, 1)
    assert Counter(one.verdict for one in judged.values()) == {Verdict.SAME: 200}
    assert count(seen) <= 4
    for one in judged.values():
        assert 1 / 1.05 <= one.ratio.low < one.ratio.high <= 1.05
        assert one.ratio.low <= 1.01
        assert one.ratio.high >= 1 / 1.01


@pytest.mark.parametrize(
    ("number", "change", "noise", "said"),
    [
        (50, 0.015, 0.001, Verdict.SLOWER),  # was the same in 4 of 4: [+1.28, +1.77] %
        (100, 0.03, 0.005, Verdict.SLOWER),
        (100, -0.03, 0.005, Verdict.FASTER),
        (100, 0.05, 0.01, Verdict.SLOWER),
        (100, -0.05, 0.01, Verdict.FASTER),
        (20, 0.6, 0.1, Verdict.SLOWER),  # no reason to give a very noisy case up
    ],
)
def test_every_change_that_the_noise_allows_is_found(number, change, noise, said):
    """Of so many cases each, just beyond the margin too."""
    assert verdicts(cases(number, change), noise, 2) == {said: number}


def test_a_noisy_case_with_a_tolerance_is_gated_as_well_as_a_quiet_one():
    """With no alarm more, in hardly more blocks; a change beyond it is found."""
    loose = replace(POLICY, tolerances={str(n): 0.15 for n in range(200)})
    seen, judged = gated(cases(200), 0.05, 1, loose)
    assert Counter(one.verdict for one in judged.values()) == {Verdict.SAME: 200}
    assert count(seen) <= 4.5
    assert verdicts(cases(100, 0.2), 0.03, 2, loose) == {Verdict.SLOWER: 100}


def test_what_stops_is_what_counts():
    """With ninety suspects a case stopped at a p-value that was refused at the end."""
    changes = cases(200) | cases(5, 0.05)
    seen, judged = gated(changes, 0.03, 5)
    open_ends = [c for c, one in judged.items() if one.verdict is Verdict.UNRESOLVED]
    assert all(len(seen[case].blocks) == POLICY.most for case in open_ends)


def test_outliers_to_one_side_hide_no_change():
    """Half of true +5 % were not gateable, and passed."""
    draw, found = random.Random(6), {}
    for case in map(str, range(60)):
        spoilt = [0.01 * draw.gauss(0, 1) for _ in range(30)]
        spoilt = [b + draw.expovariate(5) * (draw.random() < 0.1) for b in spoilt]
        seen = {case: Evidence()}
        while decide.undecided(seen, POLICY):
            seen[case] = seen[case].add(
                spoilt[len(seen[case].blocks)] + math.log1p(0.05)
            )
        found |= decide.judge(seen, {}, POLICY)
    said = Counter(one.verdict for one, _ in found.values())
    assert said[Verdict.SLOWER] >= 0.85 * 60


def test_a_case_too_noisy_for_its_tolerance_is_given_up_early_and_says_so():
    """Six blocks tell that; three where a self-test has told it before."""
    draw = random.Random(0)
    values = [draw.gauss(0, 0.3) for _ in range(30)]
    for noisy, least in ((False, decide.HOPELESS), (True, decide.KNOWN)):
        seen = {"c": Evidence(noisy=noisy)}
        for value in values:
            if not decide.undecided(seen, POLICY):
                break
            seen["c"] = seen["c"].add(value)
        assert len(seen["c"].blocks) == least
        assert decide.judge(seen, {}, POLICY)["c"][0].verdict is Verdict.NOT_GATEABLE


@given(blocks, blocks)
def test_every_case_is_done_at_last(few, means):
    """After the most blocks nothing is measured again."""
    wanted = decide.undecided({"c": Evidence(few, means)}, POLICY)
    if len(few) >= POLICY.most:
        assert not wanted
    if len(few) < 2:
        assert wanted


@given(blocks.filter(bool), blocks)
def test_what_was_cut_short_is_unresolved(few, means):
    """The budget may end a gate at any moment."""
    seen = {"c": Evidence(few, means)}
    ((one, _),) = [decide.judge(seen, {}, POLICY)["c"]]
    if decide.undecided(seen, POLICY):
        assert one.verdict in {Verdict.UNRESOLVED, *CHANGED}
        assert one.verdict is not Verdict.UNRESOLVED or one.more > 0
    if len(few) < decide.EARLIEST:
        assert one.verdict not in CHANGED


@pytest.mark.parametrize(
    "few", [(0.031, 0.024, 0.029, 0.03, 0.0304), (0.03, 0.03), (0.0,)]
)
def test_a_budget_never_ends_in_an_alarm_on_few_blocks(few):
    """Two that are equal by accident had a p-value of 0; one tells nothing of its noise."""
    judged = decide.judge({"c": Evidence(few)}, {}, POLICY)["c"][0]
    assert judged.verdict is Verdict.UNRESOLVED


def test_equal_blocks_of_a_coarse_clock_are_no_change():
    """They differ by what it cannot tell at least."""
    few = (0.011,) * decide.EARLIEST
    said = [
        decide.judge({"c": Evidence(few, grain=grain)}, {}, POLICY)["c"][0].verdict
        for grain in (0.0, 0.02)
    ]
    assert said == [Verdict.SLOWER, Verdict.SAME]


@pytest.mark.parametrize("block", [math.nan, math.inf, -math.inf])
def test_a_block_that_is_no_number_is_refused(block):
    """It would compare with nothing, and pass."""
    with pytest.raises(ValueError, match="no number"):
        Evidence().add(block)


def test_a_slower_clock_is_not_slower_code():
    """Time and cycles must agree before code is blamed."""
    draw = random.Random(5)
    slow = tuple(0.1 + draw.gauss(0, 0.002) for _ in range(12))
    times, still = {"c": Evidence(slow)}, {"c": Evidence(tuple(b - 0.1 for b in slow))}
    judged, note = decide.judge(times, still, POLICY)["c"]
    assert (judged.verdict, note) == (Verdict.UNRESOLVED, decide.CLOCK)
    judged, note = decide.judge(times, times, POLICY)["c"]
    assert (judged.verdict, note) == (Verdict.SLOWER, "")


@pytest.mark.parametrize(("mean", "regressed"), [(1.55, True), (0.6, False)])
def test_a_mean_that_moves_alone_is_a_spread(mean, regressed):
    """The quickest windows are as quick as before; a note says by how much."""
    moved = verdicts(
        cases(20), 0.005, 8, means=lambda draw: math.log(mean) + draw.gauss(0, 0.05)
    )
    assert moved == {Verdict.SPREAD: 20}
    few = (0.001, -0.001) * 5
    one, note = decide.judge(
        {"c": Evidence(few, tuple(math.log(mean) + b for b in few))}, {}, POLICY
    )["c"]
    assert one.ratio.value == pytest.approx(mean)
    assert Finding("c", "m", one.verdict, one).regressed is regressed
    assert "quickest fifth" in note


def test_a_slower_case_waits_for_no_mean():
    """Whatever that comes to: a case of +30 % took all thirty blocks on a busy machine."""
    seen, judged = gated(
        cases(20, 0.3), 0.005, 8, means=lambda draw: 0.26 + draw.gauss(0, 0.4)
    )
    assert {one.verdict for one in judged.values()} == {Verdict.SLOWER}
    assert count(seen) == decide.EARLIEST


def test_neighbours_in_the_mean_are_no_change():
    """They hit either side, and cost few blocks."""

    def hit(draw):
        return draw.choice([-1, 0, 0, 1]) * draw.expovariate(5)

    seen, judged = gated(cases(100), 0.005, 9, means=hit)
    assert Counter(one.verdict for one in judged.values()) == {Verdict.SAME: 100}
    assert count(seen) <= 6


@pytest.mark.parametrize("row", nulls.rows(), ids=lambda row: row.what)
def test_a_small_simulation_meets_the_bars(row):
    """Each row of the whole one, from fixed seeds: it fails the same everywhere."""
    with ThreadPoolExecutor(1) as pool:
        made = nulls.judged(row, 4 if row.change else 2, pool)
    assert [bar for bar in made["bars"] if not bar["met"]] == []


def found(verdict, ratio=1.1, **more):
    """Return a finding with evidence."""
    made = Judgement(Verdict.SLOWER, Estimate(ratio, ratio, ratio), 12, 0.02)
    return Finding("c", "kernel/warm", verdict, made, **more)


ENDINGS = [
    ((), FINE),
    ((found(Verdict.SAME),), FINE),
    ((found(Verdict.FASTER),), FINE),
    ((found(Verdict.IDENTICAL_CODE),), FINE),
    ((found(Verdict.SLOWER),), REGRESSION),
    ((found(Verdict.SLOWER, math.nan),), REGRESSION),
    ((Finding("c", "m", Verdict.SLOWER),), REGRESSION),
    ((found(Verdict.SLOWER, tolerance=0.05),), REGRESSION),
    ((found(Verdict.SLOWER, tolerance=0.15),), FINE),
    ((found(Verdict.SLOWER, math.nan, tolerance=0.15),), REGRESSION),
    ((found(Verdict.SLOWER, math.inf, tolerance=0.15),), REGRESSION),
    ((found(Verdict.SLOWER, accepted=True),), FINE),
    ((found(Verdict.SPREAD),), REGRESSION),
    ((found(Verdict.SPREAD, 0.8),), FINE),
    ((found(Verdict.SPREAD, tolerance=0.15),), FINE),
    ((found(Verdict.UNRESOLVED), found(Verdict.SAME)), UNRESOLVED),
    ((found(Verdict.UNRESOLVED), found(Verdict.SLOWER)), REGRESSION),
    ((found(Verdict.NOT_GATEABLE), found(Verdict.SAME)), FINE),
    ((found(Verdict.NOT_GATEABLE),), UNRESOLVED),
    ((found(None), found(Verdict.SLOWER)), FAILED),
    ((found(None, accepted=True),), FINE),
    ((found(None, new=True),), FINE),
]


@pytest.mark.parametrize(("findings", "code"), ENDINGS)
def test_the_exit_code_follows_the_worst_finding(findings, code):
    """What is not known to be fine is not fine."""
    assert Outcome("main", "head", findings).exit_code == code
