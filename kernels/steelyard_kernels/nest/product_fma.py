"""The lowering of a product that threads multiply by FMA: what tensor cores do not.

Factors lie in shared memory as tensor cores have them, along the depth. A thread reads 16
bytes of each of its columns and of one row after another, and adds the products of all
pairs to the sums in its registers, in the order of the depth.
"""

from __future__ import annotations

from typing import Final

from steelyard_kernels.ir.loops import Operand
from steelyard_kernels.nest.product_threads import ByThreads
from steelyard_kernels.nest.sums import APART, lane_of
from steelyard_kernels.schedule.contraction import LINE, UNIT
from steelyard_kernels.schedule.product_tiling import ROWS

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
