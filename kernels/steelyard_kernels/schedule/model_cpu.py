"""What a schedule of a nest is predicted to cost on a CPU: terms in nanoseconds."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Final, TypeAlias

from msgspec import Struct

from steelyard_kernels import dtypes
from steelyard_kernels.expression.expr import Apply, Cast, Input
from steelyard_kernels.nest.axes import NAMES, Nest, Value, segmented
from steelyard_kernels.nest.keep import Walk, planner
from steelyard_kernels.nest.reads import deviates
from steelyard_kernels.ops import OPERATIONS
from steelyard_kernels.schedule import model as terms
from steelyard_kernels.schedule.lines import line_ns
from steelyard_kernels.schedule.model import Machine, Prediction
from steelyard_kernels.schedule.schedule import LAST, Cut, Place, Schedule
from steelyard_kernels.schedule.transposition import Transposed, blocks, transposed_of

Model: TypeAlias = Callable[[Schedule], Prediction]
Hints: TypeAlias = tuple[Place | None, Place | None, bool]  # keep, hoist, one pass

# How many bytes a segment of a row costs more where rows are walked down by segments: sums
# of 4096 columns of 4096 float32 took 17.4, 13.5 and 10.8 ms by 128, 256 and 512 bytes.
SEGMENT_BYTES = 90
# The same of rows that squares are written to: 4096 x 4096 float32 took 1.15 times as long
# as a copy by 192 bytes and 1.5 by 64. Element by element every one takes a line.
SQUARE_BYTES = 40
# What more is lost where so many rows are read side by side that caches lose some: int8,
# 512 of them against 192.
SQUARE_ROWS = 256
SQUARE_LOSS = 0.2
REGISTERS = 32  # of a vector unit: what is live beyond them is spilled


def model(nest: Nest, machine: Machine) -> Model:
    """Return what predicts one launch of a nest under a schedule."""
    program = nest.program
    moved = terms.traffic(program)
    memory: dict[tuple[int, bool], float] = {}  # by what memory traffic depends on
    elements = prod(nest.extents[: nest.space])
    statements = len(program.nodes) + len(program.outputs)
    again = work(nest) / elements  # how often an element's statements are done
    full = machine.lanes(4)
    reduced = any(value.over for value in nest.values)
    turned, sorting = transposed_of(nest), line_ns(nest)

    @terms.latest
    def shaped(cuts: tuple[Cut, ...], threads: int) -> tuple[float, float, int]:
        lanes = unroll = 1
        for cut in cuts:
            for factor, place in cut.factors:
                if place is Place.VECTOR:
                    lanes = max(lanes, factor)
                elif place is Place.REGISTER:
                    unroll = max(unroll, factor)
        vectors = again * elements / full / (1 if threads else machine.threads)
        live = statements * unroll * (lanes / full) / 2
        spills = max(0.0, live - REGISTERS) * terms.OPERATION_NS / 8
        computing = vectors * (statements * terms.OPERATION_NS + spills)
        computing += vectors * full / (lanes * unroll) * terms.ITERATION_NS
        computing += sorting / (1 if threads else machine.threads)
        bodies = unroll + (unroll > 1) + 1
        building = bodies * statements * lanes / full * terms.BUILD_NS
        extent = prod(nest.extents[: len(cuts[0].axes)])
        return computing, building, max(1, -(-extent // cuts[0].size))

    def predict(schedule: Schedule) -> Prediction:
        threads = schedule.threads
        computing, building, chunks = shaped(schedule.cuts, threads)
        key = threads, schedule.streaming
        if key not in memory:
            memory[key] = terms.memory_term(moved, schedule, machine)
        moving = memory[key] * _longer(nest, schedule, turned, reduced=reduced)
        if schedule.keep is Place.REGISTER:
            chunks = blocks(nest, schedule)
        # No iteration waits for another: all overlaps, but where segments end.
        longer = (
            terms.together(moving, computing) if reduced else max(moving, computing)
        )
        return Prediction(
            (
                ("memory or arithmetic", longer),
                ("build share", building),
                *terms.sharing_terms(schedule, machine, chunks, longer),
            )
        )

    return predict


def _longer(
    nest: Nest, schedule: Schedule, turned: Transposed | None, *, reduced: bool
) -> float:
    """Return how many times longer than whole rows, one after another, memory takes."""
    if not nest.space:
        return 1.0
    ahead = 1 + terms.AHEAD_COST if schedule.prefetch else 1.0
    if turned is None and not reduced:
        return ahead
    (cut,) = [cut for cut in schedule.cuts if NAMES[nest.space - 1] in cut.axes]
    beside = prod([n for n, place in cut.factors if place not in LAST])
    if turned is not None:
        if schedule.keep is Place.REGISTER:
            many = SQUARE_LOSS if beside > SQUARE_ROWS else 0.0
            return 1 + SQUARE_BYTES / (beside * turned.element) + many
        return terms.LINE / turned.element
    if cut.at(Place.VECTOR) > 1:
        read = [v for v in nest.values if isinstance(v.source, Input)]
        own = [v.node.dtype.bytes for v in read if nest.space - 1 in v.axes]
        ahead *= 1 + SEGMENT_BYTES / (max(own, default=4) * beside)
    return ahead


def work(nest: Nest) -> float:
    """Return how many elements a nest computes, statements being alike: its largest part."""
    return float(
        max(
            prod(
                [nest.extents[k] for k in {*value.axes, *value.over} - segmented(value)]
            )
            for value in nest.values
        )
    )


# Four cycles from one addition to the next of a chain, at 3 GHz; and about ten such
# steps for a reduction across lanes with the scalar arithmetic behind it.
CHAIN_NS: Final = 1.3
ACROSS_NS: Final = 13.0
# A vector operation of a walk: of rows of 768 that are in cache, LayerNorm took 1.6 ns for
# 14 to 20 of them and softmax 4 ns for 40.
ROW_OPERATION_NS: Final = 0.1
# What a store to the stack costs beside other vector operations, which are two a cycle;
# and what a vector costs more where the first cache cannot hold all that is kept.
KEPT: Final = 3
FAR: Final = 6
NEAR_BYTES: Final = 32 << 10
# How much longer functions take of several vectors at a time where 16 registers do not
# hold their constants: 1024 x 768 by 4 rows against 1, softmax and halves (Zen 3).
CROWDED: Final = 1.18
# What a row costs more whose last line is not whole and goes round the caches in part: of
# 1024 x 1000 float32 that took 164 us, and 64 without.
TORN_NS: Final = 200.0
# How much longer functions take between the sums of a row than in one pass: an exp of
# softmax took 5.5 ns a vector of float32 in cache, and 3.9 ns alone.
FUNCTION: Final = 1.5


class Work(Struct, frozen=True):
    """What the walks along a row cost in vector operations.

    `columns` are those that rows walked together share, `hoisted` those done once a
    launch, `reductions` the numbers that lanes are added up to, in `groups` of which each
    waits for the one before. An element of a row has `row_bytes` on the stack, one of all
    rows `column_bytes`. `asks`: rows to come are asked for beside arithmetic.
    """

    elements: float
    columns: float
    hoisted: float
    reductions: int
    groups: int
    row_bytes: int
    column_bytes: int
    asks: bool


def row_work(nest: Nest, schedule: Schedule) -> Work:
    """Count the vector operations of all walks, under the hints of a schedule."""
    plan = planner(nest)
    kept = plan.kept(schedule)
    elements = columns = 0.0
    walks = kept.walks
    if not schedule.one_pass:
        walks += [again for _, again in kept.reductions.values() if again is not None]
    for walk in walks:
        elements += sum(_cost(v, walk) for v in walk.values if len(v.axes) > 1)
        columns += sum(_cost(v, walk) for v in walk.values if len(v.axes) == 1)
        elements += KEPT * len(walk.stores)
    elements += sum(len(nest.extents) - 1 in o.offset.axes for o in nest.outputs)
    groups = plan.accumulators(one_pass=schedule.one_pass)
    added = sum(groups)
    deviations = 0 if schedule.one_pass else sum(map(deviates, nest.values))
    hoisted = sum(_cost(v, kept.columns) for v in kept.columns.values)
    return Work(
        elements + added + 3 * deviations,
        columns,
        hoisted,
        added + 2 * deviations,
        len(groups) + deviations,
        kept.row_bytes,
        kept.column_bytes,
        kept.asking is not None,
    )


def _cost(value: Value, walk: Walk) -> float:
    """Return a value's vector operations; conversions of halves count twice."""
    node = value.node
    if value.number in walk.loads:
        return 1
    if isinstance(node, Apply):
        cost = OPERATIONS[node.op].cost.cpu
        return cost * FUNCTION if cost > 1 else cost
    narrow = isinstance(node, Cast) and (
        node.dtype in dtypes.HALVES or node.arg.dtype in dtypes.HALVES
    )
    return 2 if narrow else 1


class Rows:
    """Predicts one launch of a nest that has rows."""

    def __init__(self, nest: Nest, machine: Machine) -> None:
        self.nest = nest
        self.machine = machine
        self.moved = terms.traffic(nest.program)
        self.rows = prod(nest.extents[:-1])
        last = len(nest.extents) - 1
        stored = [o.value.node for o in nest.outputs if last in o.offset.axes]
        self.whole = all(
            nest.extents[last] * node.dtype.bytes % terms.LINE == 0 for node in stored
        )
        self._work: dict[Hints, Work] = {}
        self._shaped = terms.latest(self._shape)

    def predict(self, schedule: Schedule) -> Prediction:
        """Return what one launch costs."""
        hints = schedule.keep, schedule.hoist, schedule.one_pass
        if hints not in self._work:
            self._work[hints] = row_work(self.nest, schedule)
        walked = self.rows / (self.machine.threads if schedule.threads == 0 else 1)
        shaped = self._shaped(schedule.cuts, (hints, walked))
        block, computing, reducing, building, chunks = shaped
        shared = self._walking(schedule, self._work[hints], block, computing)
        torn = 0.0 if self.whole or not schedule.streaming else walked * TORN_NS
        return Prediction(
            (
                ("memory and arithmetic", shared),
                ("reductions", reducing),
                ("torn lines", torn),
                ("build share", building),
                *terms.sharing_terms(schedule, self.machine, chunks, shared),
            )
        )

    def _shape(
        self, cuts: tuple[Cut, ...], hints: tuple[Hints, float]
    ) -> tuple[int, float, float, float, int]:
        """Return the rows at a time, what all walks take without memory, and the chunks.

        Their arithmetic, their reductions and their building, in nanoseconds.
        """
        (first, inner), (named, walked) = cuts, hints
        each = self._work[named]
        block, unroll = first.at(Place.REGISTER), inner.at(Place.REGISTER)
        extent = self.nest.extents[-1]
        across = max(1.0, extent / inner.at(Place.VECTOR))
        elements, columns = each.elements, each.columns
        crowded = (
            elements > self.machine.registers and self.machine.registers < REGISTERS
        )
        if crowded and block > 1:
            elements *= CROWDED
        if block * each.row_bytes * extent > NEAR_BYTES:
            elements += FAR * each.row_bytes / 4
        if each.column_bytes * extent > NEAR_BYTES:
            columns += FAR * each.column_bytes / 4
        operations = walked * (elements + columns / block) + each.hoisted
        # A chain of additions takes longer than arithmetic unless others run beside it;
        # the loop itself hides behind the body of a block.
        chains = walked * each.reductions * CHAIN_NS / (block * unroll)
        computing = across * max(operations * ROW_OPERATION_NS, chains)
        reducing = walked * each.groups * ACROSS_NS / block
        bodies = (block + (self.rows % block > 0)) * (unroll + (unroll > 1) + 1)
        building = bodies * (each.elements + each.columns) * terms.BUILD_NS
        return block, computing, reducing, building, max(1, -(-self.rows // first.size))

    def _walking(
        self, schedule: Schedule, each: Work, block: int, computing: float
    ) -> float:
        """Return the nanoseconds of memory traffic and arithmetic of all walks."""
        moved = self.moved
        row_bytes = moved.moved / max(1, self.rows) / 2  # read and written
        stall = terms.ROW_STALL / block
        if row_bytes < terms.PAGE_BYTES:
            stall = terms.PAGE_STALL if block > 1 else 0.0
        alone = block == 1 and row_bytes >= terms.PAGE_BYTES  # as processors foresee
        ahead = 1 + terms.AHEAD_COST * bool(schedule.prefetch)
        if schedule.prefetch and each.asks:
            ahead = 1 - terms.PREFETCH_BESIDE
        elif schedule.prefetch and schedule.streaming and not alone:
            ahead = 1 - terms.PREFETCH_SAVING
        cold = terms.cold_term(moved, schedule, self.machine) * (1 + stall)
        cold = terms.together(cold * ahead, computing)
        if not moved.resident:
            return cold
        warm, drained = terms.cached_term(moved, schedule, self.machine)
        warm = (
            max(terms.together(warm, computing), drained) + terms.DRAIN_SHARE * drained
        )
        warm *= 1 + terms.AHEAD_COST * bool(schedule.prefetch)
        found = 1 - moved.moved / terms.RESIDENT_BYTES
        near = moved.moved <= self.machine.l2_bytes * self.machine.threads
        share = terms.NEAR_COLD_SHARE if near else max(1 - found, terms.COLD_SHARE)
        return found * warm + share * cold
