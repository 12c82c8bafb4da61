"""Weigh one case in one mode in this process: from a case to a trial."""

from __future__ import annotations

import functools
import json
import os
import statistics
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from time import monotonic_ns, perf_counter_ns
from typing import Any, Final

from steelyard import cold, doubts, inputs, ledger, sampler, work
from steelyard.benchmark import Case, raised
from steelyard.buffers import Buffers
from steelyard.checking import Expectation, replay
from steelyard.clocks import Clock
from steelyard.clocks.host import HostClock
from steelyard.clocks.native import NativeClock
from steelyard.errors import BenchmarkError, SteelyardError
from steelyard.mode import Mode
from steelyard.neighbours import Neighbours
from steelyard.stopping import Stopping
from steelyard.trial import METHOD_VERSION, Trial
from steelyard_device import cpu

TRIAL_BUDGET: Final = 0.1
"""Seconds of sampling in one trial unless the run has a budget: four blocks of it give a
median of 100 us kernels to a few per mille, and a suite of 100 rows in a minute."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a run measures; everything its numbers depend on but the machine."""

    seed: int = 0
    budget: float | None = None
    """Seconds for the whole run."""
    precision: float = 0.005
    """Half-width of the interval at which a trial stops, as a fraction."""
    timeout: float = 60.0
    """Seconds after which a silent worker is taken for hung."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Files instead of generated data, by the names of handles."""
    flush_bytes: int | None = None
    """What a flush walks; calibrated if it is not known yet."""
    check: bool = True
    allocations: bool = False


class PreparedCase:
    """A case with its buffers allocated, its work bound and its first result checked."""

    def __init__(self, case: Case, settings: Settings) -> None:
        self.case = case
        self.description = case.describe()
        handles = self.description.handles
        self.buffers = Buffers(handles, settings.seed, settings.inputs)
        self.work = work.realise(self.description, self.buffers)
        self.hashes = {
            "source": case.benchmark.source_hash(),
            "inputs": inputs.recipe_hash(handles, settings.seed),
            "method": str(METHOD_VERSION),
            "file": str(case.benchmark.path),
            "line": str(case.benchmark.line),
        }
        self.checked = settings.check and self.description.check is not None
        self._expected = None
        if settings.check:
            # Asked before the work can change what it is asked of.
            self._expected = Expectation(self.description, self.buffers, settings.seed)
        # Checked or not: other libraries start their threads now, not pinned to one
        # core with the caller.
        self.work.launch(1)
        self.work.wait()
        if self._expected is not None:
            self._expected.check_all(self.buffers)
        self.buffers.restore()

    def facts(self) -> dict[str, Any]:
        """Return bytes and operations of a launch and what the work says of itself."""
        moved = sum(
            self.buffers.arrays[h.name].nbytes * (2 if h.role == "inout" else 1)
            for h in self.description.handles
        )
        return {"bytes": moved, **self.work.facts(), **self.description.counts}

    def check(self, launches: int) -> None:
        """Check what ``launches`` timed launches left, if the case is checked at all."""
        if self._expected is None:
            return
        if not self.buffers.updates or launches == 1:
            self._expected.check_rows(self.buffers)
            return
        self._expected.check_buffers(self.buffers)
        results = self.description.results
        replay(self.work.launch, self.buffers, results, launches)


class Scale:
    """What one process weighs with: its clocks and its way to make caches cold."""

    def __init__(self, flush_bytes: int | None = None) -> None:
        self.host = HostClock()
        self._flush_bytes = flush_bytes

    @functools.cached_property
    def flush(self) -> cpu.Flush:
        """A flush of the size that is known, or calibrated on first use."""
        if self._flush_bytes is not None:
            return cpu.Flush(self._flush_bytes)
        return cold.calibrated()

    @functools.cached_property
    def last_level_cache(self) -> int:
        """Bytes of the largest cache."""
        return cold.last_level_cache()

    @functools.cached_property
    def empty_call(self) -> float:
        """Median nanoseconds of calling an empty Python function once."""
        return ledger.per_call(work.CallableWork(lambda: None).launch)

    def clock(self, weighed: work.Work, mode: Mode) -> Clock:
        """Return the clock nearest to what the mode asks about."""
        if mode.quantity == "kernel" and isinstance(weighed, work.NativeWork):
            return NativeClock(weighed)
        return self.host


def weigh(
    prepared: PreparedCase,
    mode: Mode,
    scale: Scale,
    settings: Settings,
    *,
    block: int = 0,
    position: int = 0,
) -> Trial:
    """Weigh a prepared case; what goes wrong becomes the trial's error."""
    began = perf_counter_ns()
    clock = scale.clock(prepared.work, mode)
    record = sampler.Record()
    extra: dict[str, Any] = {
        "checked": prepared.checked,
        "working_set": prepared.buffers.nbytes,
    }
    found: dict[str, float] = {}
    error = None
    others = Neighbours()
    try:
        with cpu.pinned(), sampler.no_collection() as collected:
            steps, stopping = _steps(prepared, mode, scale, clock, settings)
            sampler.sample(steps, record, seed=settings.seed + position)
            extra["gc_ns"] = collected()
            if mode.quantity == "latency":
                found = _ledger(prepared, mode, record)
        extra["settled"] = stopping.settled
        extra["collapsed"] = _collapsed(prepared)
        if settings.allocations:
            extra["allocations"] = _allocations(prepared)
    except SteelyardError as failure:
        error = str(failure)
    except (Exception, SystemExit) as failure:  # noqa: BLE001 # whatever the user's work raises
        error = f"the work raised {raised(failure)}"
    if mode.cache == "cold" and mode.quantity == "kernel":
        extra["flush_bytes"] = scale.flush.nbytes
    extra["neighbours"] = others.busy()
    extra["wall_ns"] = perf_counter_ns() - began
    trial = Trial(
        case=prepared.case.id,
        axes=dict(prepared.case.axes),
        mode=str(mode),
        block=block,
        position=position,
        worker=os.getpid(),
        samples=record.samples(),
        clock=clock.facts,
        floors=_floors(prepared, clock, scale),
        ledger=found,
        facts=prepared.facts(),
        hashes=prepared.hashes,
        error=error and f"{prepared.case.id}: {error}",
        extra=extra,
    )
    seen = doubts.raise_doubts(trial, scale.last_level_cache, settings.precision)
    return replace(trial, doubts=seen)


def failed(
    case: Case, mode: Mode, error: str, *, block: int = 0, position: int = 0
) -> Trial:
    """Return the trial of a case that could not be weighed at all."""
    return Trial(
        case=case.id,
        axes=dict(case.axes),
        mode=str(mode),
        block=block,
        position=position,
        worker=os.getpid(),
        samples=sampler.Record().samples(),
        clock=HostClock.nothing(),
        floors={},
        ledger={},
        facts={},
        hashes={
            "file": str(case.benchmark.path),
            "line": str(case.benchmark.line),
            "method": str(METHOD_VERSION),
        },
        error=error,
    )


def _steps(
    prepared: PreparedCase, mode: Mode, scale: Scale, clock: Clock, settings: Settings
) -> tuple[sampler.Steps, Stopping]:
    window, unit = _window(prepared, mode, clock)

    def fresh(count: int) -> tuple[int, int]:
        prepared.buffers.restore()
        return window(count)

    # Two untimed windows: code is loaded, memory touched, other libraries' threads up.
    fresh(1)
    cold_kernel = mode.quantity == "kernel" and mode.cache == "cold"
    once = cold_kernel or (mode.quantity == "build" and mode.cache != "warm-memory")
    floor = statistics.median(clock.facts.floor)
    count = 1 if once else sampler.launches_for(fresh, clock.facts.quantum, floor)
    start, stop = fresh(1)
    budget = settings.budget or TRIAL_BUDGET
    stopping = Stopping(
        settings.precision,
        int(budget * 1e9),
        perf_counter_ns,
        count * unit,
        clock.facts.quantum,
    )
    short = stop - start <= sampler.LONGEST_WARM_UP
    warms = short and not cold_kernel and not prepared.buffers.updates
    warms = warms and mode.quantity != "build"

    def touch() -> None:
        if warms:
            prepared.work.launch(1)
            prepared.work.wait()

    def settle() -> None:
        if cold_kernel:
            scale.flush()
        prepared.work.ready()

    def check(launches: int) -> None:
        if mode.quantity != "build" and mode.flavour != "allocated":
            prepared.check(launches)

    return (
        sampler.Steps(
            restore=prepared.buffers.restore,
            touch=touch,
            settle=settle,
            window=window,
            count=count,
            unit=unit,
            finished=stopping.finished,
            poison=prepared.buffers.poison,
            check=check,
        ),
        stopping,
    )


def _window(
    prepared: PreparedCase, mode: Mode, clock: Clock
) -> tuple[sampler.Window, int]:
    """Return a window of ``count`` units of work, and the launches of a unit."""
    weighed = prepared.work
    if mode.quantity == "kernel":
        dependent = mode.flavour == "dependent"
        return (lambda n: clock.window(weighed, n, dependent=dependent)), 1
    if mode.quantity == "build":
        return _building(prepared, mode), 1
    if mode.quantity == "per_launch":
        one: Callable[[], Any] = weighed.launch
    elif mode.flavour == "allocated":
        one = work.allocating(prepared.description, prepared.buffers)
    else:
        one = work.calling(prepared.description, prepared.buffers)
    each = weighed.wait if mode.flavour == "dependent" else None
    return _batches(one, each, weighed.wait, mode.batch), mode.batch


def _batches(
    one: Callable[[], Any],
    each: Callable[[], None] | None,
    wait: Callable[[], None],
    batch: int,
) -> sampler.Window:
    """Return a window of batches as a host program issues them, one call at a time."""

    def window(count: int) -> tuple[int, int]:
        start = perf_counter_ns()
        for _ in range(count):
            for _ in range(batch):
                one()
                if each is not None:
                    each()
            wait()
        return start, perf_counter_ns()

    return window


def _building(prepared: PreparedCase, mode: Mode) -> sampler.Window:
    weighed = prepared.work
    if mode.cache == "first":
        return lambda _count: _fresh_process(prepared.case)
    if not isinstance(weighed, work.Buildable):
        raise BenchmarkError(
            f"mode {mode} asks for a build, but {prepared.case.id} launches a plain "
            "callable. Leave the mode out for it, or launch a kernel."
        )
    build = weighed.build

    def window(count: int) -> tuple[int, int]:
        start = perf_counter_ns()
        for _ in range(count):
            build(mode.cache)
        return start, perf_counter_ns()

    return window


def _fresh_process(case: Case) -> tuple[int, int]:
    """Time a new interpreter from its start to the end of the case's first launch."""
    command = [sys.executable, "-m", "steelyard.first", str(case.benchmark.path)]
    command += [case.benchmark.name, json.dumps(dict(case.axes))]
    start = monotonic_ns()
    with cpu.unpinned():  # a process inherits the processors it may run on
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchmarkError(
            f"a fresh process failed: {''.join(done.stderr.strip().splitlines()[-1:])}"
        )
    return start, int(done.stdout.split()[-1])


def _ledger(
    prepared: PreparedCase, mode: Mode, record: sampler.Record
) -> dict[str, float]:
    parts = ledger.parts(
        prepared.description,
        prepared.buffers,
        prepared.work,
        allocated=mode.flavour == "allocated",
    )
    prepared.buffers.restore()
    return ledger.close(parts, statistics.median(record.samples().per_launch()))


def _floors(prepared: PreparedCase, clock: Clock, scale: Scale) -> dict[str, float]:
    """Return medians in nanoseconds of what is read around nothing."""
    found = {"empty": float(statistics.median(clock.facts.floor))}
    found["call"] = scale.empty_call
    if isinstance(prepared.work, work.NativeWork):
        nothing = prepared.work.null()
        windows = [nothing.window(1) for _ in range(21)]
        found["null"] = float(
            statistics.median(stop - start for start, stop in windows)
        )
    return found


def _collapsed(prepared: PreparedCase) -> bool:
    """Look at what the last window left of the in-place arguments."""
    left = prepared.description.handles_of("inout")
    after = any(inputs.collapsed(prepared.buffers.arrays[h.name]) for h in left)
    prepared.buffers.restore()
    before = any(inputs.collapsed(prepared.buffers.arrays[h.name]) for h in left)
    return after and not before


def _allocations(prepared: PreparedCase) -> dict[str, int]:
    """Count what one more, untimed launch allocates through Python."""
    tracemalloc.start()
    before = tracemalloc.take_snapshot()
    prepared.work.launch(1)
    _, peak = tracemalloc.get_traced_memory()
    differences = tracemalloc.take_snapshot().compare_to(before, "filename")
    tracemalloc.stop()
    prepared.buffers.restore()
    return {
        "peak_bytes": peak,
        "kept_bytes": sum(d.size_diff for d in differences),
        "kept_blocks": sum(d.count_diff for d in differences),
    }
