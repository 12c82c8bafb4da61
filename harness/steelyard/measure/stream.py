"""Host-timed windows: restore, warm or flush, time, check."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Generator
from contextlib import nullcontext
from dataclasses import dataclass
from time import (
    CLOCK_MONOTONIC_RAW,
    clock_gettime_ns,
    process_time_ns,
    thread_time_ns,
)
from typing import Any, Final

from steelyard.analyse.stats import QUANTISED_SHARE
from steelyard.clocks import Clock
from steelyard.declare.mode import Mode
from steelyard.declare.plan import Settings
from steelyard.errors import BenchmarkError
from steelyard.measure.instruments import Instruments
from steelyard.measure.prepared import PreparedCase
from steelyard.measure.regions import Window, window_of
from steelyard.measure.sampler import Record, Sampling, preemptions, sample, stopping_of
from steelyard.prepare import work
from steelyard_device.cpu import pool_used

LONG: Final = 20_000_000
"""Nanoseconds of two windows of one unit after which no more are run untimed: the first
alone may be of what is loaded and compiled then."""

LONGEST_WARM_UP: Final = 1_000_000
"""Nanoseconds a launch may take to be repeated untimed before each warm window; a longer
one warms its own caches within the window."""

STILL: Final = 3_000
"""Times that a window may take longer by another clock than by its own: with a clock of
50 ns that is 0.03 s for what it reads as less than 10 us."""

MANY: Final = 1 << 24
"""Launches that no machine does in a window's time."""


@dataclass(slots=True)
class HostStream:
    """Windows that a clock of the host reads, each for itself."""

    restore: Callable[[], None]
    """Gives in-place arguments their data again."""
    warm_caches: Callable[[], None]
    """Warms the caches again by an untimed launch, where that is asked for, or two: work
    that alternates, such as between two buffers, would have all windows in one phase."""
    flush_caches: Callable[[], None]
    """Makes the caches cold where that is asked for, and wakes the threads."""
    window: Window
    count: int
    """Units of work in a window."""
    unit: int
    """Launches in a unit."""
    poison: Callable[[], None]
    checks: Callable[[int], None]
    """Checks the outputs of a window of so many launches; raises if they are wrong."""
    room: int = 1

    def take(self, windows: int, record: Record, *, poison: bool) -> list[float]:
        """Take one window; return its nanoseconds per launch."""
        del windows  # one at a time, whatever is asked for
        self.restore()
        self.warm_caches()
        # Between the two: the untimed launch must not write what is then checked, and
        # cold caches must not hold the poison.
        if poison:
            self.poison()
        self.flush_caches()
        lost = preemptions()
        pool = pool_used()
        cpu, own = process_time_ns(), thread_time_ns()
        record.began = record.began or other_clock()
        start, stop = self.window(self.count)
        record.ended = other_clock()
        own = thread_time_ns() - own
        cpu = max(own, _of_work(process_time_ns() - cpu, pool, pool_used()))
        lost = preemptions() - lost
        require_forward(record, start, stop)
        return [record.add(start, stop, self.count * self.unit, cpu, lost)]

    def check(self) -> None:
        """Check the outputs of the window."""
        self.checks(self.count * self.unit)


def called(
    prepared: PreparedCase,
    mode: Mode,
    scale: Instruments,
    clock: Clock,
    settings: Settings,
    *,
    record: Record,
    seed: int,
) -> Generator[Sampling, None, dict[str, Any]]:
    """Sample windows that a clock of the host reads; return what is reported beside the samples."""
    bound = prepared.work
    gpu = scale.on(bound.context) if isinstance(bound, work.DeviceWork) else None
    if gpu:
        from steelyard_device.cuda import activity

        activity.detach()  # CUPTI's hooks make each launch cost the host a third more
    stream = stream_of(prepared, mode, scale, clock)
    stopping = stopping_of(settings, stream.count * stream.unit, clock.facts)
    with gpu.capped() if gpu else nullcontext() as capped:
        yield from sample(stream, record, seed, stopping)
    extra: dict[str, Any] = {"settled": stopping.settled}
    if capped is not None:
        extra["capped"] = capped
    if mode.cache == "cold" and mode.quantity != "build":
        name = "l2_flush_bytes" if gpu else "flush_bytes"
        extra[name] = (gpu or scale).flush.nbytes
    return extra


def stream_of(
    prepared: PreparedCase, mode: Mode, scale: Instruments, clock: Clock
) -> HostStream:
    """Return the windows of a case in a mode, warmed up."""
    window, unit = window_of(prepared, mode, clock)

    def fresh(count: int) -> tuple[int, int]:
        prepared.buffers.restore()
        return window(count)

    flush_caches = flushing(prepared, mode, scale)
    count, short = _warmed_up(fresh, mode, clock)
    warms = short and not prepared.buffers.updates and mode.quantity != "build"

    coin = random.Random(0)  # noqa: S311 # nobody's secret: any phase of what alternates

    def warm_caches() -> None:
        if warms:
            prepared.work.launch(1 + coin.getrandbits(1))
            prepared.work.wait()

    def check(launches: int) -> None:
        if mode.quantity != "build" and mode.flavour != "allocated":
            prepared.check(launches)

    return HostStream(
        restore=prepared.buffers.restore,
        warm_caches=warm_caches,
        flush_caches=flush_caches,
        window=window,
        count=count,
        unit=unit,
        poison=prepared.buffers.poison,
        checks=check,
    )


def _of_work(spent: int, before: tuple[int, int], after: tuple[int, int]) -> int:
    """Return the processor time of a window without what our pool's threads idled.

    They flushed the caches before it and looked for more; if the work launched on the
    pool, their time is its. It may be more than the process's: that is read within, and
    Linux adds what other threads had to it some milliseconds late.
    """
    return max(0, spent - (after[1] - before[1]) * (before[0] == after[0]))


def flushing(
    prepared: PreparedCase, mode: Mode, scale: Instruments
) -> Callable[[], None]:
    """Return what makes caches cold, where that is asked for, and threads ready.

    Before a window of the host's clock nothing may be left for a GPU to do.
    """
    bound = prepared.work
    cold = mode.cache == "cold" and mode.quantity != "build"
    flush: Callable[[], None]
    if isinstance(bound, work.DeviceWork):
        ready, flush = bound.wait, scale.on(bound.context).flush
    else:
        ready = bound.ready
        # Calibrated now, not in the first sample's time.
        flush = scale.flush if cold else ready
    if not cold:
        return ready

    def flush_caches() -> None:
        flush()
        ready()

    return flush_caches


def _warmed_up(window: Window, mode: Mode, clock: Clock) -> tuple[int, bool]:
    """Run untimed windows; return the units of a timed one, and if a unit is short.

    Afterwards code is loaded, memory touched, and other libraries' threads are up.
    """
    if mode.cache == "first":
        return 1, False
    took = _length(window(1))
    if mode.cache == "cold":
        return 1, False
    floor = statistics.median(clock.facts.floor)
    enough = max(clock.facts.quantum, floor) / QUANTISED_SHARE
    long = max(LONG, enough)
    if took > long and _length(window(1)) > long:
        return 1, False
    count = launches_for(window, clock.facts.quantum, floor)
    return count, _length(window(1)) <= LONGEST_WARM_UP


def launches_for(window: Window, quantum: float, floor: float) -> int:
    """Return how many launches make a window long enough.

    The clock's quantum, and what it reads around nothing, are then at most
    `QUANTISED_SHARE` of the window.
    """
    wanted = max(quantum, floor) / QUANTISED_SHARE
    if wanted == math.inf:
        raise stands_still()
    count = 1
    while True:
        windows = [_twice_timed(window, count) for _ in range(3)]
        taken, _ = min(windows)
        # All of them: in one the process may have been held up between two readings.
        if all(other > STILL * max(wanted, own) for own, other in windows):
            raise stands_still()
        if taken >= wanted:
            return count
        if count >= MANY:
            raise BenchmarkError(
                f"{count} launches take {taken} ns, as few do: the work does not launch "
                "as often as it is asked to. Look at what its launch does with count."
            )
        # Half as much again as the last window promises: the first are cold.
        count = max(count + 1, int(min(100 * count, 1.5 * count * wanted / taken)))


def _twice_timed(window: Window, count: int) -> tuple[int, int]:
    """Return the nanoseconds (at least 1) of a window by its own clock and another."""
    began = other_clock()
    start, stop = window(count)
    return max(1, stop - start), other_clock() - began


def stands_still() -> BenchmarkError:
    """Return the error of a clock that does not move."""
    return BenchmarkError(
        "the clock stands still while launches run; no time can be read from it. "
        "Choose another clock, or look at the clock source of this machine."
    )


def _length(window: tuple[int, int]) -> int:
    start, stop = window
    return stop - start


def other_clock() -> int:
    """Read the clock that the one of the windows is held against."""
    return clock_gettime_ns(CLOCK_MONOTONIC_RAW)


def require_forward(record: Record, start: int, stop: int) -> None:
    """Refuse a window of a clock that steps back, in it or since the last.

    Raises:
        BenchmarkError: it does.
    """
    last = record.starts[-1] if record.starts else start
    back = max(start - stop, last - start)
    if back > 0:
        raise BenchmarkError(
            f"the clock stepped back by {back} ns; no time can be read from it. Look "
            "for what sets the clock of this machine."
        )
