"""Events behind a blocking kernel: the GPU's stamps before and after a launch.

A single pair scatters by half a microsecond where the caches are cold, so that a trial
wants hundreds of windows. Of several kernels a launch it reads the gaps too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from steelyard.analyse.trial import ClockFacts, Traits
from steelyard.clocks import Reading, offsets
from steelyard.clocks.gpu import Kind
from steelyard.clocks.offsets import OffsetClock, measured
from steelyard.prepare.work import DeviceWork
from steelyard_device import cuda

OWN: Final = 140.0
"""Nanoseconds that a pair reads more round warm kernels that read memory and take
arguments than round a delay: -35 to 300 on an H200, for copies of 4 KiB to 1 GiB, softmax,
LayerNorm and cuBLAS, in ten processes."""

COLD: Final = 100.0
"""Nanoseconds that it reads beyond that where the caches are cold, the stamps' own lines
and the arguments among what was flushed: the same kernels of up to 35 us lay 110 apart
there, each within 90 but for one in thirty."""

OWN_UNKNOWN: Final = 90.0
"""By how much `OWN` may be wrong for nearly all of them, to either side."""

TRAITS: Final[Traits] = {
    "pulsed": True,
    "gapped": True,
    "above": "this kernel takes the GPU longer to launch than the delay that calibrates does",
}


class EventsClock(OffsetClock):
    """Pairs of events, a queue of them behind one spin."""

    def __init__(self, context: cuda.Context) -> None:
        super().__init__(context)
        self._null = cuda.null(context)
        self._pairs: list[cuda.EventPair] = []

    @functools.cached_property
    def facts(self) -> ClockFacts:
        """Its floor is a pair round nothing; its offset that of a delay, and `OWN`."""
        found = measured(self._context)
        offset = found.pair + OWN
        facts = ClockFacts("events", 1, found.tick, found.empty, offset, **TRAITS)
        return self._facts(facts, OWN_UNKNOWN)

    def facts_in(self, cache: str) -> ClockFacts:
        """Return the same, and `COLD` in its offset where the caches are."""
        more = COLD if cache == "cold" else 0.0
        return replace(self.facts, offset=self.facts.offset + more)

    def capacity(self, kernels: int) -> int:
        """Return how many windows of so many kernels fit behind a spin."""
        each = kernels + 2 + offsets.AHEAD + offsets.SHIFTS
        return max(1, cuda.QUEUE // each)

    def read(
        self, work: DeviceWork, windows: int, ahead: Callable[[int], None]
    ) -> list[Reading]:
        """Read windows behind a spin; raises Expired if they were not queued in time."""
        while len(self._pairs) < windows:
            self._pairs.append(cuda.EventPair(self._context))
        pairs = self._pairs[:windows]
        with offsets.queued(self._context, self._spin):
            for place, pair in enumerate(pairs):
                offsets.shift(self._null, place)
                ahead(place)
                pair.before.record()
                work.launch(1)
                pair.after.record()
        return [
            Reading(
                round(pair.nanoseconds()), round(pair.before.since(self._origin)), 0
            )
            for pair in pairs
        ]


CLOCK: Final = Kind(EventsClock, 1, TRAITS)
