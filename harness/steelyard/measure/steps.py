"""Host-timed sampling: restore, warm or flush, time, check."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from time import perf_counter_ns
from typing import Any, Final

from steelyard.analyse import stats
from steelyard.analyse.trial import ClockFacts
from steelyard.clocks import Clock
from steelyard.declare.mode import Mode
from steelyard.declare.settings import Settings
from steelyard.measure import sampler
from steelyard.measure.instruments import Instruments
from steelyard.measure.interleave import Token
from steelyard.measure.prepared import PreparedCase
from steelyard.measure.regions import window_of
from steelyard.measure.stopping import Stopping
from steelyard.prepare import work
from steelyard_device.cuda import activity

LONG: Final = 20_000_000
"""Nanoseconds of two windows of one unit after which no more are run untimed: the first
alone may be of what is loaded and compiled then."""

TRIAL_BUDGET: Final = 0.08
"""Seconds of sampling in one trial unless the run has a budget: four blocks of it give a
median of 100 us kernels to a few per mille, and a suite of 100 rows in a minute."""


def called(
    prepared: PreparedCase,
    mode: Mode,
    scale: Instruments,
    clock: Clock,
    settings: Settings,
    *,
    record: sampler.Record,
    seed: int,
) -> dict[str, Any]:
    """Sample windows that a clock of the host reads; return what is reported beside the samples."""
    if isinstance(prepared.work, work.DeviceWork):
        activity.detach()  # CUPTI's hooks make each launch cost the host a third more
    steps, stopping = _steps(prepared, mode, scale, clock, settings)
    if scale.baton is not None:
        steps = _in_turn(steps, stopping, scale.baton)
    with _capped(prepared, scale) as capped:
        sampler.sample(steps, record, seed)
    extra: dict[str, Any] = {"settled": stopping.settled}
    if capped is not None:
        extra["capped"] = capped
    if mode.cache == "cold" and mode.quantity != "build":
        if isinstance(prepared.work, work.DeviceWork):
            extra["l2_flush_bytes"] = scale.on(prepared.work.context).flush.nbytes
        else:
            extra["flush_bytes"] = scale.flush.nbytes
    return extra


def _capped(
    prepared: PreparedCase, scale: Instruments
) -> AbstractContextManager[Mapping[str, Any] | None]:
    """Watch whether a GPU's clock is held back, where work runs on one."""
    weighed = prepared.work
    if isinstance(weighed, work.DeviceWork):
        return scale.on(weighed.context).capped()
    return nullcontext()


def _in_turn(steps: sampler.Steps, stopping: Stopping, baton: Token) -> sampler.Steps:
    """Return steps whose windows are taken in turn with another worker's."""
    count = baton.agree(steps.count)
    stopping.begin()

    def finished(taken: float) -> bool:
        enough = stopping.finished(taken) or stopping.overdue
        return baton.finished(enough=enough)

    return replace(steps, count=count, finished=finished)


def stopping_of(settings: Settings, launches: int, clock: ClockFacts) -> Stopping:
    """Return what ends a trial whose windows have so many launches, read by a clock."""
    return Stopping(
        settings.precision,
        int((settings.budget or TRIAL_BUDGET) * 1e9),
        perf_counter_ns,
        launches,
        clock.quantum,
        pulsed=clock.pulsed,
    )


def _steps(
    prepared: PreparedCase,
    mode: Mode,
    scale: Instruments,
    clock: Clock,
    settings: Settings,
) -> tuple[sampler.Steps, Stopping]:
    window, unit = window_of(prepared, mode, clock)

    def fresh(count: int) -> tuple[int, int]:
        prepared.buffers.restore()
        return window(count)

    settle = settling(prepared, mode, scale)
    count, short = _warmed_up(fresh, mode, clock)
    stopping = stopping_of(settings, count * unit, clock.facts)
    warms = short and not prepared.buffers.updates and mode.quantity != "build"

    def touch() -> None:
        if warms:
            prepared.work.launch(1)
            prepared.work.wait()

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


def settling(
    prepared: PreparedCase, mode: Mode, scale: Instruments
) -> Callable[[], None]:
    """Return what makes caches cold, where that is asked for, and threads ready.

    Before a window of the host's clock nothing may be left for a GPU to do.
    """
    weighed = prepared.work
    cold = mode.cache == "cold" and mode.quantity != "build"
    flush: Callable[[], None]
    if isinstance(weighed, work.DeviceWork):
        ready, flush = weighed.wait, scale.on(weighed.context).flush
    else:
        ready = weighed.ready
        # Calibrated now, not in the first sample's time.
        flush = scale.flush if cold else ready
    if not cold:
        return ready

    def settle() -> None:
        flush()
        ready()

    return settle


def _warmed_up(window: sampler.Window, mode: Mode, clock: Clock) -> tuple[int, bool]:
    """Run untimed windows; return the units of a timed one, and if a unit is short.

    Afterwards code is loaded, memory touched, and other libraries' threads are up.
    """
    if mode.cache == "first":
        return 1, False
    took = _length(window(1))
    if mode.cache == "cold":
        return 1, False
    floor = statistics.median(clock.facts.floor)
    enough = max(clock.facts.quantum, floor) / stats.QUANTISED_SHARE
    long = max(LONG, enough)
    if took > long and _length(window(1)) > long:
        return 1, False
    count = sampler.launches_for(window, clock.facts.quantum, floor)
    return count, _length(window(1)) <= sampler.LONGEST_WARM_UP


def _length(window: tuple[int, int]) -> int:
    start, stop = window
    return stop - start
