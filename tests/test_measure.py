import itertools
import json
import os
import statistics
import subprocess
import threading
from dataclasses import replace
from time import monotonic_ns
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import zoo
from fakes import QUICK, case_of, launching, negate

from steelyard import BenchmarkError, benchmark
from steelyard.declare.mode import BUILDS, CACHES, parse
from steelyard.measure import audit, instruments, stream
from steelyard.measure.failed import failed
from steelyard.measure.instruments import Instruments
from steelyard.measure.one_case import measure_case
from steelyard.measure.prepared import PreparedCase
from steelyard_device import cpu, llvm

SHIFT = """
define void @shift(ptr noalias %args, ptr %ticket, i32 %index, i32 %count) {
  %drawn = atomicrmw add ptr %ticket, i64 1 monotonic
  %first = icmp eq i64 %drawn, 0
  br i1 %first, label %work, label %exit
work:
  %x.at = load ptr, ptr %args
  %y.at.at = getelementptr i64, ptr %args, i64 1
  %y.at = load ptr, ptr %y.at.at
  %x = load i64, ptr %x.at
  %y = add i64 %x, 1
  store i64 %y, ptr %y.at
  br label %exit
exit:
  ret void
}
"""


class Shift:
    """A native kernel: y[0] = x[0] + 1, by whichever thread comes first."""

    def __init__(self, threads=1):
        self.threads = threads

    def bind(self, x, *, out):
        """Load and pack."""
        function = cpu.load(llvm.assemble(SHIFT), "shift")
        return cpu.Launch(function, [x.ctypes.data, out.ctypes.data], self.threads)

    def __call__(self, x, *, out):
        """Launch once."""
        self.bind(x, out=out).launch()


@pytest.fixture(scope="module")
def scale():
    """Give clocks and a flush whose size needs no calibrating."""
    return Instruments(flush_bytes=1 << 20)


def measured(body, mode, scale, settings=QUICK, **turn):
    """Return the trial of the one case of a benchmark."""
    case = case_of(body)
    return measure_case(
        PreparedCase(case, settings), parse(mode), scale, settings, **turn
    )


def shift(b):
    """Shift one number natively, on all threads."""
    x = b.input(1, "int64")
    y = b.output(1, "int64")
    b.check(lambda x: x + 1, x)
    b.count(items=1)
    return b.launch(Shift(cpu.pool_size()), x, out=y)


def turn(b):
    """Update an array in place."""
    u = b.inout(1000)
    b.check(np.negative, u)
    return b.launch(lambda u: np.negative(u, out=u), u)


@pytest.mark.parametrize("body", [negate, shift, turn])
@pytest.mark.parametrize(
    "mode",
    [
        "kernel/cold",
        "kernel/warm",
        "kernel/warm/dependent",
        "per_launch/warm",
        "per_launch/warm/dependent/8",
        "latency/warm",
        "latency/warm/allocated",
        "latency/warm/64",
    ],
)
def test_every_case_can_be_measured_in_every_mode(body, mode, scale):
    """Callables, native kernels and updates in place; checked, and with raw samples."""
    trial = measured(body, mode, scale, block=2, position=7)
    assert trial.error is None
    assert (trial.case, trial.mode) == (body.__name__, mode)
    assert (trial.block, trial.position, trial.worker) == (2, 7, os.getpid())
    samples = trial.samples
    assert len(samples) >= 3
    batch = parse(mode).batch
    assert all(n > 0 and n % batch == 0 for n in samples.launches)
    assert all(isinstance(tick, int) and tick >= 0 for tick in samples.ticks)
    assert list(samples.starts) == sorted(samples.starts)
    assert samples.starts[0] == 0
    native = body is shift and mode.startswith("kernel")
    assert trial.clock.id == ("clock_gettime" if native else "perf_counter_ns")
    assert ("null" in trial.floors) == (body is shift)
    assert {"empty", "call"} <= set(trial.floors)
    assert bool(trial.ledger) == mode.startswith("latency")
    assert trial.extra["checked"]


def test_a_cold_window_is_one_launch(scale):
    """Behind the flush, whose size is recorded; a warm one is long enough."""
    trial = measured(shift, "kernel/cold", scale)
    assert set(trial.samples.launches) == {1}
    assert trial.extra["flush_bytes"] == 1 << 20
    warm = measured(shift, "kernel/warm", scale)
    assert len(set(warm.samples.launches)) == 1
    # The window was found long enough with a third to spare; most still are.
    assert statistics.median(warm.samples.ticks) >= 150 * warm.clock.quantum
    assert "flush_bytes" not in warm.extra


def test_a_ledger_names_where_a_new_output_comes_from(scale):
    """Allocating and first touch are parts only where outputs are new."""
    before = measured(negate, "latency/warm", scale).ledger
    within = measured(negate, "latency/warm/allocated", scale).ledger
    assert set(before) == {"submit", "kernel", "untracked"}
    assert set(within) == set(before) | {"allocate", "first_touch"}
    native = measured(shift, "latency/warm", scale).ledger
    assert set(native) == {"submit", "kernel", "pack", "synchronise", "untracked"}


def test_bytes_are_counted_from_the_buffers(scale):
    """Updates are read and written; what the benchmark states comes first.

    What no launch takes moves nothing: a buffer too many made GB/s of nothing.
    """

    def spare(b):
        b.input(1000, name="unused")
        return negate(b)

    assert measured(negate, "latency/warm", scale).facts["bytes"] == 8000
    assert measured(spare, "latency/warm", scale).facts["bytes"] == 8000
    assert measured(turn, "latency/warm", scale).facts["bytes"] == 8000
    facts = measured(shift, "latency/warm", scale).facts
    assert facts == {
        "bytes": 16,
        "items": 1.0,
        "threads": cpu.pool_size(),
        "dtype": "int64",
    }


@pytest.mark.parametrize("mode", ["kernel/cold", "kernel/warm", "latency/warm"])
def test_work_that_stops_working_once_it_was_checked_is_found_out(mode, scale):
    """The untimed launch that warms the caches wrote what was then found right."""
    trial = measured(launching(zoo.Warmed(1), np.negative), mode, scale)
    assert (
        trial.error
        == "body: the work wrote nothing to y. Is it the buffer it was given?"
    )
    assert len(trial.samples) == 1


def test_updates_that_differ_from_launch_to_launch_are_found_out(scale):
    """As many launches, untimed, leave something else."""
    calls = []

    def target(u):
        calls.append(1)
        np.add(u, len(calls), out=u)

    def body(b):
        u = b.inout(10, "float64")
        return b.launch(target, u)

    trial = measured(body, "kernel/warm", scale)
    assert "timed launches left another u than the same" in trial.error


@pytest.mark.parametrize("after", [1, 3, 40])
def test_work_that_raises_while_it_is_timed_keeps_its_samples(after, scale):
    """The trial says which line raised; the garbage collector and the mask are back."""
    calls = []
    mask = os.sched_getaffinity(0)

    def target(x, out):
        calls.append(1)
        if len(calls) > after:
            raise ValueError("worn out")
        np.negative(x, out=out)

    trial = measured(launching(target), "latency/warm", scale)
    assert "the work raised ValueError: worn out (test_measure.py:" in trial.error
    assert os.sched_getaffinity(0) == mask


def test_threads_are_started_before_the_caller_is_pinned(scale):
    """Checked or not: a library's threads once shared one core with the caller."""
    masks = []

    def target(x, out):
        if not masks:
            one = threading.Thread(target=lambda: masks.append(os.sched_getaffinity(0)))
            one.start()
            one.join()
        np.negative(x, out=out)

    trial = measured(
        launching(target), "latency/warm", scale, replace(QUICK, check=False)
    )
    assert trial.error is None
    assert masks == [os.sched_getaffinity(0)]


def test_without_checks_nothing_is_compared_and_that_is_doubted(scale):
    """Not even the reference is called."""

    def reference(_):
        raise AssertionError("it was asked")

    body = launching(lambda *_, **__: None, reference)
    trial = measured(body, "latency/warm", scale, replace(QUICK, check=False))
    assert trial.error is None
    assert "unchecked" in trial.doubts


def test_work_that_alternates_is_measured_in_both_phases(scale):
    """Between windows of one launch there is not always one more."""
    calls = itertools.count()

    def target(x, out):
        end = monotonic_ns() + (1 + next(calls) % 2) * 300_000
        while monotonic_ns() < end:
            pass
        out[...] = x

    trial = measured(launching(target, np.copy), "kernel/warm", scale)
    assert trial.error is None
    short = np.mean(np.array(trial.samples.ticks) < 500_000)
    assert 0.1 < short < 0.9


def test_inputs_that_collapse_in_place_are_doubted(scale):
    """Beside launches that are restored one by one."""

    def body(b):
        u = b.inout(10)
        b.check(lambda u: u * 1e-30, u)
        return b.launch(lambda u: np.multiply(u, 1e-30, out=u), u)

    assert "collapsed-input" in measured(body, "kernel/warm", scale).doubts
    assert "collapsed-input" not in measured(body, "kernel/cold", scale).doubts


def test_in_place_arguments_pass_through_the_caches_twice(scale):
    """Restoring them reads their first data, between a launch and the next window."""
    assert measured(negate, "kernel/warm", scale).extra["working_set"] == 8000
    assert measured(turn, "kernel/warm", scale).extra["working_set"] == 8000


def test_allocations_are_counted_on_request(scale):
    """What one more launch allocates and keeps."""
    kept = []

    def body(b):
        y = b.output(10)

        def target(out):
            kept.append(np.ones(100_000))
            out[...] = 1

        return b.launch(target, out=y)

    trial = measured(body, "latency/warm", scale, replace(QUICK, allocations=True))
    assert trial.extra["allocations"]["peak_bytes"] >= 800_000
    assert trial.extra["allocations"]["kept_bytes"] >= 800_000
    assert "allocations" not in measured(negate, "latency/warm", scale).extra


@pytest.mark.parametrize(("calls", "kept"), [({2}, 0), ({1, 2, 3}, 800_000)])
def test_what_one_launch_makes_for_all_others_is_not_kept_by_each(calls, kept):
    """As a table that is filled by the second call."""
    made, called = [], itertools.count(1)

    def launch(_):
        if next(called) in calls:
            made.append(np.ones(100_000))

    work = SimpleNamespace(launch=launch, wait=lambda: None)
    prepared = SimpleNamespace(buffers=Mock(), work=work)
    found = audit.allocations(prepared)["kept_bytes"]
    assert kept <= found < kept + 2000


@pytest.mark.parametrize("mode", ["build/cold", "build/warm-memory"])
def test_a_plain_callable_is_not_built(mode, scale):
    """The sentence says what to do about it."""
    said = measured(negate, mode, scale).error
    assert said.startswith(f"negate: mode {mode} asks for a build, but negate launches")
    assert "Leave the mode out for it" in said


@benchmark(shape=[(2, 3)])
def spread(b, shape):
    """Fail unless it may run on every processor that the tests may."""
    assert isinstance(shape, tuple)
    y = b.output(shape)

    def target(out):
        assert len(os.sched_getaffinity(0)) == int(os.environ["STEELYARD_TEST_CPUS"])
        out[...] = 1

    return b.launch(target, out=y)


def test_a_first_launch_has_a_process_with_all_processors(scale, monkeypatch):
    """It once inherited the one core that its parent was pinned to."""
    monkeypatch.setenv("STEELYARD_TEST_CPUS", str(cpu.pool_size()))
    prepared = PreparedCase(spread.cases()[0], QUICK)
    trial = measure_case(prepared, parse("build/first"), scale, QUICK)
    assert trial.error is None
    assert set(trial.samples.launches) == {1}
    assert list(trial.ledger) == ["interpreter", "import", "first kernel"]
    assert min(trial.ledger.values()) > 0
    assert "second_kernel_ns" not in trial.facts
    monkeypatch.setenv("STEELYARD_TEST_CPUS", "0")
    said = measure_case(prepared, parse("build/first"), scale, QUICK).error
    assert said == "spread[shape=2x3]: a fresh process failed: AssertionError"


class Elsewhere:
    """A kernel for a machine that is not here: `b.build` keeps it from being called."""

    def __init__(self, target=""):
        self.target = target

    def for_target(self, target, *specs):
        """Build at once."""
        assert specs == (((1 << 45,), "float32"),)
        return Elsewhere(target)

    def build(self, cache):
        """Build again, by no time."""
        assert cache in CACHES["build"]

    def facts(self):
        """Say what a compiler would."""
        return {"target": self.target, "compiler": "nvrtc 13.5", "registers": 24}


@benchmark
def elsewhere(b):
    """Declare more data than there is memory: it is never allocated."""
    x = b.inout(1 << 45)
    b.check(lambda x: x, x)
    return b.build(Elsewhere(), x, target="cuda:sm_90a")


def built(mode, scale):
    """Return that case prepared, and its trial."""
    prepared = PreparedCase(elsewhere.cases()[0], QUICK)
    return prepared, measure_case(prepared, parse(mode), scale, QUICK)


@pytest.mark.parametrize("mode", CACHES["build"])
def test_work_for_another_machine_is_built_and_not_launched(mode, scale):
    """Its row has the facts, and a doubt that says why nothing was checked."""
    prepared, trial = built(f"build/{mode}", scale)
    assert trial.error is None
    assert trial.facts["registers"] == 24
    assert trial.facts["target"] == "cuda:sm_90a"
    assert "not-launched" in trial.doubts
    assert "unchecked" not in trial.doubts
    assert ("second_kernel_ns" in trial.facts) == (mode == "first")
    assert prepared.buffers.nbytes == 0


def test_a_fresh_process_finds_no_cache_and_its_parts_add_up(scale, monkeypatch):
    """What it says of itself is believed; the parent adds when it was started."""
    asked = []

    def run(command, *, env, **_):
        asked.append(env["STEELYARD_CACHE"])
        said = {"began": monotonic_ns(), "import": 3, "first kernel": 4}
        text = f"noise\n{json.dumps(said | {'second kernel': 2})}\n"
        return subprocess.CompletedProcess(command, 0, text, "")

    monkeypatch.setattr(subprocess, "run", run)
    prepared, trial = built("build/first", scale)
    assert set(asked) == {"off"}
    assert (trial.ledger["import"], trial.ledger["first kernel"]) == (3, 4)
    assert trial.facts["second_kernel_ns"] == 2
    for start, ticks in zip(prepared.starts, trial.samples.ticks, strict=True):
        assert start["interpreter"] + 7 == ticks


def test_work_for_another_machine_has_no_launch_to_measure(scale):
    """The sentence names the modes that it has; two of them are its defaults."""
    prepared, trial = built("kernel/warm", scale)
    assert prepared.case.modes() == BUILDS
    assert trial.error == (
        "elsewhere: mode kernel/warm asks for launches, but elsewhere is only built, "
        "for cuda:sm_90a. Measure it in build/cold, build/warm-disk, build/warm-memory "
        "or build/first."
    )
    with pytest.raises(BenchmarkError, match=r"2 launches.*only built"):
        prepared.work.launch(2)


def test_a_case_that_could_not_be_measured_has_a_trial_too():
    """It says where the case stands."""
    case = case_of(turn)
    trial = failed(case, parse("kernel/cold"), "turn: no", block=1, position=2)
    assert (trial.case, trial.error, trial.block, trial.position) == (
        "turn",
        "turn: no",
        1,
        2,
    )
    assert len(trial.samples) == 0
    assert trial.hashes["file"] == __file__


def probed(monkeypatch, times):
    """Have the probe read these times, by megabytes walked; return the flush chosen."""
    monkeypatch.setattr(instruments, "last_level_cache", lambda: 1 << 20)
    monkeypatch.setattr(instruments, "LARGEST", 16 << 20)
    monkeypatch.setattr(
        instruments.Probe, "__call__", lambda _, f: times[f.nbytes >> 20]
    )
    return instruments.calibrated().nbytes >> 20


def test_a_flush_is_the_shortest_behind_which_a_probe_is_cold(monkeypatch):
    """Within 5 % of the longest; never once the last-level cache alone."""
    assert probed(monkeypatch, {2: 100, 4: 150, 8: 170, 16: 172}) == 8
    assert probed(monkeypatch, {2: 100, 4: 101, 8: 100, 16: 102}) == 2


def test_a_flush_that_never_settles_is_the_longest(monkeypatch):
    """And no longer than its limit."""
    assert probed(monkeypatch, {2: 100, 4: 200, 8: 400, 16: 800}) == 16


def test_the_size_of_the_caches_is_read_or_assumed(tmp_path, monkeypatch):
    """The largest of all levels, where the kernel lists any."""
    assert instruments.last_level_cache() == max(
        one["bytes"] for one in instruments.facts.caches().values()
    )
    none = instruments.facts.caches(tmp_path)
    monkeypatch.setattr(instruments.facts, "caches", lambda: none)
    assert instruments.last_level_cache() == instruments.FALLBACK


@pytest.mark.parametrize(
    ("times", "count", "untimed"),
    [
        ([stream.LONG + 1], 1, 2),  # prove themselves by the second
        ([stream.LONG + 1, stream.LONG], 1, 6),  # the first loaded something
        ([stream.LONG], 1, 5),
    ],
)
def test_long_windows_are_not_repeated_to_find_how_many_make_one_long(
    scale, monkeypatch, times, count, untimed
):
    """Of a launch of a second each one untimed is a second of somebody's gate."""
    asked, now = [], 0

    def window(units):
        nonlocal now
        taken = times[min(len(asked), len(times) - 1)]
        asked.append(units)
        start, now = now, now + taken
        return start, now

    monkeypatch.setattr(stream, "window_of", lambda *_: (window, 1))
    monkeypatch.setattr(stream, "other_clock", lambda: now)
    trial = measured(negate, "latency/warm", scale, replace(QUICK, check=False))
    assert trial.error is None
    assert set(trial.samples.launches) == {count}
    assert len(asked) - len(trial.samples) == untimed
