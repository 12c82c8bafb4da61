"""Lowering of passes over rows for a GPU: a warp or a block has a row, or a few.

A thread takes `batches` vectors of a row, spaced by the threads of the row, and holds
what later passes need in registers. Loads of a row are all on their way before the
first is used; a vector that not every thread has is the last one, behind one
condition. Every thread gets every total, so scalars are computed by all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from steelyard_kernels.dtypes import DType
from steelyard_kernels.expression.expr import Input, Program
from steelyard_kernels.ir.builder import Builder
from steelyard_kernels.ir.loops import Buffer, Kernel, Operand
from steelyard_kernels.schedule.gpu import (
    WARP,
    extent_slot,
    index_type,
)
from steelyard_kernels.schedule.normalization.cuda import (
    CudaNormalization,
    allowance,
    check,
    demand,
    reload_unroll,
)
from steelyard_kernels.schedule.normalization.emitter import PassEmitter, Visit
from steelyard_kernels.schedule.normalization.outline import UNIFORM
from steelyard_kernels.schedule.normalization.passes import Rows, Sum, Walk, passes_of
from steelyard_kernels.schedule.normalization.values import (
    Row,
    RowValues,
    Scope,
    Spot,
)
from steelyard_kernels.schedule.parameters import Arguments, Lowered, arguments
from steelyard_kernels.schedule.tile import Carried
from steelyard_kernels.schedule.warp import Group, across_group, across_lanes

# body(spot, carried) uses one vector of every row and returns what is carried on.
Body: TypeAlias = Callable[[Spot, Carried], Carried]

ALIGNMENT = 16  # bytes, of every output's first element where `aligned`


def lower(
    program: Program, schedule: CudaNormalization, *, aligned: bool = True
) -> Lowered:
    """Return the loop-level kernel.

    `aligned`: every array starts at a multiple of 16 bytes. Raises KernelError for a
    schedule that does not fit the program.
    """
    rows = passes_of(program, schedule.statistics, schedule.keep, corrected=False)
    check(rows, schedule, aligned=aligned)
    args = arguments(rows.program, ALIGNMENT if aligned else 0)
    kernel = GroupEmitter(rows, args, schedule).kernel()
    extent = extent_slot(index_type(rows.program), rows.rows)
    return Lowered(kernel, (*args.slots, extent), schedule.block, schedule.per_block)


class ThreadValues(RowValues):
    """Emits the values of a thread; `staged` are inputs that lie in registers."""

    def __init__(
        self, rows: Rows, args: Arguments, schedule: CudaNormalization
    ) -> None:
        b = Builder(index_type(rows.program))
        pitch = schedule.batches * schedule.lanes
        super().__init__(rows, args, b, schedule.lanes, pitch, target="cuda")

    def fetch(self, node: Input, row: Row, spot: Spot) -> Operand:
        """Emit one vector of a row of an input, from registers if it is there."""
        if node.number not in self.staged:
            return super().fetch(node, row, spot)
        begin = self.b.at("multiply", row.place, self.pitch)
        return self.vector(self.staged[node.number], self.b.at("add", spot.kept, begin))


class GroupEmitter(PassEmitter[ThreadValues]):
    """Emits a program cut into passes, for one thread of a GPU."""

    def __init__(
        self, rows: Rows, args: Arguments, schedule: CudaNormalization
    ) -> None:
        super().__init__(
            ThreadValues(rows, args, schedule),
            shifted=schedule.statistics == "shifted",
        )
        self.schedule = schedule
        self.ragged = rows.rows % schedule.per_block != 0
        self.group = Group(self.b.number(0), WARP)  # until the kernel begins
        self.begin: Operand = self.b.number(0)  # of the thread's first vector
        self.leads: Operand | None = None
        self.tail: Operand | None = None  # whether this thread has the guarded vector
        self.tail_mask: Operand | None = None

    def kernel(self) -> Kernel:
        """Emit the whole kernel; its last parameter is the number of rows."""
        b, schedule = self.b, self.schedule
        first = self._place()
        scope = Scope({}, {})
        self.values.scalars(scope, {}, UNIFORM, 0)
        self.values.kept = tuple(
            self._registers(f"kept{slot}", dtype)
            for slot, dtype in enumerate(self.rows.slots)
        )
        if self.ragged and schedule.rows > 1:
            with b.branch(b.let("less", first, self.values.count)):
                self.passes(self._rows(scope, first))
        else:
            self.passes(self._rows(scope, first))
        order = (*self.args.order, self.values.count)
        return b.kernel(
            "kernel",
            order,
            threads=schedule.block,
            registers=schedule.registers or allowance(demand(self.rows), schedule),
        )

    def _place(self) -> Operand:
        """Emit who this thread is; returns the first row of its group."""
        b, schedule = self.b, self.schedule
        thread: Operand = b.thread()
        first = b.at("multiply", b.block(), schedule.per_block)
        if schedule.rows > 1:
            group = b.at("div", thread, WARP)
            first = b.at("add", first, b.at("multiply", group, schedule.unroll))
            thread = b.at("rem", thread, WARP)
        self.group = Group(thread, schedule.threads)
        self.leads = b.let("equal", thread, b.number(0))
        self.begin = b.at("multiply", thread, self.lanes)
        rest = self.rows.extent // self.lanes % schedule.threads
        if rest:
            self.tail = b.let("less", thread, b.number(rest))
            self.tail_mask = b.splat(self.tail, self.lanes)
        return first

    def _rows(self, scope: Scope, first: Operand) -> list[Row]:
        """Emit where the rows of the group are.

        The first exists. Another that does not is the last row once more, whose
        results are not stored: so loads need no condition.
        """
        b, block = self.b, []
        for k in range(self.schedule.unroll):
            number = b.at("add", first, k)
            live = None
            if k and self.ragged:
                live = b.let("less", number, self.values.count)
                number = b.at("minimum", number, b.at("subtract", self.values.count, 1))
            block.append(self.values.row(scope, number, k, live))
        return block

    def walk(
        self,
        walk: Walk,
        block: Sequence[Row],
        first: Carried,
        visit: Visit,
        *,
        final: bool = False,  # noqa: ARG002 - a CPU prefetches the next block then
    ) -> list[list[Carried]]:
        """Emit a walk; every row has one accumulator for each of a sum's."""
        width = len(first)
        main = any(walk is each.walk for each in self.rows.passes)
        unroll = bool(walk.loads) or (main and self.schedule.keep != "reload")
        if main and unroll:
            self._stage(walk, block)

        def body(spot: Spot, carried: Carried) -> Carried:
            out = list(carried)
            shared = self.values.columns(walk, block[0], spot)
            for k, row in enumerate(block):
                env = self.values.elements(walk, row, shared, spot)
                begin = k * width
                mine = tuple(out[begin : begin + width])
                out[begin : begin + width] = visit(k, env, mine, spot)
            return tuple(out)

        if main or unroll:
            carried = self._tile(body, first * len(block), unroll=unroll)
        else:
            carried = self._roll(body, first * len(block))
        self.values.staged = {}
        return [[carried[k * width : (k + 1) * width]] for k in range(len(block))]

    def _tile(self, body: Body, first: Carried, *, unroll: bool = True) -> Carried:
        """Emit the thread's share of a row: whole batches, then a guarded one.

        Where kept values lie in registers their loop must be unrolled.
        """
        b, lanes, threads = self.b, self.lanes, self.schedule.threads
        begin = self.begin
        whole, rest = divmod(self.rows.extent // lanes, threads)
        carried = first
        if whole == 1:
            carried = body(Spot(begin, b.number(0)), carried)
        elif whole:
            times = whole if unroll else reload_unroll(whole)
            with b.loop(0, whole, 1, *carried, unroll=times) as loop:
                at = b.at("add", b.at("multiply", loop.var, threads * lanes), begin)
                kept = b.at("multiply", loop.var, lanes) if unroll else b.number(0)
                loop.yields(*body(Spot(at, kept), loop.carried))
            carried = loop.results
        if rest:
            at = b.at("add", begin, whole * threads * lanes)
            kept = b.number(whole * lanes)
            spot = Spot(at, kept, self.tail_mask, self.tail)
            carried = body(spot, carried)
        return carried

    def _roll(self, body: Body, first: Carried) -> Carried:
        """Emit the thread's share of a row vector by vector: the shortest text."""
        b = self.b
        step = self.schedule.threads * self.lanes
        with b.loop(self.begin, self.rows.extent, step, *first, unroll=1) as loop:
            loop.yields(*body(Spot(loop.var, b.number(0)), loop.carried))
        return loop.results

    def _stage(self, walk: Walk, block: Sequence[Row]) -> None:
        """Emit the loads of all inputs that a walk reads, before it uses the first."""
        values, passes = self.values, self.rows.passes
        inputs = [
            node
            for node in walk.elements
            if isinstance(node, Input) and node.number not in walk.loads
        ]
        alone = self.schedule.batches * len(block) == 1
        if alone or not inputs:
            return
        buffers = {}
        for node in inputs:
            slot = self.rows.scratch.get(node.number)
            # Only the first pass finds no older values in the slots.
            if slot is not None and walk is passes[0].walk:
                buffers[node.number] = values.kept[slot]
            else:
                buffers[node.number] = self._registers(node.name, node.dtype)

        def body(spot: Spot, _: Carried) -> Carried:
            for row in block:
                begin = self.b.at("multiply", row.place, values.pitch)
                at = self.b.at("add", spot.kept, begin)
                for node in inputs:
                    buffer = buffers[node.number]
                    value = values.fetch(node, row, spot)
                    alignment = values.alignment(buffer)
                    self.b.store(buffer, at, value, alignment=alignment)
            return ()

        self._tile(body, ())
        values.staged = buffers

    def _registers(self, name: str, dtype: DType) -> Buffer:
        """Return room for a value of every element that the thread holds."""
        extent = max(1, self.schedule.unroll * self.values.pitch)
        return self.b.alloc(name, dtype, extent, "register")

    def totals(
        self, items: Sequence[Sum], parts: Sequence[Sequence[Carried]]
    ) -> Iterator[tuple[Operand, ...]]:
        """Emit all totals of the block together: they share a barrier."""
        b = self.b
        combines = [
            item.monoid.combine for item in items for _ in range(item.accumulators)
        ]
        combines *= len(parts)
        vectors = [value for (row,) in parts for value in row]
        pairs = list(zip(combines, vectors, strict=True))
        values = [across_lanes(b, *pair) for pair in pairs]
        found = iter(across_group(b, self.group, combines, values))
        for _ in parts:
            for item in items:
                yield tuple(next(found) for _ in range(item.accumulators))

    def put(self, place: int, row: Row, spot: Spot, value: Operand) -> None:
        """Emit the store of one vector of an output."""
        b, buffer = self.b, self.args.outputs[place]
        live = self._both(row.live, spot.live)
        mask = None if live is None else b.splat(live, self.lanes)
        at = b.at("add", row.out, spot.at)
        b.store(buffer, at, value, mask, alignment=self.values.alignment(buffer))

    def put_row(self, place: int, row: Row, value: Operand) -> None:
        """Emit the store of a row's one value of an output, by one thread."""
        mask = self._both(row.live, self.leads)
        self.b.store(self.args.outputs[place], row.number, value, mask)

    def _both(self, left: Operand | None, right: Operand | None) -> Operand | None:
        """Emit the conjunction of two conditions, of which None always holds."""
        if left is None or right is None:
            return left if right is None else right
        return self.b.let("bitwise_and", left, right)
