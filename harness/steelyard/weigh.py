"""Weigh one case in one mode in this process: from a case to a trial."""

from __future__ import annotations

import os
import statistics
import tracemalloc
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from time import perf_counter_ns, time_ns
from typing import Any, Final

from steelyard import doubts, inputs, ledger, machine, sampler, work
from steelyard.benchmark import Case, raised
from steelyard.clocks import Clock
from steelyard.clocks.host import HostClock
from steelyard.errors import SteelyardError
from steelyard.mode import Mode
from steelyard.neighbours import Neighbours
from steelyard.prepared import PreparedCase
from steelyard.scale import Scale
from steelyard.settings import Settings
from steelyard.stopping import Stopping
from steelyard.trial import METHOD_VERSION, Trial
from steelyard.windows import window_of
from steelyard_device import cpu

TRIAL_BUDGET: Final = 0.08
"""Seconds of sampling in one trial unless the run has a budget: four blocks of it give a
median of 100 us kernels to a few per mille, and a suite of 100 rows in a minute."""


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
    clock: Clock = scale.host
    record = sampler.Record()
    extra: dict[str, Any] = {
        "began_ns": time_ns(),
        "mhz": [machine.clock_mhz()],
        "checked": prepared.checked,
        "launched": prepared.launched,
        "working_set": prepared.buffers.nbytes,
    }
    found: dict[str, float] = {}
    floors: dict[str, float] = {}
    facts: dict[str, Any] = {}
    error = None
    others = Neighbours()
    try:
        clock = scale.clock(prepared.work, mode)
        facts = prepared.facts()
        with _placed(prepared), sampler.no_collection() as collected:
            steps, stopping = _steps(prepared, mode, scale, clock, settings)
            sampler.sample(steps, record, seed=settings.seed + position)
            extra["gc_ns"] = collected()
            extra["collapsed"] = _collapsed(prepared)
            if mode.quantity == "latency" and mode.cache == "warm":
                found = _ledger(prepared, mode, record)
            if mode.quantity == "build":
                facts = prepared.facts()  # of the last build, no longer of the first
            if mode.cache == "first":
                found = ledger.first(prepared.starts)
                facts |= _second(prepared)
            floors = _floors(prepared, clock, scale)
        extra["settled"] = stopping.settled
        if mode.cache == "cold" and mode.quantity != "build":
            extra["flush_bytes"] = scale.flush.nbytes
        if settings.allocations and prepared.launched:
            extra["allocations"] = _allocations(prepared)
    except SteelyardError as failure:
        error = str(failure)
    except (Exception, SystemExit) as failure:  # noqa: BLE001 # whatever the user's work raises
        error = f"the work raised {raised(failure)}"
    extra["neighbours"] = others.busy()
    extra["mhz"].append(machine.clock_mhz())
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
        floors=floors,
        ledger=found,
        facts=facts,
        hashes=prepared.hashes,
        error=error and f"{prepared.case.id}: {error}",
        extra=extra,
    )
    seen = doubts.raise_doubts(trial, scale.last_level_cache, settings.precision)
    return replace(trial, doubts=seen)


def _placed(prepared: PreparedCase) -> AbstractContextManager[None]:
    """Pin the caller of native work, whose threads have processors of their own.

    A callable may start threads in each call; they would inherit the one processor and
    read as slow as if there were no other.
    """
    native = isinstance(prepared.work, work.NativeWork)
    return cpu.pinned() if native else nullcontext()


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
    window, unit = window_of(prepared, mode, clock)

    def fresh(count: int) -> tuple[int, int]:
        prepared.buffers.restore()
        return window(count)

    cold = mode.cache == "cold" and mode.quantity != "build"
    if cold:
        _ = scale.flush  # calibrated now, not in the first sample's time
    count, short = _warmed_up(fresh, mode, clock)
    budget = settings.budget or TRIAL_BUDGET
    stopping = Stopping(
        settings.precision,
        int(budget * 1e9),
        perf_counter_ns,
        count * unit,
        clock.facts.quantum,
    )
    warms = short and not prepared.buffers.updates and mode.quantity != "build"

    def touch() -> None:
        if warms:
            prepared.work.launch(1)
            prepared.work.wait()

    def settle() -> None:
        if cold:
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


def _warmed_up(window: sampler.Window, mode: Mode, clock: Clock) -> tuple[int, bool]:
    """Run untimed windows; return the units of a timed one, and if a unit is short.

    Afterwards code is loaded, memory touched, and other libraries' threads are up.
    """
    if mode.cache == "first":
        return 1, False
    window(1)
    if mode.cache == "cold":
        return 1, False
    floor = statistics.median(clock.facts.floor)
    count = sampler.launches_for(window, clock.facts.quantum, floor)
    start, stop = window(1)
    return count, stop - start <= sampler.LONGEST_WARM_UP


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


def _second(prepared: PreparedCase) -> dict[str, float]:
    """Return what a second build took in the fresh processes that made one."""
    times = [s[ledger.SECOND] for s in prepared.starts if ledger.SECOND in s]
    return {"second_kernel_ns": float(statistics.median(times))} if times else {}


def _floors(prepared: PreparedCase, clock: Clock, scale: Scale) -> dict[str, float]:
    """Return medians in nanoseconds of what is read around nothing."""
    found = {"empty": float(statistics.median(clock.facts.floor))}
    found["call"] = scale.empty_call
    if isinstance(prepared.work, work.NativeWork):
        nothing = prepared.work.null()
        windows = [clock.window(nothing, 1, dependent=False) for _ in range(21)]
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
