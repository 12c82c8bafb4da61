import math
from dataclasses import replace
from pathlib import Path

import pytest
import trials
from fakes import case_of

from steelyard.analyse.verdict import Verdict
from steelyard.declare.mode import parse
from steelyard.declare.plan import Settings
from steelyard.errors import USAGE, SteelyardError
from steelyard.gate import blocks as blocking
from steelyard.gate import decide, findings
from steelyard.gate.blocks import Blocks, Point
from steelyard.gate.decide import POLICY, Evidence
from steelyard.gate.measure import Measured, measure
from steelyard.gate.outcome import Outcome
from steelyard.gate.sides import Side
from steelyard.measure import interleave

WARM = parse("kernel/warm")
FACTS = {"code_hash": "aa", "threads": 2, "compile_ns": 5}


def copying(b):
    """Declare a case that nobody launches."""
    x = b.input((4,), "float32")
    return b.launch(lambda x: None, x)


@pytest.fixture
def point():
    """Give a case on the CPU, in one mode."""
    return Point(case_of(copying), WARM)


class Fake:
    """Both sides as a function of the side and the turn to ticks, facts or an error."""

    def __init__(self, ticks, facts=None):
        self.ticks = ticks
        self.told = facts or {}
        self.around = {"base": "e", "head": "e"}
        self.inputs, self.libraries = {}, {}
        self.asked, self.renewed, self.settings = [], 0, []

    def __call__(self, sides):
        """Stand for starting both."""
        assert list(sides) == ["base", "head"]
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.asked.append("end")

    def facts(self, side, turn, settings):
        """Tell what the test wants of a side."""
        one = self.told.get(side, {})
        if "error" in one:
            return one
        told = {"facts": one, "hashes": {"inputs": self.inputs.get(side)}}
        told["libraries"] = self.libraries.get(side, [])
        return told | {"environment": self.around[side]}

    def measure(self, side, turn, settings):
        """Make a trial of the ticks of a side."""
        self.asked.append(side)
        self.settings.append(settings)
        made = self.ticks(side, turn)
        if isinstance(made, str):
            return trials.trial(turn.case.id, mode=str(turn.mode), error=made)
        return trials.trial(turn.case.id, made, mode=str(turn.mode))

    def in_turn(self, leader, turns, settings):
        """Measure both, the leader first."""
        order = sorted(turns, key=lambda side: side != leader)
        return {side: self.measure(side, turns[side], settings) for side in order}

    def renew(self):
        """Count."""
        self.renewed += 1


def blocks(fake, kept=None):
    """Return blocks of a fake's."""
    keep = kept.append if kept is not None else lambda _: None
    sides = [Side(name, Path()) for name in ("base", "head")]
    return Blocks(*sides, Settings(), lambda *trial: keep(trial), fake)


def test_a_block_is_the_logarithm_of_head_over_base(point):
    """Of the quickest windows: neighbours only add time."""
    noisy = [1000, 5000, 1000, 9000, 7000, 8000, 2000, 3000, 4000, 6000]
    fake = Fake(lambda side, _: [t * (1 + (side == "head")) for t in noisy])
    ((_, reading),) = blocks(fake).measure(0, [point])
    assert reading.ratio == pytest.approx(math.log(2))


def test_the_sides_lead_in_turn_and_every_trial_is_told_at_once(point):
    """Who is first is a difference of its own; it is on both sides as often."""
    kept, fake = [], Fake(lambda *_: [1000] * 8)
    made = blocks(fake, kept)
    for number in range(4):
        for _ in made.measure(number, [point]):
            assert len(kept) == 2 * number + 2
    leaders = [side for side in fake.asked if side != "end"][::2]
    assert leaders == ["base", "head", "base", "head"]
    assert fake.asked.count("end") == 4  # fresh workers in each block


def test_queues_of_a_gpu_are_visited_twice_by_each_side(point, monkeypatch):
    """A B B A, then B A A B; cycles are told where the clock was read."""
    monkeypatch.setattr(blocking, "_in_queues", lambda _: True)

    class Clocked(Fake):
        def measure(self, side, turn, settings):
            made = super().measure(side, turn, settings)
            mhz = 1000 if side == "base" else 500
            samples = replace(made.samples, mhz=(mhz,) * len(made.samples))
            return replace(made, samples=samples)

    fake = Clocked(lambda side, _: [1000 if side == "base" else 2000] * 40)
    made = blocks(fake)
    ((_, reading),) = made.measure(0, [point])
    assert fake.asked == ["base", "head", "head", "base", "end"]
    assert reading.ratio == pytest.approx(math.log(2))
    assert reading.cycles == pytest.approx(0)
    list(made.measure(1, [point]))
    assert fake.asked[5:9] == ["head", "base", "base", "head"]


FAILURES = [
    ("the work raised KeyError", "the work raised KeyError"),
    ([1000, -5, 1000], "1 of 3 windows took no time, or less"),
    ([0, 0, 0], "3 of 3 windows took no time, or less"),
    ([], "no window was taken"),
]


@pytest.mark.parametrize("side", ["base", "head"])
@pytest.mark.parametrize(("ticks", "sentence"), FAILURES)
def test_what_is_no_time_has_failed_on_its_side(point, side, ticks, sentence):
    """And nothing is said of the other; both workers are replaced."""
    fake = Fake(lambda who, _: ticks if who == side else [1000] * 8)
    ((_, reading),) = blocks(fake).measure(0, [point])
    assert reading.ratio is None
    assert list(reading.failed) == [side]
    assert sentence in reading.failed[side]
    assert fake.renewed == 1


def test_who_waited_for_a_failed_side_is_not_blamed(point):
    """Its trial ends too, with a sentence about the other."""
    told = {"base": f"copying: {interleave.OTHER}", "head": "copying: it crashed"}
    ((_, reading),) = blocks(Fake(lambda who, _: told[who])).measure(0, [point])
    assert reading.failed == {"head": "copying: it crashed"}


def test_identical_code_is_not_measured(point):
    """Nothing is launched for it; other quantities of the same case are measured."""
    fake = Fake(lambda *_: [1000] * 8, {"base": FACTS, "head": dict(FACTS)})
    other = Point(point.case, parse("latency/warm"))
    found = measure(blocks(fake), [point, other], POLICY, identity=True)
    assert found.identical == {point.key}
    assert len(fake.settings) == 2 * len(found.times[other.key].blocks)
    said = findings.of([point, other], found, None, POLICY)
    assert [one.verdict for one in said] == [Verdict.IDENTICAL_CODE, Verdict.SAME]
    assert said[0].codes == ("aa", "aa")


@pytest.mark.parametrize(("swing", "doubted"), [(0.0, False), (0.3, True)])
def test_the_same_quickest_windows_are_doubted_where_the_mean_says_little(
    point, swing, doubted
):
    """Every other call a fifth slower passed on a busy machine, without a word."""
    evidence = Evidence()
    for number in range(18):
        evidence = evidence.add(0.0, swing * (number % 3 - 1))
    (said,) = findings.of(
        [point], Measured({point.key: evidence}), {point.case.id}, POLICY
    )
    assert said.verdict is Verdict.SAME
    assert said.doubts == (("noisy-mean",) * doubted,) * 2


BUILT = {**FACTS, "compiler": "llvm 20", "compiler_hash": "cc"}
NEVER_BUILT = {"compiler_hash": "cc", "build_key": "kk"}


@pytest.mark.parametrize("facts", [BUILT, NEVER_BUILT])
@pytest.mark.parametrize("mode", ["build/cold", "build/warm-disk", "build/first"])
def test_an_identical_build_is_not_measured(point, facts, mode):
    """The same compiler makes the same code of the same, whether it was made or not."""
    fake = Fake(lambda *_: [1000] * 8, {"base": facts, "head": dict(facts)})
    building = Point(point.case, parse(mode))
    found = measure(blocks(fake), [building], POLICY, identity=True)
    assert found.identical == {building.key}
    assert not fake.settings
    (said,) = findings.of([building], found, None, POLICY)
    assert said.verdict is Verdict.IDENTICAL_CODE


@pytest.mark.parametrize(
    ("head", "around", "identical"),
    [
        ({"compiler_hash": "dd"}, "e", {"kernel"}),
        ({"compiler_hash": None}, "e", {"kernel"}),
        ({"compiler": "llvm 21"}, "e", set()),
        ({"code_hash": "bb"}, "e", set()),
        ({}, "another", {"kernel"}),
        ({}, None, {"kernel"}),
        ({"compile_ns": 6}, "e", {"kernel", "build"}),
    ],
)
def test_a_build_by_another_compiler_or_python_is_measured(
    point, head, around, identical
):
    """While a kernel is the same whichever compiler made the same code of it."""
    fake = Fake(lambda *_: [1000] * 8, {"base": BUILT, "head": {**BUILT, **head}})
    fake.around["head"] = around
    points = {q: Point(point.case, parse(q)) for q in ("kernel/warm", "build/cold")}
    found = measure(blocks(fake), list(points.values()), POLICY, identity=True)
    same = {q.partition("/")[0] for q, p in points.items() if p.key in found.identical}
    assert same == identical
    for each in points.values():
        assert (each.key in found.identical) != bool(found.times[each.key].blocks)


def test_builds_of_a_compiler_or_python_that_nobody_knows_are_measured():
    """Two unknowns are not the same."""
    unknown = {name: fact for name, fact in BUILT.items() if name != "compiler_hash"}
    assert not blocking.same_build(unknown, unknown)
    assert not blocking.same_build(BUILT | {"compiler_hash": ""}, BUILT)


@pytest.mark.parametrize(
    ("base", "head"),
    [
        (FACTS, {**FACTS, "code_hash": "bb"}),
        (FACTS, {**FACTS, "threads": 1}),
        (FACTS, {name: FACTS[name] for name in ("code_hash",)}),
        ({"threads": 2}, {"threads": 2}),
        ({"code_hash": None}, {"code_hash": None}),
        ({"code_hash": ""}, {"code_hash": ""}),
    ],
)
def test_other_code_or_launch_and_unknown_code_are_measured(base, head):
    """A kernel whose hash is unknown never qualifies."""
    assert not blocking.same_code(base, head)


@pytest.mark.parametrize(("unbuilt", "failed"), [(True, {"base"}), (False, set())])
def test_a_base_that_was_built_may_have_no_library(point, unbuilt, failed):
    """Its commit had none yet; what was not built may do without one."""
    fake = Fake(lambda *_: [1000] * 8)
    fake.libraries = {"head": ["/checkout/core.so"]}
    base, head = Side("base", Path(), unbuilt=unbuilt), Side("head", Path())
    made = Blocks(base, head, Settings(), lambda *_: None, fake)
    assert made.look(point).failed.keys() == failed


def test_other_inputs_are_another_case(point):
    """Such as a file that holds other data on the base: no time would mean anything."""
    fake = Fake(lambda *_: pytest.fail("it was measured"))
    fake.inputs = {"base": "i", "head": "j"}
    measured = measure(blocks(fake), [point], POLICY, identity=True)
    found = findings.of([point], measured, {point.case.id}, POLICY)
    assert [one.verdict for one in found] == [Verdict.UNRESOLVED]
    outcome = Outcome("main", "head", found)
    assert outcome.exit_code == USAGE


@pytest.mark.parametrize(
    ("side", "known", "verdict", "new"),
    [
        ("head", {"copying"}, None, False),
        ("base", {"copying", "other"}, Verdict.UNRESOLVED, False),
        ("base", {"other"}, None, True),
    ],
)
def test_a_failure_is_never_a_pass_unless_only_head_has_the_case(
    point, side, known, verdict, new
):
    """A failure of base alone leaves nothing to compare with."""
    fake = Fake(
        lambda who, turn: (
            "it fails" if who == side and turn.mode == WARM else [1000] * 8
        )
    )
    points = [point, Point(point.case, parse("latency/warm"))]
    found = measure(blocks(fake), points, POLICY)
    one, other = findings.of(points, found, known, POLICY)
    assert (one.verdict, one.new) == (verdict, new)
    assert "it fails" in one.note
    assert other.verdict is Verdict.SAME


def test_a_base_that_runs_nothing_is_no_baseline(point):
    """Its sentence is the reason."""
    fake = Fake(lambda who, _: "no module foo." if who == "base" else [1000] * 8)
    found = measure(blocks(fake), [point], POLICY)
    with pytest.raises(SteelyardError, match="runs none of 1 cases: no module foo"):
        findings.of([point], found, {"copying"}, POLICY)


def test_the_budget_leaves_what_is_open_unresolved(point):
    """With a verdict for none of it."""
    other = Point(point.case, parse("latency/warm"))
    fake = Fake(lambda *_: [1000] * 8)
    found = measure(blocks(fake), [point, other], POLICY, deadline=0.0)
    said = findings.of([point, other], found, None, POLICY)
    assert found.cut_short
    assert {one.verdict for one in said} == {Verdict.UNRESOLVED}


def test_a_change_takes_blocks_before_it_counts(point):
    """However clear a few of them are."""
    fake = Fake(lambda who, _: [1000 + 100 * (who == "head")] * 8)
    found = measure(blocks(fake), [point], POLICY)
    seen = found.times[point.key]
    assert len(seen.blocks) == decide.EARLIEST
    (one,) = findings.of([point], found, None, POLICY)
    assert one.verdict is Verdict.SLOWER
    assert one.judgement.ratio.value == pytest.approx(1.1)
    assert (one.file, one.line > 0) == (str(Path(__file__)), True)


@pytest.mark.parametrize("slow", [6, 7])
@pytest.mark.parametrize("mode", ["kernel/warm", "latency/warm"])
def test_work_that_is_slower_in_most_windows_is_not_the_same(point, slow, mode):
    """The quickest windows take as long; the mean takes 1.9 times as long and more."""
    quick, long = [1000] * 10, [1000] * (10 - slow) + [2500] * slow
    fake = Fake(lambda who, _: 4 * (long if who == "head" else quick))
    each = Point(point.case, parse(mode))
    (one,) = findings.of([each], measure(blocks(fake), [each], POLICY), None, POLICY)
    assert one.verdict is Verdict.SPREAD
    assert one.regressed
    assert one.judgement.ratio.value == pytest.approx(1 + 0.15 * slow, rel=0.08)
    assert "that of the quickest fifth is" in one.note


def test_windows_of_which_fewer_are_slow_are_a_spread_that_passes(point):
    """It is reported as such, and not as faster code."""
    quick, long = [1000] * 40, 4 * ([1000] * 4 + [2500] * 6)
    fake = Fake(lambda who, _: quick if who == "head" else long)
    (one,) = findings.of([point], measure(blocks(fake), [point], POLICY), None, POLICY)
    assert (one.verdict, one.regressed) == (Verdict.SPREAD, False)


def test_cases_that_only_base_has_are_said():
    """Never a pass: the verdict is none."""
    (one,) = findings.vanished({"a", "b"}, {"b"})
    assert (one.case, one.verdict, one.failed) == ("a", None, True)
    assert one.note.startswith("vanished")
