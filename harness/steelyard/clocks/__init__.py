"""Clocks: each reads a window of launches and knows its quantum and its floor."""

from __future__ import annotations

import functools
from typing import Protocol

from steelyard.trial import ClockFacts
from steelyard.work import Work


class Clock(Protocol):
    """Reads the time around launches."""

    @functools.cached_property
    def facts(self) -> ClockFacts:
        """Its name, version, quantum and floor, measured in this process."""
        ...

    def window(self, work: Work, count: int, *, dependent: bool) -> tuple[int, int]:
        """Launch ``count`` times between two readings; return both, in nanoseconds."""
        ...
