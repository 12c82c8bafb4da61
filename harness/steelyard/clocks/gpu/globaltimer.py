"""The GPU's timer as our own kernels read it: from the first block to the last."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final, Protocol, runtime_checkable

from steelyard.analyse.trial import ClockFacts, Traits
from steelyard.clocks import Reading, offsets
from steelyard.clocks.gpu import Kind
from steelyard.clocks.offsets import OffsetClock
from steelyard.errors import BenchmarkError
from steelyard.machine.ticks import common_tick
from steelyard.prepare.work import DeviceWork
from steelyard_device import cuda

OWN: Final = 80.0
"""Nanoseconds that more lie outside a kernel of many blocks than outside a delay: -140 to
160 around it on an H200, for softmax, LayerNorm and most copies."""

OWN_UNKNOWN: Final = 140.0
"""By how much `OWN` may be wrong, to either side."""

CAPACITY: Final = 64
"""Windows in a queue; each is waited for by itself."""


class StampedWork(Protocol):
    """A kernel that writes down its own time."""

    def launch(self, count: int = 1) -> None:
        """Submit ``count`` launches."""
        ...

    def wait(self) -> None:
        """Return when they are done."""
        ...

    def nanoseconds(self) -> int:
        """Return the last launch's time, by the GPU's timer."""
        ...


@runtime_checkable
class Stampable(Protocol):
    """Work that has a copy of itself that writes down its time."""

    def stamped(self) -> StampedWork:
        """Return the copy; it may use a few registers more."""
        ...


TRAITS: Final[Traits] = {
    "pulsed": True,
    "differs": "the kernel that writes down its time is a build of its own, with more registers",
}


class GlobaltimerClock(OffsetClock):
    """``%globaltimer`` in the kernel: what lies outside its instructions is its offset."""

    def __init__(self, context: cuda.Context) -> None:
        super().__init__(context)
        self._made: tuple[DeviceWork, StampedWork] | None = None
        self._now = cuda.Event(context)

    @functools.cached_property
    def facts(self) -> ClockFacts:
        """It reads less than the kernel takes: its offset is below nothing."""
        times = []
        for delay in offsets.delays(self._context) * 4:
            delay.launch()
            times.append(delay.nanoseconds())
        offset, tick = -offsets.launch(self._context) - OWN, common_tick(times, slack=0)
        facts = ClockFacts("globaltimer", 1, tick, (), offset, **TRAITS)
        return self._facts(facts, OWN_UNKNOWN)

    def capacity(self, kernels: int) -> int:
        """Return the same for any kernels: none stands behind a spin."""
        del kernels
        return CAPACITY

    def read(
        self, work: DeviceWork, windows: int, ahead: Callable[[int], None]
    ) -> list[Reading]:
        """Read windows one by one: what leads to one is queued with its launch.

        Raises:
            BenchmarkError: the work does not write down its time.
        """
        stamped = self._stamped(work)
        readings = []
        for place in range(windows):
            ahead(place)
            self._now.record()
            stamped.launch()
            stamped.wait()
            start = round(self._now.since(self._origin))
            readings.append(Reading(stamped.nanoseconds(), start, 0))
        return readings

    def _stamped(self, work: DeviceWork) -> StampedWork:
        if self._made is None or self._made[0] is not work:
            if not isinstance(work, Stampable):
                raise BenchmarkError(
                    "the clock of globaltimer reads kernels of steelyard_kernels alone, "
                    "which write down their own time: measure this one with --clock "
                    "cupti or --clock events."
                )
            self._made = (work, work.stamped())
        return self._made[1]


CLOCK: Final = Kind(GlobaltimerClock, 3, TRAITS)
