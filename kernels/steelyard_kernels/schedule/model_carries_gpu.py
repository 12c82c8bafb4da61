"""What programs that carry state cost on a GPU, in cycles of a chain's threads.

More threads a chain have fewer instructions each and further to go for a sum. A chain
takes the longest way through its iterations, or the instructions of all warps of a
scheduler, whichever is longer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import ceil, log2, prod
from typing import Final

from steelyard_kernels.expression import expr
from steelyard_kernels.expression.expr import Node, Program
from steelyard_kernels.expression.structure import everywhere
from steelyard_kernels.nest.carried.outline import Outline, in_memory
from steelyard_kernels.nest.carried.tensor import lane_axis, line_steps
from steelyard_kernels.ops import OPERATIONS
from steelyard_kernels.ops.row import PLAIN
from steelyard_kernels.schedule.carries import GROUPS, Knobs, knobs_of
from steelyard_kernels.schedule.gpu import RAMP_NS, SIDES, WARP, Gpu, most_registers
from steelyard_kernels.schedule.model import Prediction
from steelyard_kernels.schedule.model_carries import Costs, Work
from steelyard_kernels.schedule.schedule import Schedule

# Cycles from an operation's start to its result, and those in which nothing else of
# its kind is issued, of 4 bytes or less and of 8. Of 178 schedules of the loop of
# `library.noisy_mlp` with its noise ahead (1 to 256 units, 1 to 4096 chains, both types)
# on an H200 this is off by 10 % in the mean, and the chosen is within 2 % of the best in
# the mean, 7 % at most; noise within iterations takes a quarter longer than is said.
CYCLE_NS: Final = 1 / 1.98  # of an H200 that has little to do
ALONE: Final = 1.3  # of a warp that has its scheduler for itself
SHUFFLE: Final = 23.0  # a word from another thread of the warp
MEMORY: Final = 42.0  # there and back through a block's memory
BARRIER: Final = 30.0  # of a block, and how much later each of its warps comes
SKEW: Final = 8.0
LOAD: Final = 60.0  # of a row behind the last one: its line is in the nearest cache
# Registers of a thread besides its values, and what an operation needs on its way.
OWN_REGISTERS: Final = 24
# Building takes about 0.25 ms an operation on a vector, for perhaps 5000 launches.
BUILD_NS: Final = 50.0


class GpuCosts(Costs):
    """Cycles of one thread."""

    reorders = False
    turn = 8.0

    def cost(self, node: Node, knobs: Knobs) -> Work:
        """Return what one node costs a thread of a chain."""
        group = knobs.width
        latency, each = PLAIN.gpu(node.dtype.bytes)
        count = vectors(node, group)
        if isinstance(node, expr.Apply):
            latency, each = OPERATIONS[node.op].cost.gpu(node.dtype.bytes)
            way = latency + (count - 1) * each * _alone(node, count)
            return Work(way, count * each, count)
        if isinstance(node, expr.Dot):
            return _dot(node, group)
        if isinstance(node, expr.Row):
            return Work(LOAD, 2 * count)
        if isinstance(node, expr.Reduce):
            rows, extent = prod(node.shape), node.arg.shape[-1]
            held = vectors(node.arg, group)
            once = _total(node, group, max(1, min(extent, group)))
            adding = Work(latency + held * each, held * each)
            return adding.then(Work(once.way + (rows - 1) * each, rows * once.issued))
        if isinstance(node, expr.Along):
            steps, text = line_steps(node)
            return Work(MEMORY + steps * latency, text * each, text)
        return Work()

    def share(self, parts: Outline, knobs: Knobs) -> Work:
        """Return an iteration's share of what is computed ahead by the lanes."""
        alone, nodes = Knobs(1), parts.ahead.nodes
        each = sum([self.node(node, alone).issued for node in nodes]) / knobs.ahead
        text = sum([self.node(node, knobs).text for node in nodes])
        return Work(ALONE * each, each, text)

    def text(self, each: Work, share: Work, turn: int) -> float:
        """Return the operations on vectors of a turn."""
        return (each.text + share.text) * turn


def vectors(node: Node, group: int) -> int:
    """Return how many registers a thread of a group needs for a node's elements."""
    longest = max(node.shape, default=1)
    return prod(node.shape) // max(longest, 1) * -(-longest // group)


def _alone(node: Node, count: int) -> float:
    """Return how many times longer instructions of several vectors take one warp.

    Few fit where the first waits for its own results; many are more than the cache of
    instructions holds, and those of 8 bytes have half of a unit.
    """
    return ALONE if node.dtype.bytes == 8 else min(ALONE, 0.4 + 0.1 * count)


def _total(node: Node, group: int, count: int) -> Work:
    """Return what a sum of `count` lanes costs a group."""
    latency, each = PLAIN.gpu(node.dtype.bytes)
    if group == 1:
        return Work()
    words = node.dtype.bytes / 4
    stages = log2(min(group, WARP))
    shuffles = Work(stages * (SHUFFLE + latency), stages * (2 * words + each))
    if group > WARP:
        parts = group // WARP
        way = MEMORY + 2 * BARRIER + SKEW * parts + log2(parts) * latency
        return shuffles.then(Work(way, 10 + parts * each))
    if group >= 4 and count * node.dtype.bytes <= 128:
        read = count * node.dtype.bytes / 16
        adding = log2(count) * latency + count * each / 2
        return Work(MEMORY + 2 * read + adding, 4 + read + count * each)
    return shuffles


def _dot(node: expr.Dot, group: int) -> Work:
    """Return what a product costs: its sums across lanes, or its elements in each."""
    latency, each = PLAIN.gpu(node.dtype.bytes)
    inner, columns = node.b.shape
    rows, text = prod(node.a.shape[:-1]), vectors(node, group)
    if lane_axis(node.b.shape) == 0:
        once = _total(node, group, min(inner, group))
        sums = rows * columns
        held = -(-inner // group)
        own = Work(held * latency, sums * held * each, text)
        return own.then(Work(once.way + (sums - 1) * each, sums * once.issued))
    fetched = Work() if group == 1 or inner == 1 else Work(MEMORY, inner)
    products = rows * inner * -(-columns // group)
    way = latency * inner + (products - inner) * each
    return fetched.then(Work(way, products * each, text))


@lru_cache(maxsize=2 * len(GROUPS))  # many schedules have one group
def held(program: Program, group: int) -> int:
    """Return about how many registers a thread's values need."""
    most = 0
    for loop in expr.loops(everywhere(program.nodes)):
        kept = sum(_registers(n, group) for n in (*loop.free, *loop.carries))
        inside = max((_registers(n, group) for n in loop.nodes), default=0)
        most = max(most, kept + 2 * inside)
    alone = max((_registers(n, group) for n in program.nodes), default=0)
    return OWN_REGISTERS + max(most, 2 * alone)


def _registers(node: Node, group: int) -> int:
    """Return the registers of a node's elements; what only rows are read of has none."""
    if in_memory(node):
        return 0
    return vectors(node, group) * max(1, node.dtype.bytes // 4)


def estimate_registers(program: Program, schedule: Schedule) -> int:
    """Return about how many registers a thread will use."""
    knobs = knobs_of(schedule)
    most = schedule.registers or most_registers(knobs.threads)
    return min(held(program, knobs.width), most)


def model(program: Program, gpu: Gpu) -> Callable[[Schedule], Prediction]:
    """Return what predicts one launch on a GPU, in nanoseconds."""
    costs, chains = GpuCosts(), max(1, program.chains)

    def predict(schedule: Schedule) -> Prediction:
        knobs = knobs_of(schedule)
        cost = costs.program(program, knobs)
        blocks = ceil(chains / knobs.chains)
        registers = estimate_registers(program, schedule)
        resident = max(1, gpu.blocks_resident(knobs.threads, registers))
        waves = ceil(blocks / (resident * gpu.multiprocessors))
        beside = min(resident, ceil(blocks / gpu.multiprocessors))
        warps = ceil(beside * knobs.threads / WARP / SIDES)
        one, others = cost.way * CYCLE_NS, warps * cost.issued * CYCLE_NS
        both = float((one**4 + others**4) ** 0.25)  # the 4-norm: a smooth maximum
        return Prediction(
            (
                ("ramp", RAMP_NS),
                ("one chain", one * waves),
                ("other warps", (both - one) * waves),
                ("build share", cost.text * BUILD_NS),
            )
        )

    return predict
