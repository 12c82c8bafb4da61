"""Each liar is caught by one defence, and fools everybody without it."""

import statistics
from types import SimpleNamespace

import host_memory_gpu
import numpy as np
import pytest
import zoo
from fakes import case_of

from steelyard import BenchmarkError
from steelyard.analyse import stats
from steelyard.analyse.doubts import caches, samples, work
from steelyard.analyse.trial import Trial
from steelyard.declare.mode import parse
from steelyard.declare.plan import Settings
from steelyard.measure import audit, one_case, sampler
from steelyard.measure.instruments import Instruments
from steelyard.measure.prepared import PreparedCase
from steelyard.prepare.buffers import Buffers
from steelyard.prepare.checking import Expectation
from steelyard.prepare.gpu_buffers import DeviceBuffers

pytestmark = pytest.mark.measuring

QUICK = Settings(precision=0.05, budget=0.02)


@pytest.fixture(scope="module")
def scale():
    """Give clocks, and a flush of what leaves no cache as it was."""
    return Instruments(flush_bytes=128 << 20)


def measured(body, scale, mode="kernel/warm", settings=QUICK) -> Trial:
    """Return the trial of a liar, whether it was found out at once or later."""
    case, how = case_of(body), parse(mode)
    try:
        return one_case.measure_case(PreparedCase(case, settings), how, scale, settings)
    except Exception as error:  # noqa: BLE001 # as a worker does
        return one_case.failed(case, how, str(error))


def time_of(trial):
    """Return the nanoseconds of a launch that are believed."""
    assert trial.error is None, trial.error
    return stats.of(trial).estimate.value


def honest(body, scale, mode="kernel/warm"):
    """Return the nanoseconds of the same work done honestly."""
    return time_of(measured(body, scale, mode))


def off(monkeypatch, where, name, value):
    """Take one defence away."""
    monkeypatch.setattr(where, name, value)


def nobody(*_arguments, **_keywords):
    """Look at nothing."""


def test_work_that_another_thread_goes_on_with_is_an_error(scale, monkeypatch):
    """It waits where its result is not there, and otherwise the call is all there is."""
    off(monkeypatch, audit, "again", lambda _: [])  # which would doubt it, by its time
    body = lambda: zoo.suite(zoo.Lagging(), size=zoo.WIDE)  # noqa: E731 # a thread each time
    said = measured(body(), scale).error
    assert "changed y after it returned: another thread goes on" in said
    off(monkeypatch, audit, "require_done", nobody)
    trial = measured(body(), scale)
    assert time_of(trial) < honest(zoo.suite(zoo.negate, size=zoo.WIDE), scale) / 10
    assert not told(trial)


def told(trial):
    """Return the doubts that name a lie, not the state of this machine."""
    lies = {"allocates", "idle", "remembers", "wrong-cache"}
    return lies & set(trial.doubts)


def test_results_remembered_by_address_are_an_error(scale, monkeypatch):
    """Other data at the same place has another result."""
    body = lambda: zoo.suite(zoo.ByPointer(), size=zoo.WIDE)  # noqa: E731 # one each time
    assert (
        "remembers results by where its arguments lie" in measured(body(), scale).error
    )
    off(monkeypatch, audit, "require_fresh", nobody)
    trial = measured(body(), scale)
    assert time_of(trial) < honest(zoo.suite(zoo.negate, size=zoo.WIDE), scale) / 2
    assert not told(trial)


@pytest.mark.parametrize("liar", [zoo.ByInput, lambda: zoo.peeks])
def test_results_remembered_by_what_they_are_of_are_doubted(liar, scale, monkeypatch):
    """By a hash of the input, or since they are still there."""
    assert "remembers" in measured(zoo.suite(liar()), scale).doubts
    off(monkeypatch, audit, "again", lambda _: [])
    assert not told(measured(zoo.suite(liar()), scale))


@pytest.mark.parametrize("mode", ["kernel/warm", "kernel/cold", "latency/warm"])
def test_honest_work_is_not_suspected(mode, scale):
    """Nor is what updates in place, nor what takes a microsecond."""

    def update(b):
        u = b.inout(4000)
        b.check(np.negative, u)
        return b.launch(lambda u: np.negative(u, out=u), u)

    for body in (zoo.suite(np.negative), zoo.suite(np.negative, size=40_000), update):
        trial = measured(body, scale, mode)
        assert trial.error is None
        assert not told(trial)
        assert "clocks-disagree" not in trial.doubts


def test_work_that_writes_nothing_is_an_error(scale, monkeypatch):
    """Poison is what is left; without it nobody knows, as there is no reference."""
    body = zoo.suite(zoo.nothing, reference=None)
    assert "wrote nothing to y" in measured(body, scale).error
    off(monkeypatch, Buffers, "check_written", nobody)
    trial = measured(body, scale)
    assert time_of(trial) < honest(zoo.suite(zoo.negate), scale) / 10


def test_work_that_writes_only_part_is_an_error(scale, monkeypatch):
    """The reference has the rest."""
    body = zoo.suite(zoo.part)
    assert "y is wrong in 128 of 512 elements" in measured(body, scale).error
    off(monkeypatch, Expectation, "_compare", nobody)
    off(monkeypatch, audit, "require_fresh", nobody)
    assert measured(body, scale).error is None


def test_work_that_changes_its_input_is_an_error(scale, monkeypatch):
    """Sorting what is sorted is quick, and the result is right each time."""

    def liar(work):
        greatest = lambda x: x.max(keepdims=True)  # noqa: E731 # a reference in one line
        return zoo.suite(work, size=zoo.WIDE, out=1, reference=greatest)

    body = liar(zoo.largest)
    assert "the work changed its input x" in measured(body, scale).error
    off(monkeypatch, Buffers, "check_inputs", nobody)
    off(monkeypatch, audit, "audit", lambda *_: {})
    fooled = time_of(measured(body, scale))

    def sort(x, out):
        out[...] = np.sort(x, kind="stable")[-1:]

    assert fooled < honest(liar(sort), scale) / 2


def test_work_that_is_quick_with_zeros_does_not_get_any(scale, monkeypatch):
    """Unless they are asked for: then they are doubted."""
    slow = time_of(measured(zoo.suite(zoo.not_zeros), scale))
    zeros = zoo.suite(zoo.not_zeros, dist="constant")
    trial = measured(zeros, scale)
    assert time_of(trial) < slow / 10
    assert "collapsed-input" in trial.doubts
    off(monkeypatch, one_case.inputs, "is_constant", lambda _: False)
    assert "collapsed-input" not in measured(zeros, scale).doubts


@pytest.mark.parametrize("calls", [1, 5, 40, 400])
def test_work_that_stops_once_it_is_warm_is_an_error(calls, scale, monkeypatch):
    """Whenever it stops: one window of each octave is checked."""
    body = lambda: zoo.suite(zoo.Warmed(calls))  # noqa: E731 # one liar each time
    settings = Settings(precision=1e-9, budget=0.05)
    error = measured(body(), scale, settings=settings).error
    # The audit's own launches find it where the machine had time for few windows.
    assert "wrote nothing to y" in error or "had for other data" in error


def test_without_checked_windows_nobody_sees_that_it_stopped(scale, monkeypatch):
    """The first result was right."""
    off(monkeypatch, sampler, "draw", lambda _: iter(lambda: False, True))
    off(monkeypatch, audit, "audit", lambda *_: {})
    body = zoo.suite(zoo.Warmed(1))
    assert time_of(measured(body, scale)) < honest(zoo.suite(zoo.negate), scale) / 10


def test_data_that_is_warm_behind_the_flush_is_doubted(scale, monkeypatch):
    """The work reads it when it is told to be ready; neighbours may disturb a probe."""
    liar = zoo.suite(zoo.Touching(), size=1 << 16)
    tries = (measured(liar, scale, "kernel/cold") for _ in range(8))
    assert any("wrong-cache" in trial.doubts for trial in tries)
    off(monkeypatch, audit, "kept_warm", lambda *_: "unknown")
    assert not told(measured(liar, scale, "kernel/cold"))


def read(theirs, cold=1000, cached=200):
    """Return a round of made-up readings."""
    return {"theirs": theirs, "cold": cold, "cached": cached}


@pytest.mark.parametrize(
    ("rounds", "share"),
    [
        ([read(1000)] * 5, 0.0),
        ([read(200)] * 5, 1.0),
        ([read(100)] * 4 + [read(280), read(500), read(5000)], 0.9),
        ([read(200)] * 4 + [read(1000)] * 3, 0.0),
        ([read(200, cold=290)] * 5, "unknown"),
    ],
)
def test_how_warm_data_is_lies_between_cold_and_cached(rounds, share):
    """Where these two are apart."""
    assert audit.share_cached(rounds) == share
    assert caches.is_kept_warm(share) is (share in {1.0, 0.9})


def test_work_that_sleeps_is_doubted(scale, monkeypatch):
    """The processor was idle meanwhile."""
    assert "idle" in measured(zoo.suite(zoo.sleeps), scale).doubts
    off(monkeypatch, work, "idle", lambda _: False)
    assert not told(measured(zoo.suite(zoo.sleeps), scale))


def test_work_that_allocates_is_doubted(scale, monkeypatch):
    """As much as C libraries ask the system for each time."""
    body = zoo.suite(zoo.allocates, size=100_000)
    assert "allocates" in measured(body, scale).doubts
    assert "allocates" not in measured(zoo.suite(zoo.allocates), scale).doubts
    off(monkeypatch, audit, "allocations", lambda _: {"peak_bytes": 0})
    assert not told(measured(body, scale))


def test_work_that_keeps_memory_of_each_launch_is_doubted(scale, monkeypatch):
    """Replacing what the launch before kept is no leak."""
    last = {}
    replaces = lambda x, out: last.update(x=np.negative(x, out=out).copy())  # noqa: E731 # as zoo's
    keeps = lambda x, out: last.update({len(last): np.negative(x, out=out).copy()})  # noqa: E731 # as above
    assert "leaks" not in measured(zoo.suite(replaces), scale).doubts
    assert "leaks" in measured(zoo.suite(keeps), scale).doubts
    off(monkeypatch, audit, "allocations", lambda _: {"kept_bytes": 0})
    assert "leaks" not in measured(zoo.suite(keeps), scale).doubts


def test_work_that_slows_down_is_doubted(scale, monkeypatch):
    """The last third of its samples is slower than the first."""
    settings = Settings(precision=1e-9, budget=0.05)
    body = lambda: zoo.suite(zoo.Slowing(), size=4000)  # noqa: E731 # one liar each time
    trial = measured(body(), scale, settings=settings)
    assert "drifting" in trial.doubts
    times = trial.samples.per_launch()
    assert statistics.median(times[-6:]) > statistics.median(times[:6])
    off(monkeypatch, samples, "drifts", lambda _: False)
    assert "drifting" not in measured(body(), scale, settings=settings).doubts


def test_a_run_asks_once(tmp_path):
    """Blocks share a folder: the first asks, and each side of a gate for itself."""
    settings = Settings(scratch=str(tmp_path))
    case = case_of(zoo.suite(np.negative))
    assert [PreparedCase(case, settings).audits for _ in range(3)] == [True] + [
        False
    ] * 2


def test_nothing_is_asked_of_work_that_is_not_checked(scale):
    """`--no-check` measures and does nothing else."""
    settings = Settings(precision=0.05, budget=0.02, check=False)
    assert (
        "audit" not in measured(zoo.suite(np.negative), scale, settings=settings).extra
    )


def test_after_an_audit_a_case_is_as_it_was(scale):
    """Inputs hold their own data, and the next trial is checked against it."""
    case = PreparedCase(case_of(zoo.suite(np.negative)), QUICK)
    before = case.buffers.read("x").copy()
    for mode in ("kernel/warm", "latency/warm"):
        trial = one_case.measure_case(case, parse(mode), scale, QUICK)
        assert trial.error is None
        assert trial.extra["audit"]["again"]
    assert (case.buffers.read("x") == before).all()
    case.buffers.check_inputs()


class OnGpu:
    """A launch on buffers of a GPU whose memory is the host's; it may remember."""

    def __init__(self, buffers, *, remembers):
        self.buffers, self.known, self.remembers = buffers, None, remembers

    def launch(self, _count=1):
        """Negate, or write what it has."""
        if self.known is None or not self.remembers:
            self.known = -self.buffers.read("x")
        self.buffers.arrays["y"].write(self.known)

    def wait(self):
        """Nothing is under way."""


@pytest.mark.parametrize("remembers", [False, True])
def test_a_gpus_results_are_asked_about_too(remembers, monkeypatch):
    """Other data lies at the same addresses there, and the case's own afterwards."""
    host_memory_gpu.install(monkeypatch)
    description = case_of(zoo.suite(np.negative)).describe()
    buffers = DeviceBuffers(host_memory_gpu.CONTEXT, description.handles, 0, {})
    before = buffers.read("x").copy()
    work = OnGpu(buffers, remembers=remembers)
    prepared = SimpleNamespace(description=description, buffers=buffers, work=work)
    if remembers:
        with pytest.raises(BenchmarkError, match="remembers results by where"):
            audit.require_fresh(prepared)
    else:
        audit.require_fresh(prepared)
    assert (buffers.read("x") != before).any()
    buffers.draw(buffers.seed)
    assert (buffers.read("x") == before).all()
    buffers.check_inputs()
