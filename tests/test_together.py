"""Two builds of a kernel in one process, window by window in turn."""

import gc
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from time import monotonic_ns

import numpy as np
import pytest
from fakes import case_of, die_when_asked

from steelyard.declare import discovery
from steelyard.declare.mode import parse
from steelyard.declare.plan import PlannedTrial, Settings
from steelyard.errors import SteelyardError
from steelyard.gate import pairs
from steelyard.gate.outcome import BASE, HEAD
from steelyard.gate.pairs import Pair
from steelyard.gate.sides import Side
from steelyard.measure import inject, interleave
from steelyard.measure import pair as together
from steelyard.measure.instruments import Instruments
from steelyard.measure.pair import PortableBinary, beside, measure_pair
from steelyard.measure.prepared import PreparedCase
from steelyard.process import wire, worker
from steelyard_device import cpu
from steelyard_kernels.function import kernel

QUICK = Settings(precision=0.5, budget=60.0)
"""Settled within a few windows, whatever the machine does; it has a minute to be."""
WARM, COLD = parse("kernel/warm"), parse("kernel/cold")


class Native:
    """Native work that does what its name says, and remembers its windows."""

    def __init__(self, x, out, name, seen):
        self.x, self.out, self.name, self.seen = x, out, name, seen

    def launch(self, count=1):
        """Double, unless it is to fail, to be wrong, or to be so in a while."""
        for _ in range(count):
            self.out[:] = (3 if self.name == "wrong" else 2) * self.x
        if self.name == "raises":
            raise ValueError(self.name)

    def window(self, count, *, dependent=False):
        """Take one."""
        start = monotonic_ns()
        self.launch(count)
        self.seen.append(self.name)
        return start, monotonic_ns()

    def wait(self):
        """Nothing is under way."""

    ready = wait

    def null(self):
        """Return what does nothing."""
        return cpu.null()

    def facts(self):
        """Tell the name."""
        return {"name": self.name}

    def binary(self):
        """Be what the name says."""
        return self.name.encode()

    def of_binary(self, binary):
        """Return another on the same arrays."""
        if binary == b"unlike":
            raise KeyError("unlike")
        return Native(self.x, self.out, binary.decode(), self.seen)

    def then(self, _other):
        """Stand for both."""
        return self


class Kernel:
    """What binds it."""

    def __init__(self, name):
        self.name, self.seen = name, []

    def bind(self, x, *, out):
        """Bind."""
        return Native(x, out, self.name, self.seen)

    def __call__(self, x, *, out):
        """Run once."""
        self.bind(x, out=out).launch()


def doubling(target, size=64):
    """Return a case of a kernel that doubles."""

    def body(b):
        x = b.input((size,), "float32")
        y = b.output((size,), "float32")
        b.check(lambda x: 2 * x, x)
        return b.launch(target, x, out=y)

    return case_of(body)


def both(name, mode=WARM, lead=0):
    """Measure `l` in turn with a build of a name; return trials, windows, and the case."""
    target = Kernel("l")
    case = doubling(target)
    own = PreparedCase(case, QUICK)
    other = beside(own, replace(PortableBinary.of(case, QUICK), binary=name.encode()))
    turns = [PlannedTrial(place, 3, case, mode) for place in (5, 6)]
    sides = [own, other]
    order = -1 if lead else 1
    trials = measure_pair(sides[::order], turns[::order], Instruments(1 << 20), QUICK)
    return trials[::order], target.seen, own


def test_windows_stand_in_turn_after_each_has_warmed_up():
    """L F F L: what drifts, and what a change of hands costs, meets both."""
    (own, other), seen, _ = both("f")
    assert (own.error, other.error) == (None, None)
    assert re.fullmatch("l+f+(lffl)+lf", "".join(seen))
    assert len(own.samples) == len(other.samples) >= 3
    assert own.samples.launches == other.samples.launches
    (own, _), seen, _ = both("f", lead=1)
    assert own.error is None
    assert re.fullmatch("f+l+(fllf)+fl", "".join(seen))


def test_each_trial_is_of_its_own_work_in_this_process():
    """With its own facts and place; nobody can take one for the other."""
    (own, other), _, _ = both("f", COLD)
    assert [t.facts["name"] for t in (own, other)] == ["l", "f"]
    assert [(t.block, t.position) for t in (own, other)] == [(3, 5), (3, 6)]
    assert own.worker == other.worker == os.getpid()
    assert own.extra["flush_bytes"] == other.extra["flush_bytes"]


@pytest.mark.parametrize("lead", [0, 1])
@pytest.mark.parametrize(
    ("name", "said"), [("wrong", "y is wrong"), ("raises", "ValueError: raises")]
)
def test_the_side_that_fails_is_blamed_and_the_other_does_not_wait(name, said, lead):
    """Results of both are checked, and both end at once."""
    (own, other), _, _ = both(name, lead=lead)
    assert said in other.error
    assert own.error.endswith(interleave.OTHER)


def test_affinity_and_collection_are_afterwards_as_before():
    """Both pin their threads only; nothing is left behind."""
    before = os.sched_getaffinity(0)
    both("f")
    assert os.sched_getaffinity(0) == before
    assert gc.isenabled()


def doubles(times):
    """Return a kernel of ours, right only where it doubles."""

    @kernel
    def double(x):
        return times * x

    return double


@pytest.mark.parametrize(("times", "right"), [(2.0, True), (3.0, False)])
def test_a_build_of_ours_is_checked_on_the_same_buffers(times, right):
    """The binary runs, on the arrays of the case: what it writes is what is checked."""
    case, twin = doubling(doubles(2.0)), doubling(doubles(times))
    own = PreparedCase(case, QUICK)
    other = beside(own, PortableBinary.of(twin, QUICK))
    assert other.buffers is own.buffers
    turns = [PlannedTrial(0, 0, case, WARM), PlannedTrial(1, 0, case, WARM)]
    first, second = measure_pair([own, other], turns, Instruments(), QUICK)
    assert (second.error is None) == (first.error is None) == right
    if not right:
        assert "y is wrong in" in second.error


def test_what_cannot_stand_beside_is_none():
    """Other inputs, another call, a callable that has no binary, another's harness."""
    own = PreparedCase(doubling(doubles(2.0)), QUICK)
    lent = PortableBinary.of(doubling(doubles(2.0)), QUICK)
    assert beside(own, replace(lent, inputs="others")) is None
    assert beside(own, PortableBinary.of(doubling(doubles(2.0), 65), QUICK)) is None
    assert beside(own, replace(lent, binary=b"{}")) is None
    plain = doubling(lambda x, out: np.multiply(x, 2, out=out))
    assert PortableBinary.of(plain, QUICK) is None
    assert beside(PreparedCase(plain, QUICK), lent) is None
    files = Settings(inputs={"x": "x.npy"})
    assert PortableBinary.of(doubling(doubles(2.0)), files) is None


def test_nothing_is_launched_of_what_is_lent():
    """Its process has no data, and needs none."""
    target = Kernel("raises")
    assert PortableBinary.of(doubling(target), QUICK).binary == b"raises"
    assert target.seen == []


def test_what_is_lent_passes_as_json():
    """With the work that was injected behind it."""
    lent = PortableBinary(bytes(range(256)), "hash", 7)
    assert PortableBinary.of_message(json.loads(json.dumps(lent.message()))) == lent


def test_planted_work_stands_behind_each_side_alone(monkeypatch, tmp_path):
    """As each side's own process would have injected it."""
    case = doubling(doubles(2.0))
    file = tmp_path / "injected.json"
    file.write_text(json.dumps({case.id: 4000}))
    monkeypatch.setenv(inject.FILE, str(file))
    own = PreparedCase(case, QUICK)
    lent = replace(PortableBinary.of(case, QUICK), injected=0)
    inject.inject_delay(own)
    other = beside(own, lent)
    assert [w.facts()["injected"] for w in (own.work, other.work)] == [4000, 0]
    turns = [PlannedTrial(0, 0, case, WARM), PlannedTrial(1, 0, case, WARM)]
    trials = measure_pair([own, other], turns, Instruments(), QUICK)
    slower, quicker = (min(trial.samples.per_launch()) for trial in trials)
    assert slower > 2 * quicker


class Worker:
    """Stands for a side's worker; says what it was asked."""

    died_of_another = False

    def __init__(self, asked, lent, trials):
        self.asked, self.lent, self.trials = asked, lent, trials

    def ask(self, _turn, _settings, what):
        """Lend."""
        assert what == wire.BINARY
        self.asked.append("binary")
        return self.lent

    def measure_pair(self, _turn, _settings, *, exported, position, leads):
        """Measure both."""
        self.asked.append(("both", exported, position, leads))
        return self.trials

    def confirmed(self, _turn, _settings, trial):
        """Believe it."""
        return trial

    def measure(self, turn, settings):
        """Measure one side, in turn with another process."""
        self.asked.append(settings.role)
        return turn.position


def in_turn(monkeypatch, mode, lent, trials, times=1):
    """Return what a pair of such workers answers, and what they were asked."""
    asked = []
    worker = Worker(asked, lent, trials)
    monkeypatch.setattr(Pair, "_started", lambda _: {BASE: worker, HEAD: worker})
    case = doubling(Kernel("l"))
    turns = {BASE: PlannedTrial(1, 0, case, mode), HEAD: PlannedTrial(2, 0, case, mode)}
    sides = {name: Side(name, Path()) for name in (BASE, HEAD)}
    with Pair(sides) as pair:
        for _ in range(times):
            answer = pair.in_turn(BASE, turns, QUICK)
    return answer, asked


def test_base_is_asked_for_its_binary_once(monkeypatch):
    """Then head's process does it all, in every mode of the case."""
    answer, asked = in_turn(monkeypatch, WARM, {"lent": {"k": 1}}, ("own", "other"), 2)
    assert answer == {HEAD: "own", BASE: "other"}
    assert asked == ["binary", *[("both", {"k": 1}, 1, True)] * 2]


@pytest.mark.parametrize(
    ("lent", "trials", "before"),
    [
        ({"lent": None}, None, ["binary"]),
        ({"error": "died"}, None, ["binary"]),
        ({"lent": {}}, None, ["binary", ("both", {}, 1, True)]),
    ],
)
def test_what_cannot_be_in_one_process_is_in_two(monkeypatch, lent, trials, before):
    """Nothing to lend, a worker that died of the question, a case called otherwise."""
    answer, asked = in_turn(monkeypatch, WARM, lent, trials, 2)
    assert answer == {BASE: 1, HEAD: 2}
    assert asked[: len(before)] == before
    assert sorted(asked[len(before) :]) == sorted(
        [interleave.LEAD, interleave.FOLLOW] * 2
    )


def test_calls_and_builds_are_in_a_process_of_each_side(monkeypatch):
    """There Python itself differs between the sides."""
    _, asked = in_turn(monkeypatch, parse("latency/warm"), {"lent": {}}, ())
    assert sorted(asked) == sorted([interleave.LEAD, interleave.FOLLOW])


def test_workers_of_both_sides_answer_as_the_fakes_do(monkeypatch):
    """The messages are the same at both ends, and each side's trial is its own."""
    (suite,) = discovery.discover(["suites/planted.py"])[:1]
    case = suite.cases()[0]
    sides = {name: Side(name, Path.cwd()) for name in (BASE, HEAD)}
    turns = {BASE: PlannedTrial(1, 0, case, WARM), HEAD: PlannedTrial(2, 0, case, WARM)}
    alone = []
    monkeypatch.setattr(pairs.Pair, "apart", lambda *_: alone.append(1))
    with Pair(sides) as pair:
        found = pair.in_turn(HEAD, turns, QUICK)
    assert alone == []
    assert [found[side].error for side in (BASE, HEAD)] == [None, None]
    assert [found[side].position for side in (BASE, HEAD)] == [1, 2]
    assert found[BASE].worker == found[HEAD].worker != os.getpid()
    assert found[BASE].facts["code_hash"] == found[HEAD].facts["code_hash"]


LETHAL = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from steelyard import benchmark
from test_together import Kernel, Native

class Lethal(Native):
    def {method}(self, *_):
        os.kill(os.getpid(), signal.SIGKILL)

class Target(Kernel):
    def bind(self, x, *, out):
        return Lethal(x, out, self.name, self.seen)

@benchmark
def lethal(b):
    x = b.input((64,), "float32")
    y = b.output((64,), "float32")
    return b.launch(Target("l"), x, out=y)
"""


@pytest.mark.parametrize("method", ["binary", "of_binary"])
def test_a_process_that_dies_of_both_leaves_each_side_its_own(method, tmp_path):
    """New ones measure the case apart: who dies there is to blame."""
    file = tmp_path / "lethal.py"
    file.write_text(LETHAL.format(tests=str(Path(__file__).parent), method=method))
    (suite,) = discovery.discover([str(file)])
    turns = {
        BASE: PlannedTrial(1, 0, suite.cases()[0], WARM),
        HEAD: PlannedTrial(2, 0, suite.cases()[0], WARM),
    }
    with Pair({name: Side(name, Path.cwd()) for name in (BASE, HEAD)}) as pair:
        for _ in range(2):
            found = pair.in_turn(HEAD, turns, QUICK)
            assert [found[side].error for side in (BASE, HEAD)] == [None, None]
            assert found[BASE].worker != found[HEAD].worker


def test_a_worker_that_dies_as_the_next_case_is_asked_has_both_begin_anew(monkeypatch):
    """A thread of the case before may have ended it; the token ended with it."""
    (suite,) = discovery.discover(["suites/planted.py"])[:1]
    turns = {
        side: PlannedTrial(at, 0, suite.cases()[0], parse("latency/warm"))
        for at, side in enumerate((BASE, HEAD))
    }
    die_when_asked(monkeypatch, {3})
    with Pair({name: Side(name, Path.cwd()) for name in (BASE, HEAD)}) as pair:
        for _ in range(2):
            found = pair.in_turn(HEAD, turns, replace(QUICK, check=False))
            assert [found[side].error for side in (BASE, HEAD)] == [None, None]


def test_a_case_that_cannot_be_prepared_is_told_by_each_side_alone(monkeypatch):
    """A process with both says nothing of it."""
    bench = worker.CaseCache(None)
    turn = PlannedTrial(0, 0, doubling(lambda x, out: 1 / 0), WARM)
    message = {
        "lent": PortableBinary(b"", "", None).message(),
        "position": 1,
        "leads": True,
    }
    assert bench.measure_pair(turn, QUICK, message) == []
    assert bench.binary(turn, QUICK) == {"lent": None}

    def broken(*_):
        raise SteelyardError("no")

    monkeypatch.setattr(together, "blank", broken)
    turn = PlannedTrial(0, 0, doubling(Kernel("l")), WARM)
    assert bench.binary(turn, QUICK) == {"lent": None}
