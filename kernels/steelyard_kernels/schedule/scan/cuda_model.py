"""Candidates of the scan strategy on a GPU, and what each is predicted to cost.

A chain is a row of operations of which most wait for the one before: an iteration
takes the longest way through its body from what it carries to what it carries on, or
the instructions of all warps of a scheduler, whichever is longer. More threads a chain
have fewer instructions each and further to go for a sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import ceil, log2, prod
from typing import Final

from steelyard_kernels.expr import (
    Apply,
    Dot,
    Loop,
    Node,
    Program,
    Reduce,
    Result,
    Row,
    everywhere,
    loops,
    operands,
)
from steelyard_kernels.schedule.gpu import RAMP_NS, SIDES, WARP, Gpu, most_registers
from steelyard_kernels.schedule.model import Prediction
from steelyard_kernels.schedule.scan.cuda import GROUPS, CudaScan, check, unordered
from steelyard_kernels.schedule.scan.layout import lane_axis, layout
from steelyard_kernels.schedule.scan.outline import outline

CYCLE_NS: Final = 1 / 1.98  # of an H200 that has little to do
BLOCK_THREADS: Final = (WARP, 4 * WARP, 8 * WARP)
UNROLLS: Final = (1, 4)
UNKNOWN: Final = 1000  # iterations of a loop whose length the launch gives

# Cycles from an operation's start to its result, and those in which nothing else of
# its kind is issued, of 4 bytes or less and of 8. Of 178 schedules of the loop of
# `library.noisy_mlp` (1 to 256 units, 1 to 4096 chains, both types) on an H200 this is
# off by 10 % in the mean; the chosen is within 2 % of the best in the mean, 7 % at most.
PLAIN: Final = {4: (4.0, 1.0), 8: (8.0, 2.0)}
SLOW: Final = {
    op: {4: narrow, 8: wide}
    for ops, narrow, wide in (
        ("divide sqrt rsqrt", (45.0, 14.0), (150.0, 40.0)),
        ("exp log", (40.0, 10.0), (140.0, 50.0)),
        ("sigmoid tanh", (82.0, 29.0), (196.0, 105.0)),
        ("softplus log1p expm1", (90.0, 30.0), (280.0, 100.0)),
        ("sinpi cospi", (60.0, 20.0), (200.0, 70.0)),
        ("erf_inv", (120.0, 40.0), (350.0, 150.0)),
    )
    for op in ops.split()
}
ALONE: Final = 1.3  # of a warp that has its scheduler for itself
SHUFFLE: Final = 23.0  # a word from another thread of the warp
MEMORY: Final = 42.0  # there and back through a block's memory
BARRIER: Final = 30.0  # of a block, and how much later each of its warps comes
SKEW: Final = 8.0
LOAD: Final = 60.0  # of a row behind the last one: its line is in the nearest cache
TURN: Final = 8.0  # of the loop itself
# Registers of a thread besides its values, and what an operation needs on its way.
OWN_REGISTERS: Final = 24
MOST_HELD: Final = 200
# Building takes about 0.25 ms an operation on a vector, for perhaps 5000 launches.
BUILD_NS: Final = 50.0


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
    return len(layout(node.shape, group))


def plain(node: Node) -> tuple[float, float]:
    """Return an addition's cycles in a node's dtype."""
    return PLAIN[8 if node.dtype.bytes == 8 else 4]


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
        row = SLOW.get(node.op)
        if row is not None:
            latency, each = row[8 if node.dtype.bytes == 8 else 4]
        count = vectors(node, group)
        return Work(latency + (count - 1) * each * alone(node, count), count * each)
    if isinstance(node, Dot):
        return _dot(node, group)
    if isinstance(node, Reduce):
        rows, extent = prod(node.shape), node.arg.shape[-1]
        held = vectors(node.arg, group)
        once = total(node, group, min(extent, group))
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


def body_work(loop: Loop, schedule: CudaScan) -> Work:
    """Return what one iteration costs, with its share of what is done ahead."""
    parts = outline(
        loop, range(len(loop.nexts) + len(loop.stacked)), ahead=schedule.ahead
    )
    ready: dict[int, float] = {}
    issued = TURN / max(1, schedule.unroll)
    for node in (*parts.each.nodes, *parts.condition.nodes):
        work = node_work(node, schedule)
        begun = max((ready.get(arg.number, 0.0) for arg in operands(node)), default=0.0)
        ready[node.number] = begun + work.way
        issued += work.issued
    wanted = [node.number for node in loop.nexts]
    if loop.condition is not None:
        wanted.append(loop.condition.number)
    way = max((ready.get(number, 0.0) for number in wanted), default=0.0)
    ahead = Work()
    for node in parts.ahead.nodes:
        ahead = ahead.then(cost(node, 1))
    share = ahead.times(1 / schedule.span)
    return Work(way + ALONE * share.issued, issued + share.issued)


def node_work(node: Node, schedule: CudaScan) -> Work:
    """Return what a node of a body costs: a loop's result all of its loop."""
    if isinstance(node, Result):
        return loop_work(node.loop, schedule)
    if isinstance(node, Row):
        return Work(LOAD, 2 * vectors(node, schedule.group))
    return cost(node, schedule.group)


def loop_work(loop: Loop, schedule: CudaScan) -> Work:
    """Return what all iterations cost."""
    length = loop.length if isinstance(loop.length, int) else UNKNOWN
    return body_work(loop, schedule).times(length)


def held(program: Program, group: int) -> int:
    """Return about how many registers a thread's values need."""
    most = 0
    outside = 0
    for node in program.nodes:
        if isinstance(node, Result):
            outside += _registers(node, group)
    for loop in loops(everywhere(program.nodes)):
        kept = sum(_registers(n, group) for n in (*loop.free, *loop.carries))
        inside = max((_registers(n, group) for n in loop.nodes), default=0)
        most = max(most, kept + 2 * inside)
    alone = max((_registers(n, group) for n in program.nodes), default=0)
    return OWN_REGISTERS + max(most, 2 * alone)


def _registers(node: Node, group: int) -> int:
    """Return the registers of a node's elements; what only rows are read of has none."""
    if prod(node.shape) > MOST_HELD * GROUPS[-1]:
        return 0
    return vectors(node, group) * max(1, node.dtype.bytes // 4)


def estimate_registers(program: Program, schedule: CudaScan) -> int:
    """Return about how many registers a thread will use."""
    most = schedule.registers or most_registers(schedule.threads)
    return min(held(program, schedule.group), most)


def widest(program: Program) -> int:
    """Return the longest lane axis of what a body, or the program, computes."""
    nodes = [
        node
        for node in everywhere(program.nodes)
        if isinstance(node, Apply | Dot | Reduce) and node.shape
    ]
    return max((max(node.shape) for node in nodes), default=1)


def groups(program: Program) -> list[int]:
    """Return the threads a chain that are worth trying: no more than it has lanes."""
    lanes = widest(program)
    fitting = [g for g in GROUPS if g < 2 * lanes or g == 1]
    if unordered(program, CudaScan(WARP, 1, 1, ahead=False)):
        return [1]
    small = [g for g in fitting if held(program, g) <= MOST_HELD]
    return small[:6] if small else fitting[-1:]


def candidates(
    program: Program,
    gpu: Gpu,  # noqa: ARG001 - the same for all
    *,
    aligned: bool = True,  # noqa: ARG001 - elements go one by one
) -> tuple[CudaScan, ...]:
    """Return every schedule worth trying, in order."""
    return tuple(_candidates(program))


def _candidates(program: Program) -> Iterator[CudaScan]:
    some = program.chains > 1
    turns = UNROLLS if loops(everywhere(program.nodes)) else UNROLLS[:1]
    aheads = (True, False) if len(turns) > 1 else (False,)
    for group in groups(program):
        sizes = {1}
        if some and group <= WARP:
            full = {threads // group for threads in BLOCK_THREADS}
            sizes |= {count for count in full if count < 2 * program.chains}
        for chains, unroll, ahead in product(sorted(sizes), turns, aheads):
            yield CudaScan(group, chains, unroll, ahead)


def predict(program: Program, schedule: CudaScan, gpu: Gpu) -> Prediction:
    """Predict one launch, in nanoseconds."""
    check(program, schedule)
    chain = Work()
    seen: set[int] = set()
    for node in program.nodes:
        if isinstance(node, Result):
            if id(node.loop) not in seen:
                seen.add(id(node.loop))
                chain = chain.then(loop_work(node.loop, schedule))
        else:
            chain = chain.then(cost(node, schedule.group))
    blocks = ceil(max(1, program.chains) / schedule.chains)
    need = estimate_registers(program, schedule)
    resident = max(1, gpu.blocks_resident(schedule.threads, need))
    waves = ceil(blocks / (resident * gpu.multiprocessors))
    beside = min(resident, ceil(blocks / gpu.multiprocessors))
    warps = ceil(beside * schedule.threads / WARP / SIDES)
    one = chain.way * CYCLE_NS
    both = hypot4(one, warps * chain.issued * CYCLE_NS)
    text = len(tuple(everywhere(program.nodes))) * max(1, schedule.unroll)
    return Prediction(
        (
            ("ramp", RAMP_NS),
            ("one chain", one * waves),
            ("other warps", (both - one) * waves),
            ("build share", text * vectors_share(program, schedule) * BUILD_NS),
        )
    )


def hypot4(a: float, b: float) -> float:
    """Return what two times take that hide behind each other, but for the ends."""
    return float((a**4 + b**4) ** 0.25)


def vectors_share(program: Program, schedule: CudaScan) -> float:
    """Return how many vectors an operation has in the mean: the length of the text."""
    nodes = [n for n in everywhere(program.nodes) if isinstance(n, Apply | Dot)]
    counts = [vectors(node, schedule.group) for node in nodes]
    return sum(counts) / len(counts) if counts else 1.0


def rank(
    program: Program,
    gpu: Gpu,
    *,
    aligned: bool = True,
) -> list[tuple[CudaScan, Prediction]]:
    """Return every candidate with its prediction, in order."""
    return [
        (schedule, predict(program, schedule, gpu))
        for schedule in candidates(program, gpu, aligned=aligned)
    ]


def heuristic(program: Program, gpu: Gpu, *, aligned: bool = True) -> CudaScan:
    """Return the best predicted candidate."""
    ranked = rank(program, gpu, aligned=aligned)
    return min(ranked, key=lambda row: (row[1].total, row[0]))[0]
