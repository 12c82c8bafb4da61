"""Graph differences: what twice as many nodes of a CUDA graph take longer."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Final

from steelyard.analyse.trial import ClockFacts, Traits
from steelyard.clocks import Reading, offsets
from steelyard.clocks.gpu import Kind
from steelyard.clocks.offsets import OffsetClock, measured
from steelyard.errors import BenchmarkError
from steelyard.prepare.work import DeviceWork
from steelyard_device import cuda

OWN: Final = 60.0
"""Nanoseconds that a node of a kernel that uses memory takes more than a delay's, next
to CUPTI: 0 for cuBLAS and large copies, 70 to 100 for copies up to 1 MiB on an H200."""

OWN_UNKNOWN: Final = 120.0
"""By how much `OWN` may be wrong, to either side. Copies of 12 to 16 MiB find another
state of the cache in a graph, and took 0.15 us less there."""

SCATTER: Final = 60_000
"""Nanoseconds of a graph in which the 300 ns that two pairs scatter by are 0.5 %."""

FEWEST, MOST = 4, 100
"""Nodes of the shorter graph."""

CAPACITY: Final = 8
"""Windows in a queue: how much room a graph takes there the driver does not say."""

TRAITS: Final[Traits] = {
    "pulsed": True,
    "gapped": True,
    "differs": "kernels of a graph follow one another, and find another state of the caches",
}


class GraphClock(OffsetClock):
    """The time of a node: of a kernel that follows another one, hand-over and all."""

    def __init__(self, context: cuda.Context) -> None:
        super().__init__(context)
        self._pairs = [
            (cuda.EventPair(context), cuda.EventPair(context)) for _ in range(CAPACITY)
        ]
        self._made: tuple[DeviceWork, tuple[int, cuda.Graph, cuda.Graph]] | None = None

    @functools.cached_property
    def facts(self) -> ClockFacts:
        """Its floor is a pair round nothing; its offset a delay's hand-over, and `OWN`."""
        found = measured(self._context)
        offset = offsets.node(self._context) + OWN
        facts = ClockFacts("graph", 1, found.tick, found.empty, offset, **TRAITS)
        return self._facts(facts, OWN_UNKNOWN)

    def serves(self, cache: str) -> bool:
        """Warm caches alone: a node follows the one before it."""
        return cache == "warm"

    def capacity(self, kernels: int) -> int:
        """Return how many windows of so many kernels fit behind a spin."""
        each = kernels + 2 * (offsets.AHEAD + 3)
        return max(1, min(CAPACITY, cuda.QUEUE // each))

    def read(
        self, work: DeviceWork, windows: int, ahead: Callable[[int], None]
    ) -> list[Reading]:
        """Read nodes of two graphs for each window, and leave what one launch does.

        Raises:
            Expired: they were not queued in time.
            BenchmarkError: the work cannot be recorded in a graph.
        """
        nodes, short, long = self._graphs(work)
        pairs = self._pairs[:windows]
        with offsets.queued(self._context, self._spin):
            for place, (first, second) in enumerate(pairs):
                for pair, graph in ((first, short), (second, long)):
                    ahead(place)
                    pair.before.record()
                    graph.launch()
                    pair.after.record()
                ahead(place)
                work.launch(1)
        readings = []
        for first, second in pairs:
            node = (second.nanoseconds() - first.nanoseconds()) / nodes
            start = round(first.before.since(self._origin))
            readings.append(Reading(round(node), start, 0))
        return readings

    def _graphs(self, work: DeviceWork) -> tuple[int, cuda.Graph, cuda.Graph]:
        """Return the nodes of the shorter graph, and both; made once for a work."""
        if self._made is not None and self._made[0] is work:
            return self._made[1]
        self._made = None
        nodes = self._nodes(work)
        try:
            graphs = nodes, cuda.Graph(work, nodes), cuda.Graph(work, 2 * nodes)
        except Exception as error:
            raise BenchmarkError(
                f"the work cannot be recorded in a CUDA graph ({error}): measure it "
                "with --clock cupti or --clock events."
            ) from error
        self._made = (work, graphs)
        return graphs

    def _nodes(self, work: DeviceWork) -> int:
        """Return how many nodes of a work make the scatter of pairs small."""
        pair, _ = self._pairs[0]
        work.launch(1)
        with offsets.queued(self._context, self._spin):
            pair.before.record()
            work.launch(1)
            pair.after.record()
        kernel = max(1.0, pair.nanoseconds() - measured(self._context).pair)
        return min(max(math.ceil(SCATTER / kernel), FEWEST), MOST)


CLOCK: Final = Kind(GraphClock, 2, TRAITS)
