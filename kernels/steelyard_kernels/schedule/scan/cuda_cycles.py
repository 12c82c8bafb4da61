"""What one thread's part of a chain costs, in cycles of a GPU, node by node.

Most operations wait for the one before: an iteration takes the longest way through its
body from what it carries to what it carries on. More threads a chain have fewer
instructions each and further to go for a sum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log2, prod
from typing import Final

from steelyard_kernels.expression.expr import (
    Apply,
    Dot,
    Loop,
    Node,
    Program,
    Reduce,
    Result,
    Row,
)
from steelyard_kernels.ops import OPERATIONS
from steelyard_kernels.ops.row import PLAIN
from steelyard_kernels.schedule.gpu import WARP
from steelyard_kernels.schedule.scan.cuda import CudaScan
from steelyard_kernels.schedule.scan.layout import lane_axis
from steelyard_kernels.schedule.scan.outline import Outline, outline

UNKNOWN: Final = 1000  # iterations of a loop whose length the launch gives

# Cycles from an operation's start to its result, and those in which nothing else of
# its kind is issued, of 4 bytes or less and of 8. Of 178 schedules of the loop of
# `library.noisy_mlp` with its noise ahead (1 to 256 units, 1 to 4096 chains, both types)
# on an H200 this is off by 10 % in the mean, and the chosen is within 2 % of the best in
# the mean, 7 % at most; noise within iterations takes a quarter longer than is said.
ALONE: Final = 1.3  # of a warp that has its scheduler for itself
SHUFFLE: Final = 23.0  # a word from another thread of the warp
MEMORY: Final = 42.0  # there and back through a block's memory
BARRIER: Final = 30.0  # of a block, and how much later each of its warps comes
SKEW: Final = 8.0
LOAD: Final = 60.0  # of a row behind the last one: its line is in the nearest cache
TURN: Final = 8.0  # of the loop itself


@dataclass(frozen=True, slots=True)
class Work:
    """Cycles of one thread: from what is given to what is wanted, and issued in all."""

    way: float = 0.0
    issued: float = 0.0

    def then(self, other: Work) -> Work:
        """Return this and, after it, the other."""
        return Work(self.way + other.way, self.issued + other.issued)

    def times(self, count: float) -> Work:
        """Return this again and again."""
        return Work(self.way * count, self.issued * count)


def vectors(node: Node, group: int) -> int:
    """Return how many registers a thread of a group needs for a node's elements."""
    longest = max(node.shape, default=1)
    return prod(node.shape) // max(longest, 1) * -(-longest // group)


def plain(node: Node) -> tuple[float, float]:
    """Return an addition's cycles in a node's dtype."""
    return PLAIN.gpu(node.dtype.bytes)


def alone(node: Node, count: int) -> float:
    """Return how many times longer instructions of several vectors take one warp.

    Few fit where the first waits for its own results; many are more than the cache of
    instructions holds, and those of 8 bytes have half of a unit.
    """
    return ALONE if node.dtype.bytes == 8 else min(ALONE, 0.4 + 0.1 * count)


def total(node: Node, group: int, count: int) -> Work:
    """Return what a sum of `count` lanes costs a group."""
    latency, each = plain(node)
    if group == 1:
        return Work()
    words = node.dtype.bytes / 4
    stages = log2(min(group, WARP))
    shuffles = Work(stages * (SHUFFLE + latency), stages * (2 * words + each))
    if group > WARP:
        parts = group // WARP
        way = MEMORY + 2 * BARRIER + SKEW * parts + log2(parts) * latency
        block = Work(way, 10 + parts * each)
        return shuffles.then(block)
    if group >= 4 and count * node.dtype.bytes <= 128:
        read = count * node.dtype.bytes / 16
        adding = log2(count) * latency + count * each / 2
        return Work(MEMORY + 2 * read + adding, 4 + read + count * each)
    return shuffles


def cost(node: Node, group: int) -> Work:
    """Return what one node costs a thread."""
    latency, each = plain(node)
    if isinstance(node, Apply):
        latency, each = OPERATIONS[node.op].cost.gpu(node.dtype.bytes)
        count = vectors(node, group)
        return Work(latency + (count - 1) * each * alone(node, count), count * each)
    if isinstance(node, Dot):
        return _dot(node, group)
    if isinstance(node, Reduce):
        rows, extent = prod(node.shape), node.arg.shape[-1]
        held = vectors(node.arg, group)
        once = total(node, group, max(1, min(extent, group)))
        adding = Work(latency + held * each, held * each)
        return adding.then(Work(once.way + (rows - 1) * each, rows * once.issued))
    return Work()


def _dot(node: Dot, group: int) -> Work:
    """Return what a product costs: its sums across lanes, or its elements in each."""
    latency, each = plain(node)
    inner, columns = node.b.shape
    rows = prod(node.a.shape[:-1])
    if lane_axis(node.b.shape) == 0:
        once = total(node, group, min(inner, group))
        sums = rows * columns
        held = -(-inner // group)
        own = Work(held * latency, sums * held * each)
        return own.then(Work(once.way + (sums - 1) * each, sums * once.issued))
    fetched = Work() if group == 1 or inner == 1 else Work(MEMORY, inner)
    products = rows * inner * -(-columns // group)
    way = latency * inner + (products - inner) * each
    return fetched.then(Work(way, products * each))


Count = Callable[[Program, int], int]
"""Counts something of a program for so many threads a chain."""


class Cycles:
    """Counts what chains of a program cost under its schedules.

    Loops are sorted once, and each is counted once for all schedules that differ in
    nothing that it asks; nodes are once for each group.
    """

    def __init__(self) -> None:
        self.outlines: dict[tuple[int, bool], Outline] = {}
        self.bodies: dict[tuple[int, ...], Work] = {}
        self.ways: dict[tuple[int, ...], tuple[Work, Work]] = {}
        self.outside: dict[int, Work] = {}
        self.costs: dict[tuple[int, int], Work] = {}
        self.counts: dict[tuple[Count, int], int] = {}

    def count(self, what: Count, program: Program, group: int) -> int:
        """Return what a function says of a program whose chains have `group` threads."""
        key = what, group
        if key not in self.counts:
            self.counts[key] = what(program, group)
        return self.counts[key]

    def cost(self, node: Node, group: int) -> Work:
        """Return what one node costs a thread."""
        key = node.number, group
        if key not in self.costs:
            self.costs[key] = cost(node, group)
        return self.costs[key]

    def nodes(self, nodes: tuple[Node, ...], schedule: CudaScan) -> Work:
        """Return what a program's nodes cost one after another; a loop is there once."""
        loops = {id(x.loop): x.loop for x in nodes if isinstance(x, Result)}
        group = schedule.group
        if group not in self.outside:
            works = [self.cost(x, group) for x in nodes if not isinstance(x, Result)]
            self.outside[group] = Work(
                sum(work.way for work in works), sum(work.issued for work in works)
            )
        total = self.outside[group]
        for loop in loops.values():
            total = total.then(self.loop(loop, schedule))
        return total

    def loop(self, loop: Loop, schedule: CudaScan) -> Work:
        """Return what all iterations cost."""
        unroll = max(1, loop.unroll or schedule.unroll)
        key = id(loop), schedule.group, schedule.span, schedule.ahead, unroll
        if key not in self.bodies:
            self.bodies[key] = self._body(loop, schedule)
        length = loop.length if isinstance(loop.length, int) else UNKNOWN
        return self.bodies[key].then(Work(0.0, TURN / unroll)).times(length)

    def _outline(self, loop: Loop, *, ahead: bool) -> Outline:
        key = id(loop), ahead
        if key not in self.outlines:
            places = range(len(loop.nexts) + len(loop.stacked))
            self.outlines[key] = outline(loop, places, ahead=ahead)
        return self.outlines[key]

    def _body(self, loop: Loop, schedule: CudaScan) -> Work:
        """Return what one iteration costs, with its share of what is done ahead.

        What needs no carried value is done for all iterations of a turn side by side.
        """
        parts = self._outline(loop, ahead=schedule.ahead)
        both, late = self._ways(loop, parts, schedule)
        turn = max(1, loop.unroll or schedule.unroll)
        apart = late.way + (both.way - late.way) / turn
        apart += (both.issued - late.issued) * (turn - 1) / turn
        once = sum(self.cost(node, 1).issued for node in parts.ahead.nodes)
        share = once / schedule.span
        way = min(both.way, apart)
        return Work(way + ALONE * share, both.issued + share)

    def _ways(
        self, loop: Loop, parts: Outline, schedule: CudaScan
    ) -> tuple[Work, Work]:
        """Return the way through an iteration, and that of what it carries."""
        key: tuple[int, ...] = id(loop), schedule.group, schedule.ahead
        if any(isinstance(node, Result) for node in loop.nodes):
            key = *key, schedule.span, schedule.unroll
        if key not in self.ways:
            late = {carry.number for carry in loop.carries}
            self.ways[key] = (
                self._way(loop, parts, schedule, set()),
                self._way(loop, parts, schedule, late),
            )
        return self.ways[key]

    def _way(
        self, loop: Loop, parts: Outline, schedule: CudaScan, late: set[int]
    ) -> Work:
        """Return the way through an iteration; of what needs one of `late`, if any."""
        ready: dict[int, float] = {}
        inner: dict[int, float] = {}  # when an inner loop is done
        issued, every = 0.0, not late
        for part in (parts.each, parts.condition):
            for node in part.nodes:
                reads = [arg.number for arg in part.reads(node)]
                if not every and not late.intersection(reads):
                    continue
                late.add(node.number)
                begun = max((ready.get(number, 0.0) for number in reads), default=0.0)
                if isinstance(node, Result) and id(node.loop) in inner:
                    ready[node.number] = inner[id(node.loop)]
                    continue
                work = self._node(node, schedule)
                ready[node.number] = begun + work.way
                issued += work.issued
                if isinstance(node, Result):
                    inner[id(node.loop)] = ready[node.number]
        wanted = [node.number for node in loop.nexts]
        if loop.condition is not None:
            wanted.append(loop.condition.number)
        return Work(max((ready.get(n, 0.0) for n in wanted), default=0.0), issued)

    def _node(self, node: Node, schedule: CudaScan) -> Work:
        """Return what a node of a body costs: a loop's result all of its loop."""
        if isinstance(node, Result):
            return self.loop(node.loop, schedule)
        if isinstance(node, Row):
            return Work(LOAD, 2 * vectors(node, schedule.group))
        return self.cost(node, schedule.group)
