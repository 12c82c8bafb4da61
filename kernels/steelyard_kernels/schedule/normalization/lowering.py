"""Lowering of passes over rows: a block of rows at a time, every pass by vectors.

A block of rows is walked once for every level of reductions; what later passes need
stays in a scratch row close to the core, or is computed again. The number of rows is
a runtime parameter: one binary serves every number that the block divides equally.
Each row of a block has its own accumulators and scalars; columns (a bias, a weight)
are loaded and widened once for the block, or once for the launch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import TypeAlias

from steelyard_kernels.builder import const
from steelyard_kernels.expr import Program
from steelyard_kernels.loops import Kernel, Operand
from steelyard_kernels.schedule.normalization.passes import (
    ROW,
    UNIFORM,
    Pass,
    Rows,
    Sum,
    Walk,
)
from steelyard_kernels.schedule.normalization.schedule import (
    Normalization,
    check_scratch,
    check_streaming,
    passes_of,
    store_alignment,
)
from steelyard_kernels.schedule.normalization.sums import (
    accumulate,
    cancelled,
    finish,
    neutral,
    total,
)
from steelyard_kernels.schedule.normalization.values import (
    Knobs,
    Row,
    RowValues,
    Scope,
    hoistable,
)
from steelyard_kernels.schedule.parameters import (
    Arguments,
    Lowered,
    arguments,
    extent_slot,
)
from steelyard_kernels.schedule.pointwise.schedule import LINE
from steelyard_kernels.schedule.tile import Carried, tile_constant
from steelyard_kernels.schedule.values import Env, operand

# visit(k, env, carried, at, mask) uses one vector of the block's row k and returns what
# the row carries on.
Visit: TypeAlias = Callable[[int, Env, Carried, Operand, Operand | None], Carried]
Totals: TypeAlias = dict[int, dict[str, Operand]]


def lower(
    program: Program, schedule: Normalization, *, aligned: bool = True
) -> Lowered:
    """Return the loop-level kernel; `aligned`: every output starts on a cache line."""
    rows = passes_of(program, schedule.statistics, schedule.keep)
    check_streaming(program, schedule, rows, aligned=aligned)
    check_scratch(rows, schedule)
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


class RowEmitter:
    """Emits a program cut into passes."""

    def __init__(self, rows: Rows, args: Arguments, knobs: Knobs) -> None:
        self.values = RowValues(rows, args, knobs)
        self.b = self.values.b
        self.rows = rows
        self.args = args
        self.knobs = knobs
        self.lanes = knobs.lanes

    def kernel(self) -> Kernel:
        """Emit the whole kernel; its last parameter is the number of rows."""
        b, knobs = self.b, self.knobs
        self.values.scratch = tuple(
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
            blocks = b.at("div", b.at("sub", high, low), block)
            whole = b.at("add", low, b.at("mul", blocks, block))
        with b.loop(low, whole, block) as loop:
            self._block(scope, loop.var, block)
        if ragged:
            with b.loop(whole, high, 1) as loop:
                self._block(scope, loop.var, 1)

    def _block(self, scope: Scope, first: Operand, count: int) -> None:
        """Emit all passes over `count` rows from `first` on."""
        block = [self.values.row(scope, first, k) for k in range(count)]
        last = len(self.rows.passes) - 1
        for index, each in enumerate(self.rows.passes):
            prefetch = self.knobs.prefetch and index == last
            self._pass(each, block, prefetch=prefetch)
            for row in block:
                self.values.scalars(row.scope, row.starts, ROW, index + 1)
        self._row_outputs(block)

    def _pass(self, each: Pass, block: Sequence[Row], *, prefetch: bool) -> None:
        """Emit one walk over the block, then what its reductions come to."""
        b, lanes = self.b, self.lanes
        shifts = [self.values.shifts(each, row) for row in block]
        wide = [
            {number: b.splat(value, lanes) for number, value in row_shifts.items()}
            for row_shifts in shifts
        ]
        start = [neutral(item, lanes) for item in each.sums]

        def visit(
            k: int, env: Env, into: Carried, at: Operand, mask: Operand | None
        ) -> Carried:
            row = block[k]
            out: list[Operand] = []
            for item, values in zip(each.sums, start, strict=True):
                mine = into[len(out) : len(out) + len(values)]
                shift = wide[k].get(item.arg.number)
                if item.kind != "moments":
                    shift = None
                out += accumulate(b, item, env, mine, shift=shift, mask=mask)
            self._keep(each, env, row, at)
            self._store(each, env, row, at, mask)
            return tuple(out)

        first = tuple(value for values in start for value in values)
        parts = self._walk(each.walk, block, first, visit, prefetch=prefetch)
        found = [
            self._finish(each, start, mine, its)
            for mine, its in zip(parts, shifts, strict=True)
        ]
        if each.again is not None:
            self._walk_again(each, each.again, block, found)
        for row, values in zip(block, found, strict=True):
            for node in each.reduces:
                value = values[node.arg.number][node.op]
                row.scope.scalars[node.number] = b.cast(value, node.dtype)

    def _walk(
        self,
        walk: Walk,
        block: Sequence[Row],
        first: Carried,
        visit: Visit,
        *,
        prefetch: bool = False,
    ) -> list[list[Carried]]:
        """Emit a walk over the block that carries `first` for every row and vector.

        Returns what each row carries in the end: one tuple an unrolled vector.
        """
        b, lanes, unroll = self.b, self.lanes, self.knobs.unroll
        width = len(first)

        def body(
            at: Operand, vectors: int, mask: Operand | None, carried: Carried
        ) -> Carried:
            out = list(carried)
            for u in range(vectors):
                place = b.at("add", at, u * lanes)
                shared = self.values.columns(walk, block[0], place, mask)
                if prefetch and mask is None:
                    self.values.prefetch(block, place, u)
                for k, row in enumerate(block):
                    env = self.values.elements(walk, row, shared, place, mask)
                    begin = (k * unroll + u) * width
                    mine = tuple(out[begin : begin + width])
                    out[begin : begin + width] = visit(k, env, mine, place, mask)
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

    def _keep(self, each: Pass, env: Env, row: Row, at: Operand) -> None:
        """Emit the stores to scratch; its rows are padded, so no mask is needed."""
        for node in each.walk.elements:
            if node.number in each.stores:
                buffer, begin = self.values.slot(node, row)
                self.b.store(buffer, self.b.at("add", at, begin), env[node.number])

    def _store(
        self, each: Pass, env: Env, row: Row, at: Operand, mask: Operand | None
    ) -> None:
        """Emit the outputs of this pass; those of whole vectors may stream."""
        b = self.b
        alignment = self.knobs.stream_alignment if mask is None else 0
        for place in each.outputs:
            value = self.rows.program.outputs[place].value
            b.store(
                self.args.outputs[place],
                b.at("add", row.out, at),
                operand(b, env, value, self.lanes),
                mask,
                streaming=alignment > 0,
                alignment=alignment,
            )

    def _finish(
        self,
        each: Pass,
        start: Sequence[Carried],
        parts: Sequence[Carried],
        shifts: Mapping[int, Operand],
    ) -> Totals:
        """Emit what a row's sums come to, by argument and the reduction's name."""
        found: Totals = {}
        place = 0
        for item, values in zip(each.sums, start, strict=True):
            mine = [part[place + i] for part in parts for i in range(len(values))]
            place += len(values)
            totals = total(self.b, item, mine)
            shift = shifts.get(item.arg.number)
            results = finish(self.b, item, totals, shift, self.rows.extent)
            found.setdefault(item.arg.number, {}).update(results)
        return found

    def _walk_again(
        self, each: Pass, walk: Walk, block: Sequence[Row], found: Sequence[Totals]
    ) -> None:
        """Emit a second walk for the variances, taken where a row cancelled."""
        b = self.b
        args = [item.arg for item in each.sums if item.kind == "moments"]
        items = [Sum("squares", arg, frozenset()) for arg in args]
        mine = [values[arg.number] for values in found for arg in args]
        lost = [cancelled(b, values) for values in mine]
        means = [values["mean"] for values in mine]
        kept = not walk.columns and walk.loads >= {n.number for n in walk.elements}
        with b.branch(reduce(lambda x, y: b.let("or", x, y), lost)) as branch:
            if kept and len(block) > 1:
                exact = self._squares_by_row(walk, len(block), items, means)
            else:
                exact = self._squares(walk, block, items, means)
            branch.gives(*exact)
            branch.otherwise()
            branch.gives(*(values["var"] for values in mine))
        for values, result in zip(mine, branch.results, strict=True):
            values["var"] = result

    def _squares(
        self,
        walk: Walk,
        block: Sequence[Row],
        items: Sequence[Sum],
        means: Sequence[Operand],
    ) -> list[Operand]:
        """Emit the mean squared distance from the mean, by row and then by item."""
        b, lanes = self.b, self.lanes
        spread = [b.splat(mean, lanes) for mean in means]

        def visit(
            k: int, env: Env, into: Carried, _at: Operand, mask: Operand | None
        ) -> Carried:
            out: list[Operand] = []
            for place, (item, value) in enumerate(zip(items, into, strict=True)):
                mean = spread[k * len(items) + place]
                out += accumulate(b, item, env, (value,), shift=mean, mask=mask)
            return tuple(out)

        start = tuple(neutral(item, lanes)[0] for item in items)
        exact: list[Operand] = []
        for parts in self._walk(walk, block, start, visit):
            for place, item in enumerate(items):
                (sum_,) = total(b, item, [part[place] for part in parts])
                share = const(1 / self.rows.extent, sum_.type.dtype)
                exact.append(b.let("mul", sum_, share))
        return exact

    def _squares_by_row(
        self, walk: Walk, count: int, items: Sequence[Sum], means: Sequence[Operand]
    ) -> list[Operand]:
        """Emit the same as a loop over rows that scratch keeps: rare, so kept short."""
        b = self.b
        dtypes = [mean.type.dtype for mean in means[: len(items)]]
        buffers = [b.alloc("again", dtype, count) for dtype in dtypes]
        places = [(k, buffer) for k in range(count) for buffer in buffers]
        for (k, buffer), mean in zip(places, means, strict=True):
            b.store(buffer, k, mean)
        with b.loop(0, count, 1) as loop:
            row = Row(loop.var, loop.var, {}, Scope({}, {}), loop.var)
            mine = [b.load(buffer, loop.var) for buffer in buffers]
            exact = self._squares(walk, [row], items, mine)
            for buffer, value in zip(buffers, exact, strict=True):
                b.store(buffer, loop.var, value)
        return [b.load(buffer, k) for k, buffer in places]

    def _row_outputs(self, block: Sequence[Row]) -> None:
        """Emit the outputs that have one value a row."""
        wide = {place for each in self.rows.passes for place in each.outputs}
        for place, output in enumerate(self.rows.program.outputs):
            if place not in wide:
                for row in block:
                    value = row.scope.scalars[output.value.number]
                    self.b.store(self.args.outputs[place], row.number, value)
