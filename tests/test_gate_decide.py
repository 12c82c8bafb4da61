import math
import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import FAILED, FINE, REGRESSION, UNRESOLVED, SteelyardError
from steelyard.gate import decide
from steelyard.gate.decide import POLICY, Evidence, Stage
from steelyard.gate.outcome import Finding, Outcome, StaticChange
from steelyard.stats import Estimate
from steelyard.verdict import Judgement, Verdict

blocks = st.lists(st.floats(-0.5, 0.5), max_size=40).map(tuple)


def gated(changes, noise, seed, policy=POLICY):
    """Play a whole gate over made-up cases of a noise, each with its change."""
    draw, found = random.Random(seed), {}
    for case, change in changes.items():
        seen = Evidence()
        while (stage := decide.stage(seen, policy.of(case))) is not Stage.DONE:
            seen = seen.add(math.log1p(change) + draw.gauss(0, noise), stage)
        found[case] = seen
    judged = decide.judge(found, {}, policy)
    return found, {case: one.verdict for case, (one, _) in judged.items()}


def count(found):
    """Return the blocks of a case on average."""
    return sum(len(e.screened) + len(e.confirmed) for e in found.values()) / len(found)


@pytest.mark.parametrize("noise", [0.001, 0.005, 0.01, 0.02])
def test_an_unchanged_suite_is_the_same_within_four_blocks_a_case(noise):
    """The bar on what a gate costs, without a false alarm of two hundred cases."""
    found, verdicts = gated({str(n): 0.0 for n in range(200)}, noise, 1)
    assert Counter(verdicts.values()) == {Verdict.SAME: 200}
    assert count(found) <= 4


def test_a_noisy_case_with_a_tolerance_is_gated_as_well_as_a_quiet_one():
    """With no alarm more, in hardly more blocks; a change beyond it is found."""
    loose = replace(POLICY, tolerances={str(n): 0.15 for n in range(200)})
    noisy, verdicts = gated({str(n): 0.0 for n in range(200)}, 0.05, 1, loose)
    assert Counter(verdicts.values()) == {Verdict.SAME: 200}
    assert count(noisy) <= 4.5
    verdicts = gated({str(n): 0.2 for n in range(100)}, 0.03, 2, loose)[1]
    assert set(verdicts.values()) == {Verdict.SLOWER}


@pytest.mark.parametrize(("change", "noise"), [(0.03, 0.005), (0.05, 0.01)])
def test_planted_changes_are_found_both_ways(change, noise):
    """Of cases whose noise allows it, each of a hundred."""
    slower = gated({str(n): change for n in range(100)}, noise, 2)[1]
    assert set(slower.values()) == {Verdict.SLOWER}
    faster = gated({str(n): -change for n in range(100)}, noise, 3)[1]
    assert set(faster.values()) == {Verdict.FASTER}


def test_a_case_too_noisy_for_its_tolerance_is_given_up_early_and_says_so():
    """Six blocks tell that; three where a self-test has told it before."""
    draw = random.Random(0)
    values = [draw.gauss(0, 0.3) for _ in range(30)]
    for noisy, least in ((False, decide.HOPELESS), (True, POLICY.screen)):
        seen = Evidence(noisy=noisy)
        for value in values:
            if decide.stage(seen, POLICY) is not Stage.SCREEN:
                break
            seen = seen.add(value, Stage.SCREEN)
        assert len(seen.screened) >= least
    one = Evidence(tuple(values[:6]))
    if decide.stage(one, POLICY) is Stage.DONE:
        assert decide.judge({"c": one}, {}, POLICY)["c"][0].verdict is (
            Verdict.NOT_GATEABLE
        )


@given(blocks, blocks)
def test_every_case_is_done_at_last(screened, confirmed):
    """After the most blocks of either kind nothing is measured again."""
    seen = Evidence(screened, confirmed)
    stage = decide.stage(seen, POLICY)
    if len(screened) >= POLICY.most and len(confirmed) >= POLICY.most:
        assert stage is Stage.DONE
    if len(screened) < 2:
        assert stage is Stage.SCREEN


@given(blocks.filter(bool), blocks)
def test_what_was_cut_short_is_never_the_same(screened, confirmed):
    """The budget may end a gate at any moment; an open case is unresolved."""
    seen = Evidence(screened, confirmed)
    ((verdict, _),) = [decide.judge({"c": seen}, {}, POLICY)["c"]]
    if decide.stage(seen, POLICY) is not Stage.DONE:
        assert verdict.verdict in (
            Verdict.UNRESOLVED,
            Verdict.SLOWER,
            Verdict.FASTER,
            Verdict.NOT_GATEABLE,
        )
        assert verdict.verdict is not Verdict.UNRESOLVED or verdict.more > 0


def test_one_block_says_nothing():
    """Of its noise it tells nothing at all: it is no reason to give a case up."""
    one = decide.judge({"c": Evidence((0.0,))}, {}, POLICY)["c"][0]
    assert one.verdict is Verdict.UNRESOLVED


@pytest.mark.parametrize("block", [math.nan, math.inf, -math.inf])
def test_a_block_that_is_no_number_is_refused(block):
    """It would compare with nothing, and pass."""
    with pytest.raises(ValueError, match="no number"):
        Evidence().add(block, Stage.SCREEN)


def test_a_slower_clock_is_not_slower_code():
    """Time and cycles must agree before code is blamed."""
    draw = random.Random(5)
    screened = tuple(0.1 + draw.gauss(0, 0.002) for _ in range(3))
    confirmed = tuple(0.1 + draw.gauss(0, 0.002) for _ in range(12))
    times = {"c": Evidence(screened, confirmed)}
    still = {"c": Evidence(*(tuple(b - 0.1 for b in s) for s in (screened, confirmed)))}
    judged, note = decide.judge(times, still, POLICY)["c"]
    assert (judged.verdict, note) == (Verdict.UNRESOLVED, decide.CLOCK)
    judged, note = decide.judge(times, times, POLICY)["c"]
    assert (judged.verdict, note) == (Verdict.SLOWER, "")


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
    ((found(Verdict.SLOWER, accepted=True),), FINE),
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


def test_forbidden_code_fails_by_itself_and_a_problem_before_everything():
    """Suspects do not fail; nothing comparable is usage."""
    plain = StaticChange("c", "cpu", ("3 more registers",))
    assert Outcome("main", "head", static=(plain,)).exit_code == FINE
    forbidden = StaticChange("c", "cpu", ("16 new bytes of spills",), "never here")
    assert Outcome("main", "head", static=(forbidden,)).exit_code == REGRESSION
    stopped = Outcome("main", "head", problem=SteelyardError("another machine."))
    assert stopped.exit_code == SteelyardError.exit_code
