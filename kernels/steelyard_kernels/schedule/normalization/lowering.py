"""Lowering of passes over rows: a block of rows at a time, every pass by vectors.

A block of rows is walked once for every level of reductions; what later passes need
stays in a scratch row close to the core, or is computed again. The number of rows is
a runtime parameter: one binary serves every number that the block divides equally.
Columns (a bias, a weight) are loaded and widened once for the block, or once for the
launch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from steelyard_kernels.expression.expr import Program
from steelyard_kernels.ir.loops import Kernel, Operand
from steelyard_kernels.schedule.model import LINE
from steelyard_kernels.schedule.normalization.emitter import MOMENTS, PassEmitter, Visit
from steelyard_kernels.schedule.normalization.outline import UNIFORM
from steelyard_kernels.schedule.normalization.passes import Rows, Sum, Walk
from steelyard_kernels.schedule.normalization.schedule import (
    Normalization,
    check_order,
    check_scratch,
    check_streaming,
    passes_of,
    store_alignment,
)
from steelyard_kernels.schedule.normalization.scratch import (
    Knobs,
    ScratchValues,
    hoistable,
)
from steelyard_kernels.schedule.normalization.sums import total
from steelyard_kernels.schedule.normalization.values import Row, Scope, Spot
from steelyard_kernels.schedule.parameters import (
    Arguments,
    Lowered,
    arguments,
    extent_slot,
)
from steelyard_kernels.schedule.tile import Carried, tile_constant


def lower(
    program: Program, schedule: Normalization, *, aligned: bool = True
) -> Lowered:
    """Return the loop-level kernel; `aligned`: every output starts on a cache line."""
    rows = passes_of(program, schedule.statistics, schedule.keep)
    check_streaming(program, schedule, rows, aligned=aligned)
    check_scratch(rows, schedule)
    check_order(rows, schedule)
    block = schedule.rows
    knobs = Knobs(
        schedule.lanes,
        block,
        schedule.unroll,
        schedule.threads,
        -(-schedule.chunk // block) * block,
        store_alignment(rows, schedule.lanes) if schedule.streaming else 0,
        schedule.prefetch,
        schedule.hoist and bool(hoistable(rows)),
        schedule.statistics == "shifted",
    )
    args = arguments(rows.program, LINE if aligned else 0)
    kernel = RowEmitter(rows, args, knobs).kernel()
    return Lowered(kernel, (*args.slots, extent_slot(rows.rows)), schedule.threads)


class RowEmitter(PassEmitter[ScratchValues]):
    """Emits a program cut into passes, for the threads of a CPU."""

    def __init__(self, rows: Rows, args: Arguments, knobs: Knobs) -> None:
        values = ScratchValues(rows, args, knobs)
        super().__init__(values, shifted=knobs.shifted, wide=True)
        self.knobs = knobs

    def kernel(self) -> Kernel:
        """Emit the whole kernel; its last parameter is the number of rows."""
        b, knobs = self.b, self.knobs
        self.values.kept = tuple(
            b.alloc(f"scratch{slot}", dtype, knobs.rows * self.values.pitch)
            for slot, dtype in enumerate(self.rows.slots)
        )
        scope = Scope({}, {})
        self.values.scalars(scope, {}, UNIFORM, 0)
        if knobs.hoist:
            self.values.hoist(scope)
        with b.parallel(self.values.count, knobs.chunk, knobs.threads) as (low, high):
            self._blocks(scope, low, high)
        if knobs.stream_alignment:
            b.fence()
        return b.kernel("kernel", (*self.args.order, self.values.count))

    def _blocks(self, scope: Scope, low: Operand, high: Operand) -> None:
        """Emit the chunk by blocks; rows that fill no block go one by one."""
        b, block = self.b, self.knobs.rows
        ragged = self.rows.rows % block != 0
        whole = high
        if ragged:
            blocks = b.at("div", b.at("subtract", high, low), block)
            whole = b.at("add", low, b.at("multiply", blocks, block))
        with b.loop(low, whole, block) as loop:
            self._block(scope, loop.var, block)
        if ragged:
            with b.loop(whole, high, 1) as loop:
                self._block(scope, loop.var, 1)

    def _block(self, scope: Scope, first: Operand, count: int) -> None:
        """Emit all passes over `count` rows from `first` on."""
        self.passes(
            [
                self.values.row(scope, self.b.at("add", first, k), k)
                for k in range(count)
            ]
        )

    def walk(
        self,
        walk: Walk,
        block: Sequence[Row],
        first: Carried,
        visit: Visit,
        *,
        final: bool = False,
    ) -> list[list[Carried]]:
        """Emit a walk; every row has as many accumulators as unrolled vectors."""
        b, lanes, unroll = self.b, self.lanes, self.knobs.unroll
        width = len(first)

        def body(
            at: Operand, vectors: int, mask: Operand | None, carried: Carried
        ) -> Carried:
            out = list(carried)
            for u in range(vectors):
                place = b.at("add", at, u * lanes)
                spot = Spot(place, place, mask)
                shared = self.values.columns(walk, block[0], spot)
                if final and self.knobs.prefetch and mask is None:
                    self.values.prefetch(block, place, u)
                for k, row in enumerate(block):
                    env = self.values.elements(walk, row, shared, spot)
                    begin = (k * unroll + u) * width
                    mine = tuple(out[begin : begin + width])
                    out[begin : begin + width] = visit(k, env, mine, spot)
            return tuple(out)

        every = first * (len(block) * unroll)
        carried = tile_constant(
            b,
            self.rows.extent,
            (lanes, unroll),
            body,
            every,
            positive=self.values.count,
        )
        parts = [
            carried[i * width : (i + 1) * width] for i in range(len(block) * unroll)
        ]
        return [parts[k * unroll : (k + 1) * unroll] for k in range(len(block))]

    def totals(
        self, items: Sequence[Sum], parts: Sequence[Sequence[Carried]]
    ) -> Iterator[tuple[Operand, ...]]:
        """Emit a row's totals when they are asked for: across the lanes of vectors."""
        for row in parts:
            place = 0
            for item in items:
                width = item.accumulators
                mine = [part[place + i] for part in row for i in range(width)]
                place += width
                yield total(self.b, item, mine)

    def put(self, place: int, row: Row, spot: Spot, value: Operand) -> None:
        """Emit the store of one vector of an output; whole ones may stream."""
        alignment = self.knobs.stream_alignment if spot.mask is None else 0
        self.b.store(
            self.args.outputs[place],
            self.b.at("add", row.out, spot.at),
            value,
            spot.mask,
            streaming=alignment > 0,
            alignment=alignment,
        )

    def put_row(self, place: int, row: Row, value: Operand) -> None:
        """Emit the store of a row's one value of an output."""
        self.b.store(self.args.outputs[place], row.number, value)

    def moments(
        self,
        walk: Walk,
        block: Sequence[Row],
        items: Sequence[Sum],
        means: Sequence[Operand],
    ) -> list[Operand]:
        """Emit them as a loop over the rows that scratch keeps: rare, so short."""
        b, count = self.b, len(block)
        kept = walk.loads >= {item.arg.number for item in items}
        if not kept or count == 1:
            return super().moments(walk, block, items, means)
        dtypes = [mean.type.dtype for mean in means[: len(items)] for _ in MOMENTS]
        buffers = [b.alloc("again", dtype, count) for dtype in dtypes]
        places = [(k, buffer) for k in range(count) for buffer in buffers]
        for (k, buffer), mean in zip(places[:: len(MOMENTS)], means, strict=True):
            b.store(buffer, k, mean)
        with b.loop(0, count, 1) as loop:
            row = Row(loop.var, loop.var, {}, Scope({}, {}), loop.var)
            mine = [b.load(buffer, loop.var) for buffer in buffers[:: len(MOMENTS)]]
            exact = super().moments(walk, [row], items, mine)
            for buffer, value in zip(buffers, exact, strict=True):
                b.store(buffer, loop.var, value)
        return [b.load(buffer, k) for k, buffer in places]
