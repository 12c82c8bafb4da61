"""The lowering of a product whose factors the threads that multiply copy themselves.

They copy tiles of both factors some steps ahead, and a barrier a step keeps them together.
Groups of a block's threads may divide the depth: each has stages of its own.

By FMA they multiply themselves what tensor cores do not. Factors lie in shared memory as
tensor cores have them, along the depth. A thread reads 16 bytes of each of its columns
and of one row after another, and adds the products of all pairs to the sums in its
registers, in the order of the depth.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from steelyard_kernels.ir.loops import Operand
from steelyard_kernels.nest.loads import Start
from steelyard_kernels.nest.product import Lowering
from steelyard_kernels.nest.sums import APART, lane_of
from steelyard_kernels.schedule.contraction import LINE, UNIT
from steelyard_kernels.schedule.gpu import WARP
from steelyard_kernels.schedule.parameters import Lowered
from steelyard_kernels.schedule.product_tiling import ROWS
from steelyard_kernels.schedule.tile import Carried


class ByThreads(Lowering):
    """All threads copy, some steps ahead of what they multiply."""

    area = 0  # of the sums that are exchanged

    def ranked(self) -> tuple[Operand, Operand]:
        """Emit which threads of the block these are: one number in all of a warp."""
        b, consumers = self.b, self.tiling.consumers
        rank, zero = b.at("div", self.thread, consumers), b.number(0)
        alike = b.let("shuffle", rank, zero, b.number(WARP), name="i")
        return alike, b.at("rem", self.thread, consumers)

    def send(self, rank: int, place: Operand, four: Operand) -> None:
        """Emit the store of sums where others of the block read them."""
        at = self.b.at("add", place, self.area + rank * self.tiling.sent)
        self.b.store(self.memory["partial"], at, four, alignment=UNIT)

    def meet(self) -> Operand:
        """Emit the wait for all threads of the block."""
        b = self.b
        b.effect("barrier")
        return b.at("add", b.at("multiply", self.rank, self.tiling.sent), self.area)

    def emit(self) -> Lowered:
        """Emit the block, and close the kernel."""
        self.number_groups()
        self.tiles(self.multiplied, ())
        return self.lowered(self.product.sums.behind, self.loaded)

    def multiplied(self, number: Operand, _: Carried) -> Carried:
        """Emit one tile: its copies, its products, and what is stored of them."""
        b, tiling = self.b, self.tiling
        at = self.position(number)
        starts = self.loads.starts(at, self.opened)
        ahead = max(tiling.stages - tiling.slack, 1)
        base = b.at("multiply", self.rank, tiling.stages)
        for step in range(ahead):
            self.bring(starts, b.number(step), b.at("add", base, step))
            b.effect("copy_commit")
        own = b.at("multiply", self.rank, tiling.owned)
        at = replace(at, column=b.at("add", at.column, own))
        each = tiling.columns // 2
        self.clear()
        self.stores.prepare(at)
        self.walk(starts, ahead, base)
        self.opened.close()
        if tiling.blocks:
            b.effect("barrier")
        for repeat in range(tiling.repeats):
            if repeat:
                further = b.at("add", at.row, repeat * ROWS * tiling.groups)
                self.stores.prepare(replace(at, row=further))
            if tiling.split > 1:
                self.area = repeat * tiling.split * tiling.sent
                self.stores.emit(self.exchanged(repeat * each))
            else:
                self.stores.emit(self.sums, repeat * each)
        return ()

    def walk(self, starts: list[Start], ahead: int, base: Operand) -> None:
        """Emit all steps, each with copies for one `ahead`; stages are from `base` on."""
        b, tiling, by_warp = self.b, self.tiling, self.tiling.cores.by_warp
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
                    self.bring(starts, following, b.at("add", base, free))
            b.effect("copy_commit")
            self.step(loop.var, b.at("add", base, stage))
            self.await_products(1)  # the step before has ended
            loop.yields(*self.after(stage), *self.after(free))
        self.await_products(0)

    def bring(self, starts: list[Start], step: Operand, stage: Operand) -> None:
        """Emit a thread's copies of one step to a stage."""
        for start in starts:
            self.loads.emit(start, stage, self.depth(step))


UNROLL: Final = 1  # then eight rows by eight columns take 128 registers


class ByFma(ByThreads):
    """All threads copy, and multiply what they read of both factors."""

    def step(self, step: Operand, stage: Operand) -> None:  # noqa: ARG002 - sums begin at 0
        """Emit the products of one stage."""
        b, tiling, cores = self.b, self.tiling, self.tiling.cores
        down, over = lane_of(b, self.own)
        tall = range(0, tiling.tall, ROWS * tiling.groups)
        rows = [first + APART * k for first in tall for k in range(cores.lines)]
        starts = [
            b.at("multiply", stage, count * self.product.step)
            for count in (tiling.tall, tiling.columns)
        ]
        both = [b.at("add", over, lane) for lane in (0, 1)]
        with b.loop(0, LINE // UNIT, 1, unroll=UNROLL) as loop:
            units = [self.unit(starts[1], line, loop.var) for line in both]
            columns = [
                self.elements("columns", unit, further)
                for further in range(0, tiling.columns, cores.pairs)
                for unit in units
            ]
            unit = self.unit(starts[0], down, loop.var)
            for k, further in enumerate(rows):
                self.row(k, self.elements("rows", unit, further), columns)

    def unit(self, start: Operand, line: Operand, number: Operand) -> Operand:
        """Emit where a unit of 16 bytes of a line begins; lines 8 apart have it alike."""
        b, product = self.b, self.product
        first = b.at("add", start, b.at("multiply", line, product.step))
        within = b.let("bitwise_xor", number, b.at("rem", line, APART), name="i")
        return b.at("add", first, b.at("multiply", within, product.units))

    def elements(self, name: str, unit: Operand, further: int) -> list[Operand]:
        """Emit a unit so many lines further, as the dtype of the sums."""
        b, product = self.b, self.product
        at = b.at("add", unit, further * product.step)
        vector = b.load(self.memory[name], at, product.units, alignment=UNIT)
        wide = b.cast(vector, product.added)
        return [b.let("extract", wide, b.number(k)) for k in range(product.units)]

    def row(self, row: int, left: list[Operand], columns: list[list[Operand]]) -> None:
        """Emit the products of one row and all columns, neighbours for different sums."""
        b, lines = self.b, self.tiling.cores.lines
        repeat, line = divmod(row, lines)
        first = repeat * self.tiling.columns // 2 + 2 * line
        places = [first + 2 * lines * (k // 2) + k % 2 for k in range(len(columns))]
        sums: list[Operand] = [b.load(self.sums, place) for place in places]
        for k, one in enumerate(left):
            pairs = zip(columns, sums, strict=True)
            sums = [b.added(one, column[k], total) for column, total in pairs]
        for place, total in zip(places, sums, strict=True):
            b.store(self.sums, place, total)
