"""What it costs on a GPU that threads walk reduced axes together: terms in nanoseconds.

A launch is its ramp, then memory traffic that overlaps instructions and what comes from
caches for the most part, then the end of the last blocks. Memory is as fast as the rows
in flight let it be (Little's law): a block's bytes are on their way for its whole life,
which is the latency of its loads, its reductions and its instructions.
"""

from __future__ import annotations

from functools import partial
from math import ceil, hypot, prod
from typing import Final

from msgspec import Struct

from steelyard_kernels import dtypes
from steelyard_kernels.cost import bytes_moved
from steelyard_kernels.expression.expr import Apply, Cast, Input
from steelyard_kernels.ir.effects import AHEAD
from steelyard_kernels.nest.axes import NAMES, Nest, Value, is_column, segmented
from steelyard_kernels.nest.reads import Passes, walks_behind
from steelyard_kernels.nest.threads import nearness
from steelyard_kernels.ops import OPERATIONS
from steelyard_kernels.schedule.gpu import (
    ISSUE_RATE,
    RAMP_NS,
    REGISTER_UNIT,
    SLOW_INSTRUCTIONS,
    Gpu,
    most_registers,
)
from steelyard_kernels.schedule.lines import block_ns
from steelyard_kernels.schedule.model import Prediction, latest
from steelyard_kernels.schedule.order import residue
from steelyard_kernels.schedule.schedule import Schedule
from steelyard_kernels.schedule.taken import Taken, taken_of
from steelyard_kernels.schedule.transposition import SECTOR_BYTES

# Fitted to 402 measured schedules of LayerNorm with two biases and softmax on an H200,
# 8192 rows of 768 to 20480 elements, float16 and float32, cold (random search over the
# logarithms of predicted and measured times; registers as NVRTC 13.5 gives them): the
# chosen is then 1 % above the best in the mean and 6 % at most. Of 547 others, 3 to 8192
# rows of 1 to 20480 elements to float64, it is 4 % above the best in the mean, 12 % at most.
# Five shuffles with their additions; a barrier with the slots written and read around
# it; and how much later the last warp of a block comes for each that there is.
SHUFFLES_NS: Final = 250.0
BARRIER_NS: Final = 10.0
SKEW_NS: Final = 46.0
# Instructions of a thread in a nanosecond while its warp waits for most results.
THREAD_RATE: Final = 0.55
# Instructions of a thread besides its elements: places, a reduction, scalars.
PLACE_INSTRUCTIONS: Final = 27.0
REDUCE_INSTRUCTIONS: Final = 25.0
# From a load's issue to its value from memory, and from one turn of a walk to the next,
# whose loads wait for none before them; the part of a block's life with nothing in
# flight; from one block's start to the next's.
LATENCY_NS: Final = 476.0
TURN_NS: Final = 5.0
AGAIN_TURN_NS: Final = 400.0  # of what is read again, besides
IDLE_NS: Final = 145.0
START_NS: Final = 23.0
# From one row to the next of a block that stays, and where its warps wait for each other:
# LayerNorm of 768 halves took 8.4 us by warps, and 9.4 us by three warps a row.
AHEAD_NS: Final = 100.0
MEET_NS: Final = 120.0
# Of a reduction by the blocks of a cluster, for each of them, in place of shuffles and a
# barrier. Of 5,600 schedules of softmax, cross-entropy and LayerNorm on an H200 (512 to
# 8192 rows of 768 to 151936 halves, cold, 44 cases) the chosen is then 2 % above the best
# in the mean and 8 % at most; with five times as much it was 3 and 13 %.
CLUSTER_NS: Final = 30.0
# The same where rows are read alone: an argmax of 32000 halves took 1.14 times as long by
# four blocks of 160 threads as by two of 288, whose instructions are a tenth fewer.
READING_NS: Final = 150.0
# Of clusters' memory, for those of the last turn that are none: 32 clusters of 4 blocks, of
# which 30 run at once, took 35 us for sums of 16384 x 2048 halves, and 26 where all did.
LATE: Final = 0.4
# From a total that a block hands over to where another has it, and of each turn in which
# its threads take some: what a multiprocessor waits for the second level of a busy card.
HAND_NS: Final = 700.0
# How much of the shorter times shows beside the longest, and of a block's life at the
# end, where blocks finish one by one. Of the columns that rows share more shows: by two
# rows a thread LayerNorm of 768 to 3072 halves took .97 of one row's time on an H200.
EXPOSED: Final = 0.05
NEAR_EXPOSED: Final = 0.2
TAIL_SHARE: Final = 2.4

# From elsewhere: instructions of a vector's load or store with its address; what a
# multiprocessor's first-level cache gives, bytes a nanosecond; how many times memory's
# rate the second level has; building takes about 40 us an operation on a vector, for
# perhaps 5000 launches.
ACCESS_INSTRUCTIONS: Final = 2.0
NEAR_RATE: Final = 218.0
# Columns that do not fit there come from the second level each time: four of 65536 halves,
# read again by every row, took about as long as that gives.
NEAR_BYTES: Final = 280 << 10
# Of LayerNorm, RMSNorm and softmax with odd numbers of columns on an H200, 769 to 65537 of
# them: what blocks that stay take until they have their columns, and how much more memory
# brings for single elements of rows that begin anywhere.
HOIST_NS: Final = 2500.0
ASKEW: Final = 1.08
FAR_RATE: Final = 6000.0
L2_SHARE: Final = 4.4
BUILD_NS: Final = 8.0
# Bytes side by side that a warp asks for to have all of memory's rate: sums of 4096 x 4096
# float32 across rows took 1.15 times as long with half of it.
LINE: Final = 128
LINE_POWER: Final = 0.2  # of how many there are in a line: 1.15 for two

# Registers of any schedule (addresses, scalars, one vector's values), for each held word
# and for each element in flight of a walk in turns: fitted to what NVRTC 13.5 takes for
# bias_layernorm on sm_90a under `allowance`.
BASE: Final = 27
RESIDENT_BASE: Final = 32  # where blocks stay, with the next row's arrays besides
HELD: Final = 1.65
RELOADED: Final = 5.5
LEAN_BASE: Final = 20
TOTALS: Final = 4
WITH_COLUMNS: Final = 1.25
ALLOWED: Final = 1.1  # times the estimate
LEAST: Final = 32


class Work(Struct, frozen=True):
    """What a nest does for each of its elements, by whether its walks share registers.

    Bytes: `columns` of what neighbouring rows share, `partly` of what others do, `again`
    of arrays that later walks read again.
    Instructions: `elements`, `shared` for what all rows share. `held` are the words live
    between walks, `staged` those loaded, `reductions` the walks that have any.
    """

    columns: int
    partly: int
    again: int
    elements: float
    shared: float
    accesses: int
    reductions: int
    held: float
    staged: float


def work(passes: Passes, outputs: int, *, held: bool) -> Work:
    """Count what all walks do; where all is `held` a value is computed once."""
    columns = partly = again = reductions = 0
    accesses = outputs
    elements = shared = 0.0
    seen: set[int] = set()
    for each in passes.passes:
        reductions += each.reductions > 0
        elements += each.reductions
        for value in each.fresh if held else each.values:
            size = value.node.dtype.bytes if isinstance(value.source, Input) else 0
            if value.axes <= passes.walked:
                columns += size
                shared += _cost(value)
            else:
                near = passes.last not in value.axes  # neighbouring rows have one
                columns += size * near
                partly += size * (not near and not value.axes >= passes.space)
                again += size * (value.number in seen)
                accesses += size > 0
                elements += _cost(value)
            seen.add(value.number)
    words = _held(passes) if held else (0.0, 0.0)
    return Work(columns, partly, again, elements, shared, accesses, reductions, *words)


def _held(passes: Passes) -> tuple[float, float]:
    """Return the most words an element that are live between two walks, or loaded.

    And those loaded alone.
    """
    sizes = {
        value.number: max(value.node.dtype.bytes, 2)
        for each in passes.passes
        for value in each.fresh
    }
    last = {n: k for k, each in enumerate(passes.passes) for n in each.again}
    live = [0] * len(passes.passes)
    for k, each in enumerate(passes.passes):
        for value in each.fresh:
            for between in range(k, last.get(value.number, k)):
                live[between] += sizes[value.number]
    loads = [v for v in passes.passes[0].fresh if isinstance(v.source, Input)]
    staged = sum([sizes[v.number] for v in loads if not v.axes <= passes.walked])
    return max(*live, staged) / 4, staged / 4


def _cost(value: Value) -> float:
    """Return a value's instructions an element."""
    node = value.node
    if value.source is not None:
        return 0.0
    sums = isinstance(node, Apply) and node.op in {"add", "subtract"}
    if (sums or isinstance(node, Cast)) and node.dtype in dtypes.HALVES:
        return 0.5  # two at once
    slow = isinstance(node, Apply) and OPERATIONS[node.op].cost.slow
    return SLOW_INSTRUCTIONS if slow else 1.0


def allowance(need: int, threads: int) -> int:
    """Return the registers that each of a block's threads may use, by its own need.

    With more ptxas loads further ahead, until few blocks fit a multiprocessor: 249
    registers where 104 did as well. With much less it spills.
    """
    most = -(-max(LEAST, ceil(need * ALLOWED)) // REGISTER_UNIT) * REGISTER_UNIT
    return min(most, most_registers(threads))


def _lengths(nest: Nest) -> list[int]:
    """Return how many indices are walked of each axis, of segments in the mean."""
    found = list(nest.extents)
    for value in nest.values:
        segments = prod([nest.extents[axis] for axis in segmented(value)])
        for axis in value.over:
            found[axis] = -(-found[axis] // segments)
    return found


class Team:
    """What predictions need of a nest whose threads walk reduced axes together."""

    def __init__(self, nest: Nest) -> None:
        self.nest = nest
        self.passes = passes = Passes.of(nest)
        outputs = len(nest.outputs)
        self.stores = any(o.offset.step(len(nest.extents) - 1) for o in nest.outputs)
        self.work = {held: work(passes, outputs, held=held) for held in (True, False)}
        self.moved = bytes_moved(nest.program)
        every = [(v.node, v.offset) for v in nest.values if isinstance(v.source, Input)]
        every += [(o.value.node, o.offset) for o in nest.outputs]
        columns = [v.node.dtype.bytes for v in nest.values if is_column(nest, v)]
        self.column_bytes = sum(columns)  # an element, of arrays that all rows share
        self.widest = max([node.dtype.bytes for node, _ in every])
        axes = range(len(nest.extents))
        self.near = {NAMES[axis]: nearness(nest, axis) for axis in axes}
        inner = walks_behind(nest)
        lengths = _lengths(nest)
        self.walked = prod(lengths[: nest.outer]) * sum(
            [prod([lengths[k] for k in walk]) for walk in inner]
        )
        self._taken = latest(partial(taken_of, lengths, inner, self.near))
        self._residues: dict[int, int | None] = {}

    def residue(self, lanes: int) -> int | None:
        """Return the elements from one row to the next, modulo so many lanes."""
        if lanes not in self._residues:
            self._residues[lanes] = residue(self.nest, lanes)
        return self._residues[lanes]

    def taken(self, schedule: Schedule) -> Taken:
        """Return what a schedule's cuts take."""
        return self._taken(schedule.cuts, None)

    def registers(self, schedule: Schedule) -> int:
        """Return about how many registers a thread needs."""
        taken, does = self.taken(schedule), self.work[True]
        if schedule.blocks:
            return round(RESIDENT_BASE + (does.held + does.staged) * taken.size)
        if taken.held:
            return round(BASE + HELD * does.held * taken.size)
        return round(BASE + RELOADED * taken.size)

    def least_registers(self, schedule: Schedule) -> int:
        """Return with how few registers a thread holds all it has; 0: not all is held.

        Of 40 kernels by NVRTC 13.5 (LayerNorm, RMSNorm, softmax, logsumexp, argmax,
        cross-entropy; 8 to 64 elements of a thread) none needs more. With these a softmax of
        1000 halves took 0.86 of the time on an H200, a logsumexp of 4096 0.95.
        """
        taken, does = self.taken(schedule), self.work[True]
        if schedule.blocks or not taken.held:
            return 0
        lanes, size = taken.lanes, taken.size
        held = does.held * size * (WITH_COLUMNS if does.columns else 1.0)
        need = LEAN_BASE + held + does.columns / 4 * lanes
        if self.nest.running:  # what is before each vector, and of how many
            need += size / lanes + TOTALS
        return max(LEAST, -(-ceil(need) // REGISTER_UNIT) * REGISTER_UNIT)

    def predict(self, gpu: Gpu, schedule: Schedule) -> Prediction:
        """Predict one launch."""
        taken = self.taken(schedule)
        does, threads = self.work[taken.held], taken.threads
        blocks = taken.turns * taken.cluster
        active = max(1, min(blocks, gpu.multiprocessors))
        need = schedule.registers or allowance(self.registers(schedule), threads)
        shared = self.shared_bytes(schedule)
        resident = max(1, gpu.blocks_resident(threads, need, shared))
        beside = min(resident, -(-blocks // gpu.multiprocessors))
        stays = schedule.blocks > 0 and taken.cluster > 1
        issued, life = self._block(schedule, taken, stays=stays)
        flight = blocks * life / (active * beside)  # if memory only waited
        if schedule.blocks:
            waves = -(-schedule.blocks // (resident * gpu.multiprocessors))
            flight = waves * -(-blocks // schedule.blocks) * life
        arithmetic = blocks * issued / (active * ISSUE_RATE)
        walked = self.walked
        columns = walked * does.columns / taken.rows
        if not schedule.blocks and self.residue(taken.lanes):
            columns *= taken.lanes  # neighbours' elements are a vector apart
        near = columns / (active * NEAR_RATE)
        if does.columns * self.nest.extents[-1] > NEAR_BYTES and not shared:
            near = columns / FAR_RATE
        far = FAR_RATE if self.moved < gpu.l2_bytes else gpu.memory_rate
        near += walked * does.partly / far
        share = self.moved / 2 / max(1, blocks) * beside * active
        missed = min(1.0, share / gpu.l2_bytes) ** 2
        near += walked * does.again * (1 - missed) / gpu.memory_rate / L2_SHARE
        read = self.moved * self._brought(taken) + walked * does.again * missed
        if taken.lanes == 1 and self.residue(2):
            read *= ASKEW
        memory = hypot(read / gpu.memory_rate, flight)
        fit = max(1, gpu.clusters_resident(taken.cluster, resident))
        if taken.cluster > 1 and taken.turns > fit and not stays:  # some begin late
            memory *= 1 + LATE * (-(-taken.turns // fit) * fit / taken.turns - 1)
        if stays:  # loads never end, on the multiprocessors that have any
            unused = max(1.0, resident * gpu.multiprocessors / schedule.blocks)
            least, longest = sorted((unused * read / gpu.memory_rate, flight))
            memory = longest + EXPOSED * least
        longest = max(memory, arithmetic, near)
        starts = (schedule.blocks or blocks) / active * START_NS
        hidden = EXPOSED * (memory + arithmetic + near + starts - longest)
        hidden += NEAR_EXPOSED * near
        text = does.elements * taken.rows + does.shared
        return Prediction(
            (
                ("ramp", RAMP_NS + HOIST_NS * (shared > 0)),
                ("memory", memory),
                ("over memory", longest - memory + hidden),
                ("last blocks", TAIL_SHARE * life),
                ("build share", text * BUILD_NS),
            )
        )

    def _block(
        self, schedule: Schedule, taken: Taken, *, stays: bool
    ) -> tuple[float, float]:
        """Return the instructions of a block's threads, and how long it lives."""
        does, lanes, side = self.work[taken.held], taken.lanes, taken.rows
        vector = lanes * (does.elements * side + does.shared)
        columns = does.columns / self.widest
        if not schedule.blocks and self.residue(lanes):
            columns *= lanes  # each element by itself
        vector += ACCESS_INSTRUCTIONS * (does.accesses * side + columns)
        once = PLACE_INSTRUCTIONS + REDUCE_INSTRUCTIONS * does.reductions * side
        issued = taken.threads * (taken.vectors * vector + once)
        warps = taken.warps
        skew = 0.0 if stays else SKEW_NS * warps
        stage = SHUFFLES_NS + (BARRIER_NS + skew if warps > 1 else 0.0)
        if taken.cluster > 1:
            stage = (CLUSTER_NS if self.stores else READING_NS) * taken.cluster + skew
        waits = LATENCY_NS
        if taken.walks > 1:
            waits += (taken.walks - 1) * (TURN_NS + AGAIN_TURN_NS * (does.again > 0))
        walking = stage * does.reductions
        rate = ISSUE_RATE if stays else taken.threads * THREAD_RATE
        walking += issued / min(ISSUE_RATE, rate)
        if self.nest.lines:
            walking += block_ns(self.nest, taken.inner)
        if node := self.nest.handed:
            count = node.shape[node.axis] / (2 * AHEAD * taken.threads)
            walking += HAND_NS * (2 + count)
        if schedule.blocks:  # loads are on their way while the row before is walked
            return issued, max(walking, waits) + AHEAD_NS + MEET_NS * (warps > 1)
        return issued, walking + waits + IDLE_NS

    def shared_bytes(self, schedule: Schedule) -> int:
        """Return the bytes of shared memory in which a block's threads keep columns."""
        if schedule.hoist is None:
            return 0
        taken = self.taken(schedule)
        return taken.threads * taken.along * self.column_bytes

    def _brought(self, taken: Taken) -> float:
        """Return how much more memory is brought than used: neighbours share lines."""
        side = taken.beside * self.widest
        unused = max(1.0, SECTOR_BYTES / side)
        lines = max(1.0, LINE / max(side, SECTOR_BYTES))
        return unused * float(lines**LINE_POWER)
