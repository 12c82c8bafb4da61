"""The same clock read by native code around a native loop of launches."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, cast

from steelyard.analyse.trial import ClockFacts
from steelyard.machine.ticks import FLOOR_SAMPLES, smallest_step

if TYPE_CHECKING:
    from steelyard.prepare.work import NativeWork, Work


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
