"""The lowering of a matrix product for tensor cores: loops of copies and of products.

Each warpgroup multiplies 64 rows, or some times 64, by the block's columns, and `sums`
stores what follows from its sums. Where copies are not in bulk, all threads copy tiles
of both factors some steps ahead of what they multiply, and a barrier a step keeps them
together. In bulk, a block's last warp has one thread that copies; a stage is full when all bytes of its copies
are there, and empty when every warpgroup has read it: mbarriers count both, by phases
whose parity changes whenever all stages have been used. Blocks of a cluster that divide
the depth send each other the sums of columns that others store, which add them in one
order.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Final

from steelyard_kernels.dtypes import float32
from steelyard_kernels.ir.builder import const
from steelyard_kernels.ir.loops import Buffer, Multiply, Operand, Tile
from steelyard_kernels.nest.loads import Loads, Start
from steelyard_kernels.nest.sums import Position, Sums
from steelyard_kernels.nest.tiles import Tiles
from steelyard_kernels.schedule.contraction import HALF, UNIT, Factor
from steelyard_kernels.schedule.parameters import Lowered
from steelyard_kernels.schedule.product_tiling import (
    DEPTH,
    FEWER_REGISTERS,
    MORE_REGISTERS,
    REPEATS,
    ROWS,
    STEP,
    Tiling,
)
from steelyard_kernels.schedule.tile import Carried

TOGETHER: Final = 8  # rows of tiles that blocks which stay walk together, for the L2
SPELLED: Final = 4  # steps that the compiler spells out where each has its own stage


def lower(tiling: Tiling) -> Lowered:
    """Return the loop-level kernel of a product under a tiling that fits it."""
    return (_InBulk if tiling.bulk else _ByThreads)(tiling).emit()


class _Lowering(Tiles):
    """Emits one block of a tiling."""

    def __init__(self, tiling: Tiling) -> None:
        product = tiling.product
        super().__init__(tiling, {"rows": product.rows, "columns": product.columns})
        self.rank = self.b.number(0)
        if tiling.split > 1:
            self.rank = self.b.at("rem", self.block, tiling.split)
        sums = tiling.repeats * tiling.columns // 2
        self.sums = self.b.alloc("sums", float32, sums, "register")
        self.stores = Sums(tiling, self.emitter, self.memory, self.thread)
        arrays = self.args.inputs
        self.loads = Loads(tiling, self.b, arrays, self.memory, self.thread)
        self.opened = ExitStack()  # loops at which windows are read
        self.loaded = [source.factor for source in self.loads.sources]

    def depth(self, step: Operand) -> Operand:
        """Emit where a step of this block begins along the depth."""
        b = self.b
        own = b.at("multiply", self.rank, self.tiling.steps)
        return b.at("multiply", b.at("add", own, step), STEP)

    def position(self, tile: Operand) -> Position:
        """Emit which matrix of the batch, row and column a tile begins at."""
        b, (batch, down, over) = self.b, self.tiling.tiles
        matrix = b.number(0)
        if batch > 1:
            matrix = b.at("div", tile, down * over)
            tile = b.at("rem", tile, down * over)
        if self.tiling.blocks:  # so many rows of tiles together, by columns
            first = b.at("multiply", b.at("div", tile, TOGETHER * over), TOGETHER)
            inside = b.at("rem", tile, TOGETHER * over)
            high = b.at("minimum", b.at("subtract", down, first), TOGETHER)
            row = b.at("add", first, b.at("rem", inside, high))
            column = b.at("div", inside, high)
        else:  # neighbours read the same columns
            row, column = b.at("rem", tile, down), b.at("div", tile, down)
        return Position(
            self.matrix(matrix),
            b.at("multiply", row, self.tiling.tall),
            b.at("multiply", column, self.tiling.columns),
        )

    def step(self, step: Operand, stage: Operand) -> None:
        """Emit the products of one stage, for warpgroups as one group of them."""
        b, tiling = self.b, self.tiling
        by_warp, apart = tiling.cores.by_warp, tiling.groups * ROWS * STEP
        rows = b.at("multiply", stage, tiling.tall * STEP)
        if tiling.groups > 1:
            rows = b.at("add", rows, b.at("multiply", self.group, ROWS * STEP))
        columns = b.at("multiply", stage, tiling.columns * STEP)
        if not by_warp:
            b.effect("mma_begin")
        for k in range(REPEATS):
            left = self.tile("rows", self.product.rows, rows, ROWS, k)
            right = self.tile("columns", self.product.columns, columns, tiling.chunk, k)
            firsts = [left.first + each * apart for each in range(tiling.repeats)]
            lefts = tuple([replace(left, first=first) for first in firsts])
            more = b.number(1) if k or by_warp else step
            b.body.append(Multiply(self.sums, lefts, right, more, by_warp))
        if not by_warp:
            b.effect("mma_commit")

    def tile(
        self, name: str, factor: Factor, first: Operand, width: int, k: int
    ) -> Tile:
        """Emit where a factor's part of an instruction begins, and how it lies."""
        across = factor.across
        row = (width if across else STEP) * HALF
        further = k * DEPTH * (width if across else 1)
        leading = STEP * row if across else UNIT
        return Tile(self.memory[name], first, further, row, across, leading, 8 * row)


class _ByThreads(_Lowering):
    """All threads copy, some steps ahead of what they multiply."""

    def emit(self) -> Lowered:
        """Emit the block, and close the kernel."""
        self.number_groups()
        self.tiles(self.multiplied, ())
        return self.lowered(self.product.sums.behind, self.loaded)

    def multiplied(self, number: Operand, _: Carried) -> Carried:
        """Emit one tile: its copies, its products, and what is stored of them."""
        b, tiling = self.b, self.tiling
        at, ahead = self.position(number), max(tiling.stages - tiling.slack, 1)
        by_warp = tiling.cores.by_warp
        starts = self.loads.starts(at, self.opened)
        for step in range(ahead):
            self.bring(starts, b.number(step), b.number(step))
        each = tiling.columns // 2
        for place in range(tiling.repeats * each if by_warp else 0):
            b.store(self.sums, place, const(0, float32))
        self.stores.prepare(at)
        first = b.number(0), b.number(ahead % tiling.stages)
        with b.loop(0, tiling.steps, 1, *first, unroll=1) as loop:
            stage, free = loop.carried
            b.effect("copy_wait", b.number(ahead - 1))
            if not by_warp:
                b.effect("async_publish")
            b.effect("barrier")  # all have copied this stage, and read the free one
            if tiling.steps > ahead:
                following = b.at("add", loop.var, ahead)
                with b.branch(b.let("less", following, b.number(tiling.steps))):
                    self.bring(starts, following, free, commits=False)
            b.effect("copy_commit")
            self.step(loop.var, stage)
            if not by_warp:
                b.effect(
                    "mma_wait", self.sums, b.number(1)
                )  # the step before has ended
            loop.yields(*self.after(stage), *self.after(free))
        if not by_warp:
            b.effect("mma_wait", self.sums, b.number(0))
        self.opened.close()
        if tiling.blocks:
            b.effect("barrier")
        for repeat in range(tiling.repeats):
            if repeat:
                further = b.at("add", at.row, repeat * ROWS * tiling.groups)
                self.stores.prepare(replace(at, row=further))
            self.stores.emit(self.sums, repeat * each)
        return ()

    def bring(
        self,
        starts: list[Start],
        step: Operand,
        stage: Operand,
        *,
        commits: bool = True,
    ) -> None:
        """Emit a thread's copies of one step to a stage."""
        for start in starts:
            self.loads.emit(start, stage, self.depth(step))
        if commits:
            self.b.effect("copy_commit")


class _InBulk(_Lowering):
    """A warp copies in bulk, ahead of warpgroups that multiply."""

    def __init__(self, tiling: Tiling) -> None:
        super().__init__(tiling)
        product = tiling.product
        for place, (name, factor) in enumerate(self.factors.items()):
            if factor.bulk:
                tile = (ROWS * tiling.groups, tiling.columns)[place]
                width = tiling.chunk if place else ROWS
                box = (width, STEP) if factor.across else (STEP, tile)
                own, depth = (product.extents[axis] for axis in (1 + place, 3))
                self.describe(name, (own, depth), box)

    def emit(self) -> Lowered:
        """Emit the block, and close the kernel."""
        b, tiling = self.b, self.tiling
        self.begin()
        multiplies = b.let("less", self.thread, b.number(tiling.consumers))
        with b.branch(multiplies) as roles:
            if tiling.hands_over:
                b.effect("registers_take", b.number(MORE_REGISTERS))
            self.consume()
            if tiling.ring:
                roles.otherwise()
                if tiling.hands_over:
                    b.effect("registers_leave", b.number(FEWER_REGISTERS))
                with b.branch(self.is_copying()):
                    self.produce()
        return self.lowered(self.product.sums.behind, self.loaded)

    def is_copying(self) -> Operand:
        """Emit whether this is the thread that copies."""
        return self.b.let("equal", self.thread, self.b.number(self.tiling.consumers))

    def begin(self) -> None:
        """Emit the barriers' beginning, and the first copies, which wait for nothing."""
        b, tiling = self.b, self.tiling
        with b.branch(self.is_copying()):
            for tensor in self.tensors.values():
                b.effect("tensor_prefetch", tensor)
            for stage in range(tiling.stages):
                self.barrier("init", "full", stage, 1)
                if tiling.ring:
                    self.barrier("init", "empty", stage, tiling.groups)
            if tiling.split > 1:
                self.barrier("init", "arrived", 0, 1)
                partial = self.memory["partial"]
                size = getattr(partial.extent, "value", 0) * partial.dtype.bytes
                self.barrier("expect", "arrived", 0, int(size))
            b.effect("mbarrier_publish")
            if self.tensors and not tiling.blocks:
                at = self.position(b.at("div", self.block, tiling.split))
                with b.loop(0, tiling.stages, 1, unroll=tiling.stages) as loop:
                    self.copies(loop.var, loop.var, at)
        if self.loaded:
            with b.branch(b.let("less", self.thread, b.number(tiling.consumers))):
                at = self.position(b.at("div", self.block, tiling.split))
                for start in self.loads.starts(at, self.opened):
                    with b.loop(
                        0, tiling.steps, 1, unroll=self.loads.most(start)
                    ) as loop:
                        self.loads.emit(start, loop.var, self.depth(loop.var))
            b.effect("async_publish")
        b.effect("barrier")
        if tiling.split > 1:
            b.effect("cluster_arrive")

    def copies(self, step: Operand, stage: Operand, at: Position) -> None:
        """Emit the copies of one step to a stage."""
        b, tiling = self.b, self.tiling
        tall = tiling.tall
        depth = self.depth(step)
        sides = (
            (self.product.rows, "rows", at.row, tall),
            (self.product.columns, "columns", at.column, tiling.columns),
        )
        bulk = [side for side in sides if side[0].bulk]
        size = sum(count for *_, count in bulk) * STEP * HALF
        self.barrier("expect", "full", stage, size)
        for factor, name, first, count in bulk:
            width = self.tensors[name].box[0] if factor.across else count
            for begin in range(0, count, width):
                to = b.at("add", b.at("multiply", stage, count * STEP), begin * STEP)
                corner = b.at("add", first, begin), depth
                self.copy(name, to, ("full", stage), corner, at.matrix)

    def produce(self) -> None:
        """Emit the copies that wait for a stage to be empty."""
        b, tiling = self.b, self.tiling
        # Of a barrier that nobody arrived at, the phase before the first one is over.
        first, parity = (0, 1) if tiling.blocks else (tiling.stages, 0)

        def steps(number: Operand, carried: Carried) -> Carried:
            at = self.position(number)
            with b.loop(first, tiling.steps, 1, *carried, unroll=1) as loop:
                stage, parity = loop.carried
                b.effect("mbarrier_wait", self.memory["empty"], stage, parity)
                self.copies(loop.var, stage, at)
                loop.yields(*self.after(stage, parity))
            return loop.results

        self.tiles(steps, (b.number(0), b.number(parity)))

    def consume(self) -> None:
        """Emit the products of every tile, and what is stored of them."""
        b, tiling = self.b, self.tiling
        self.number_groups()

        def tile(number: Operand, carried: Carried) -> Carried:
            at = self.position(number)
            if tiling.split > 1:
                own = b.at("multiply", self.rank, tiling.owned)
                at = replace(at, column=b.at("add", at.column, own))
            self.stores.prepare(at)
            carried = self.ring(carried) if tiling.ring else self.stages()
            self.stores.emit(self.exchanged() if tiling.split > 1 else self.sums)
            return carried

        self.tiles(tile, (b.number(0), b.number(0)))

    def ring(self, carried: Carried) -> Carried:
        """Emit all steps, each behind a wait for its stage; return the next stage."""
        b = self.b
        leads = self.leads()
        with b.loop(0, self.tiling.steps, 1, *carried, b.number(0), unroll=1) as loop:
            stage, parity, before = loop.carried
            b.effect("mbarrier_wait", self.memory["full"], stage, parity)
            self.step(loop.var, stage)
            b.effect("mma_wait", self.sums, b.number(1))  # the step before has ended
            follows = b.let("greater", loop.var, b.number(0))
            with b.branch(b.let("bitwise_and", leads, follows)):
                self.barrier("arrive", "empty", before)
            loop.yields(*self.after(stage, parity), stage)
        b.effect("mma_wait", self.sums, b.number(0))
        *carried_on, last = loop.results
        if self.tiling.blocks:
            with b.branch(leads):
                self.barrier("arrive", "empty", last)
        return tuple(carried_on)

    def stages(self) -> Carried:
        """Emit all steps where each has a stage of its own."""
        b, steps = self.b, self.tiling.steps
        spelled = steps if steps <= SPELLED else 1
        with b.loop(0, steps, 1, unroll=spelled) as loop:
            if self.tensors:
                zero = b.number(0)
                b.effect("mbarrier_wait", self.memory["full"], loop.var, zero)
            self.step(loop.var, loop.var)
            if spelled == 1:
                b.effect("mma_wait", self.sums, b.number(1))
        b.effect("mma_wait", self.sums, b.number(0))
        return ()

    def exchanged(self) -> Buffer:
        """Emit the exchange of partial sums; return those of this block's columns."""
        b, tiling, thread = self.b, self.tiling, self.thread
        count = tiling.owned // 8  # of four sums, of two rows and two columns
        own = b.alloc("own", float32, 4 * count, "register")
        partial, arrived = self.memory["partial"], self.memory["arrived"]
        apart = 4 * tiling.consumers
        mine = b.at("multiply", thread, 4)
        b.effect("cluster_wait")  # others have published their barriers
        for rank in range(tiling.split):
            with b.branch(b.let("equal", self.rank, b.number(rank))) as kept:
                for k in range(0, 4 * count, 4):
                    b.store(own, k, b.load(self.sums, rank * 4 * count + k, 4))
                kept.otherwise()
                below = b.let("less", self.rank, b.number(rank))
                lower = b.at("subtract", self.rank, 1)
                place = b.let("where", below, self.rank, lower)
                to = b.at("add", b.at("multiply", place, count * apart), mine)
                for k in range(count):
                    four = b.load(self.sums, 4 * (rank * count + k), 4)
                    at = b.at("add", to, k * apart)
                    there = b.number(rank)
                    b.effect(
                        "store_far", partial, at, four, there, arrived, b.number(0)
                    )
        self.barrier("wait_far", "arrived", 0, 0)
        for other in range(tiling.split - 1):
            for k in range(count):
                at = b.at("add", mine, (other * count + k) * apart)
                more = b.load(partial, at, 4, alignment=UNIT)
                total = b.let("add", b.load(own, 4 * k, 4), more)
                b.store(own, 4 * k, total)
        return own
