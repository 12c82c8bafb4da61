"""The lowering of a product whose factors are copied in bulk, as Hopper does.

A block's last warp has one thread that copies tiles of both factors, some steps ahead of
the others. A stage is full when all bytes of its copies are there, and empty when every
warpgroup has read it: mbarriers count both, by phases whose parity changes whenever all
stages have been used. Blocks of a cluster may divide the depth.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from steelyard_kernels.ir.loops import Operand
from steelyard_kernels.nest.product import Lowering
from steelyard_kernels.nest.sums import Position
from steelyard_kernels.schedule.contraction import LINE
from steelyard_kernels.schedule.parameters import Lowered
from steelyard_kernels.schedule.product_tiling import (
    FEWER_REGISTERS,
    MORE_REGISTERS,
    ROWS,
    Tiling,
)
from steelyard_kernels.schedule.tile import Carried

SPELLED: Final = 4  # steps that the compiler spells out where each has its own stage


class InBulk(Lowering):
    """A warp copies in bulk, ahead of warpgroups that multiply."""

    def __init__(self, tiling: Tiling) -> None:
        super().__init__(tiling)
        product = tiling.product
        for place, (name, factor) in enumerate(self.factors.items()):
            if factor.bulk:
                tile = (ROWS * tiling.groups, tiling.columns)[place]
                width = tiling.chunk if place else ROWS
                step = product.step
                own, depth = (product.extents[axis] for axis in (1 + place, 3))
                # Rows beyond all of one tile's would take their time, full of zeros.
                box = (width, step) if factor.across else (step, min(tile, own))
                self.describe(name, (own, depth), box)

    def ranked(self) -> tuple[Operand, Operand]:
        """Emit which block of its cluster this is."""
        return self.b.at("rem", self.block, self.tiling.split), self.thread

    def send(self, rank: int, place: Operand, four: Operand) -> None:
        """Emit the store of sums in another block."""
        b, zero = self.b, self.b.number(0)
        partial, arrived = self.memory["partial"], self.memory["arrived"]
        b.effect("store_far", partial, place, four, b.number(rank), arrived, zero)

    def meet(self) -> Operand:
        """Emit the wait for what other blocks send."""
        self.barrier("wait_far", "arrived", 0, 0)
        return self.b.number(0)

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
        tall, line = tiling.tall, self.product.step
        depth = self.depth(step)
        sides = (
            (self.product.rows, "rows", at.row, tall),
            (self.product.columns, "columns", at.column, tiling.columns),
        )
        bulk = [side for side in sides if side[0].bulk]
        size = sum(
            (count if factor.across else self.tensors[name].box[1]) * LINE
            for factor, name, _, count in bulk
        )
        self.barrier("expect", "full", stage, size)
        for factor, name, first, count in bulk:
            width = self.tensors[name].box[0] if factor.across else count
            for begin in range(0, count, width):
                to = b.at("add", b.at("multiply", stage, count * line), begin * line)
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
            self.clear()
            self.stores.prepare(at)
            carried = self.ring(carried) if tiling.ring else self.stages()
            if tiling.split > 1:
                b.effect("cluster_wait")  # others have published their barriers
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
            self.await_products(1)  # the step before has ended
            if self.product.promotes:  # this one has
                with b.branch(leads):
                    self.barrier("arrive", "empty", stage)
            else:
                follows = b.let("greater", loop.var, b.number(0))
                with b.branch(b.let("bitwise_and", leads, follows)):
                    self.barrier("arrive", "empty", before)
            loop.yields(*self.after(stage, parity), stage)
        self.await_products(0)
        *carried_on, last = loop.results
        if self.tiling.blocks and not self.product.promotes:
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
                self.await_products(1)
        self.await_products(0)
        return ()
