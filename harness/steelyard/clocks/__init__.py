"""Clocks: each reads a window of launches and knows its quantum and its floor."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from steelyard.analyse.trial import ClockFacts
from steelyard.errors import BenchmarkError

if TYPE_CHECKING:  # commands name clocks: they need no buffers for that
    from steelyard.prepare.work import DeviceWork, Work


class Clock(Protocol):
    """Reads the time around launches."""

    @functools.cached_property
    def facts(self) -> ClockFacts:
        """Its name, version, quantum and floor, measured in this process."""
        ...

    def window(self, work: Work, count: int, *, dependent: bool) -> tuple[int, int]:
        """Launch ``count`` times between two readings; return both, in nanoseconds."""
        ...


@dataclass(frozen=True, slots=True)
class Reading:
    """What a GPU's clock read of one window."""

    ticks: int
    """Nanoseconds as they were read, offset and all."""
    start: int
    """When it began, by a clock of the GPU."""
    kernels: int
    """Activities of the GPU in the window; 0 where the clock does not see them."""


class Expired(BenchmarkError):  # noqa: N818 # what happened, not what it is
    """The host filled a queue later than its spin would wait."""


class DeviceClock(Protocol):
    """Reads the time of launches on a GPU's stream, each a window, many in a queue.

    Several launches in a window would be read with what lies between them. A clock that
    inherits from this reads alike whatever the caches are.
    """

    @functools.cached_property
    def facts(self) -> ClockFacts:
        """Its name, version, quantum, floor and offset, measured in this process."""
        ...

    def facts_in(self, cache: str) -> ClockFacts:
        """Return its facts with the offset of kernels in this state of the cache."""
        del cache
        return self.facts

    def serves(self, cache: str) -> bool:
        """Whether it reads kernels in this state of the cache, ``cold`` or ``warm``."""
        return cache in {"cold", "warm"}

    def capacity(self, kernels: int) -> int:
        """Return how many windows of so many kernels fit into one queue."""
        ...

    def read(
        self,
        work: DeviceWork,
        windows: int,
        ahead: Callable[[int], None],
    ) -> list[Reading]:
        """Read a launch in each window, queued at once and waited for at the end.

        Before each ``ahead`` is given its number; what it submits is not in the window.

        Raises:
            Expired: they were not queued in time; no window is good.
            BenchmarkError: this work cannot be read so.
        """
        ...


def in_queues(
    clock: DeviceClock,
    work: DeviceWork,
    windows: int,
    ahead: Callable[[int], None],
    kernels: int = 1,
) -> list[Reading]:
    """Read as many windows of so many kernels, in as many queues as they need.

    Raises as a clock's ``read`` does.
    """
    room, readings = clock.capacity(kernels), list[Reading]()
    while len(readings) < windows:
        some = min(room, windows - len(readings))
        readings += clock.read(work, some, ahead)
    return readings
