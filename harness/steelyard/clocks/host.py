"""The host's monotonic clock, read from Python: for callables and whole calls.

Of kernels, native code reads it around a native loop of launches.
"""

from __future__ import annotations

import functools
from time import perf_counter_ns
from typing import TYPE_CHECKING, cast

from steelyard.analyse.trial import ClockFacts
from steelyard.machine.ticks import FLOOR_SAMPLES, empty_window, smallest_step

if TYPE_CHECKING:
    from steelyard.prepare.work import NativeWork, Work


class HostClock:
    """``time.perf_counter_ns`` around Python calls."""

    @functools.cached_property
    def facts(self) -> ClockFacts:
        """Its floor is what two readings differ by with nothing between them."""
        floor = tuple(empty_window() for _ in range(FLOOR_SAMPLES))
        return ClockFacts("perf_counter_ns", 1, smallest_step(perf_counter_ns), floor)

    @staticmethod
    def nothing() -> ClockFacts:
        """Return the facts of a clock that was never read."""
        return ClockFacts("none", 1, 0.0, ())

    def window(self, work: Work, count: int, *, dependent: bool) -> tuple[int, int]:
        """Launch between two readings; a dependent launch waits for the one before."""
        launch, wait = work.launch, work.wait
        if dependent:
            start = perf_counter_ns()
            for _ in range(count):
                launch(1)
                wait()
            return start, perf_counter_ns()
        start = perf_counter_ns()
        launch(count)
        wait()
        return start, perf_counter_ns()


class NativeClock:
    """``clock_gettime(CLOCK_MONOTONIC)`` in the launching code itself."""

    def __init__(self, work: NativeWork) -> None:
        self._null = work.null()

    @functools.cached_property
    def facts(self) -> ClockFacts:
        """Its floor is a window of no launches."""
        floor = tuple(self._empty() for _ in range(FLOOR_SAMPLES))
        quantum = smallest_step(lambda: self._null.window(0)[1])
        return ClockFacts("clock_gettime", 1, quantum, floor)

    def window(self, work: Work, count: int, *, dependent: bool) -> tuple[int, int]:
        """Launch in the native loop; a fence makes launches dependent."""
        # Asking whether it is native takes 18 us: of a protocol each member is looked for.
        return cast("NativeWork", work).window(count, dependent=dependent)

    def _empty(self) -> int:
        start, stop = self._null.window(0)
        return stop - start
