"""The host's monotonic clock, read from Python: for callables and whole calls."""

from __future__ import annotations

import functools
from time import perf_counter_ns

from steelyard.analyse.trial import ClockFacts
from steelyard.machine.ticks import FLOOR_SAMPLES, empty_window, smallest_step
from steelyard.prepare.work import Work


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
