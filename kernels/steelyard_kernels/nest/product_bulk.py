"""The lowering of a product whose factors are copied in bulk, as Hopper does.

A block's last warp has one thread that copies tiles of both factors, some steps ahead of
the others. A stage is full when all bytes of its copies are there, and empty when every
warpgroup has read it: mbarriers count both, by phases whose parity changes whenever all
stages have been used. Blocks of a cluster may divide the depth, and may share columns:
each copies a part of their tile to all, when all have read what was there.
"""

from __future__ import annotations

from collections.abc import Collection
from math import prod
from typing import Final

from msgspec.structs import replace

from steelyard_kernels.ir.loops import Operand
from steelyard_kernels.nest.product import Lowering
from steelyard_kernels.nest.sums import Position
from steelyard_kernels.schedule.contraction import LINE
from steelyard_kernels.schedule.parameters import Lowered
from steelyard_kernels.schedule.product_tiling import (
    FEWER_REGISTERS,
    GROUP,
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
        self.shared = frozenset({"columns"} if tiling.sharing > 1 else ())
        for place, (name, factor) in enumerate(self.factors.items()):
            if factor.bulk:
                tile = (ROWS * tiling.groups, tiling.columns)[place]
                width = tiling.chunk if place else ROWS
                step = product.step
                own, depth = (product.extents[axis] for axis in (1 + place, 3))
                parts = tiling.sharing if place else 1
                # Rows beyond all of one tile's would take their time, full of zeros.
                tall = min(tile, own) if parts == 1 else tile // parts
                box = (width, step // parts) if factor.across else (step, tall)
                self.describe(name, (own, depth), box)

    def ranked(self) -> tuple[Operand, Operand]:
        """Emit which block of its cluster this is."""
        return self.b.at("rem", self.block, self.tiling.split), self.thread

    def send(self, rank: int, place: Operand, four: Operand) -> None:
        """Emit the store of sums in another block."""
        b, zero = self.b, self.b.number(0)
        first = b.at(
            "multiply", self.share, self.tiling.split
        )  # that divides the depth
        partial, arrived = self.memory["partial"], self.memory["arrived"]
        block = b.at("add", first, rank)
        b.effect("store_far", partial, place, four, block, arrived, zero)

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
                    self.barrier("init", "empty", stage, tiling.groups * tiling.sharing)
            if tiling.split > 1:
                self.barrier("init", "arrived", 0, 1)
                partial = self.memory["partial"]
                size = getattr(partial.extent, "value", 0) * partial.dtype.bytes
                self.barrier("expect", "arrived", 0, int(size))
            b.effect("mbarrier_publish")
            self.first_copies(*self.tensors.keys() - self.shared)
        if self.loaded:
            with b.branch(b.let("less", self.thread, b.number(tiling.consumers))):
                at = self.position(b.at("div", self.block, tiling.cluster))
                for start in self.loads.starts(at, self.opened):
                    with b.loop(
                        0, tiling.steps, 1, unroll=self.loads.most(start)
                    ) as loop:
                        self.loads.emit(start, loop.var, self.depth(loop.var))
            b.effect("async_publish")
        b.effect("barrier")
        if tiling.cluster > 1:
            b.effect("cluster_arrive")
        if self.shared:  # all wait: a part of a warp alone would wait for its others
            b.effect("cluster_wait")  # others have published their barriers
            with b.branch(self.is_copying()):
                self.first_copies(*self.shared)

    def first_copies(self, *names: str) -> None:
        """Emit the first copies of some factors, where they wait for nothing."""
        b, tiling = self.b, self.tiling
        if names and not tiling.blocks:
            at = self.position(b.at("div", self.block, tiling.cluster))
            with b.loop(0, tiling.stages, 1, unroll=tiling.stages) as loop:
                self.copies(loop.var, loop.var, at, names)

    def copies(
        self, step: Operand, stage: Operand, at: Position, names: Collection[str]
    ) -> None:
        """Emit the copies of one step to a stage; what is shared is not the first."""
        b, tiling = self.b, self.tiling
        line, depth = self.product.step, self.depth(step)
        sides = {
            "rows": (at.row, tiling.tall),
            "columns": (at.column, tiling.columns),
        }
        bulk = [(name, *sides[name]) for name in sides if name in self.tensors]
        size = sum(self.bytes_of(name, count) for name, _, count in bulk)
        if not self.shared.issuperset(names):
            self.barrier("expect", "full", stage, size)
        for name, first, count in bulk:
            if name not in names:
                continue
            across, box = self.factors[name].across, self.tensors[name].box
            width, blocks = box[0] if across else count, self.blocks_of(name)
            part = self.share if blocks else b.number(0)
            place = b.at("multiply", part, prod(box))
            further = b.at("multiply", part, box[1])
            for begin in range(0, count, width):
                to = b.at("add", b.at("multiply", stage, count * line), begin * line)
                own = b.at("add", first, begin)
                corner = (
                    (own, b.at("add", depth, further))
                    if across
                    else (b.at("add", own, further), depth)
                )
                to = b.at("add", to, place)
                self.copy(name, to, ("full", stage), corner, at.matrix, *blocks)

    def bytes_of(self, name: str, count: int) -> int:
        """Return how many bytes a step's copies of a factor are."""
        parts = self.tiling.sharing if name in self.shared else 1
        return (
            count if self.factors[name].across else self.tensors[name].box[1] * parts
        ) * LINE

    def blocks_of(self, name: str) -> tuple[Operand, ...]:
        """Emit a bit for each block that a factor is copied to; none: this one alone."""
        b, tiling = self.b, self.tiling
        if name not in self.shared:
            return ()
        every = sum(1 << k * tiling.split for k in range(tiling.sharing))
        return (b.at("bitwise_left_shift", every, self.rank),)

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
                self.copies(loop.var, stage, at, self.tensors.keys())
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
            if tiling.split > 1 and not self.shared:
                b.effect("cluster_wait")  # others have published their barriers
            self.stores.emit(self.exchanged() if tiling.split > 1 else self.sums)
            return carried

        self.tiles(tile, (b.number(0), b.number(0)))
        if self.shared and tiling.ring:  # others may still arrive here
            b.effect("cluster_arrive")
            b.effect("cluster_wait")

    def ring(self, carried: Carried) -> Carried:
        """Emit all steps, each behind a wait for its stage; return the next stage."""
        b = self.b
        leads, member = self.leads(), b.number(0)
        if self.shared:  # a thread for each block
            member = b.at("rem", self.thread, GROUP)
            leads = b.let("less", member, b.number(self.tiling.sharing))
        with b.loop(0, self.tiling.steps, 1, *carried, b.number(0), unroll=1) as loop:
            stage, parity, before = loop.carried
            b.effect("mbarrier_wait", self.memory["full"], stage, parity)
            self.step(loop.var, stage)
            self.await_products(1)  # the step before has ended
            if self.product.promotes:  # this one has
                self.leave(leads, member, stage)
            else:
                follows = b.let("greater", loop.var, b.number(0))
                self.leave(b.let("bitwise_and", leads, follows), member, before)
            loop.yields(*self.after(stage, parity), stage)
        self.await_products(0)
        *carried_on, last = loop.results
        if self.tiling.blocks and not self.product.promotes:
            self.leave(leads, member, last)
        return tuple(carried_on)

    def leave(self, tells: Operand, member: Operand, stage: Operand) -> None:
        """Emit telling those that copy to a stage that it has been read."""
        b = self.b
        with b.branch(tells):
            if self.shared:
                block = b.at("multiply", member, self.tiling.split)
                block = b.at("add", block, self.rank)
                b.effect("mbarrier_arrive_far", self.memory["empty"], stage, block)
            else:
                self.barrier("arrive", "empty", stage)

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
