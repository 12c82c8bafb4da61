"""Factors that bulk copies cannot read, brought to shared memory by the block's threads.

Their rows do not begin at multiples of 16 bytes: each thread loads elements, or pairs of
them where all are aligned, of all steps before the first product. They go where a bulk
copy would have put them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from steelyard_kernels.ir.builder import Builder
from steelyard_kernels.ir.loops import Buffer, Operand
from steelyard_kernels.nest.sums import Position
from steelyard_kernels.schedule.contraction import (
    HALF,
    ROWS,
    STEP,
    UNIT,
    Factor,
    Tiling,
)

LINE = 64  # halves of 128 bytes, in which the swizzle's units change places
UNITS = 8  # halves of 16 bytes
MOST_LOADS = 64  # of a thread on their way at a time


@dataclass(frozen=True, slots=True)
class _Source:
    """A factor of `count` rows or columns a tile, from `first` on; `extents` of all.

    A row in shared memory has `width` elements.
    """

    factor: Factor
    extents: tuple[int, int]
    first: Operand
    count: int
    width: int
    array: Buffer
    memory: Buffer

    @property
    def lanes(self) -> int:
        """Elements that a thread takes at a time."""
        return 2 if self.factor.is_paired(*self.extents) else 1


class Loads:
    """Emits the loads of a block's factors that are not `bulk`."""

    def __init__(
        self,
        tiling: Tiling,
        b: Builder,
        arrays: Mapping[int, Buffer],
        memory: Mapping[str, Buffer],
        thread: Operand,
    ) -> None:
        self.tiling, self.b, self.thread = tiling, b, thread
        self.arrays, self.memory = arrays, memory

    def emit(self, at: Position, depth_of: Callable[[Operand], Operand]) -> None:
        """Emit the loads of every step; `depth_of` emits where one begins."""
        tiling, product = self.tiling, self.tiling.product
        _, m, n, depth = product.extents
        for factor, name, extent, first, count, chunk in (
            (product.rows, "rows", m, at.row, ROWS * tiling.groups, ROWS),
            (product.columns, "columns", n, at.column, tiling.columns, tiling.chunk),
        ):
            if not factor.bulk:
                source = _Source(
                    factor,
                    (extent, depth),
                    first,
                    count,
                    chunk if factor.across else STEP,
                    self.arrays[factor.source.index],
                    self.memory[name],
                )
                each = count * STEP // (source.lanes * tiling.consumers)
                steps = max(1, min(tiling.steps, MOST_LOADS // max(each, 1)))
                with self.b.loop(0, tiling.steps, 1, unroll=steps) as loop:
                    self._step(source, loop.var, (at.matrix, depth_of(loop.var)))

    def _step(
        self,
        source: _Source,
        step: Operand,
        corner: tuple[tuple[Operand, ...], Operand],
    ) -> None:
        """Emit a step's loads by boxes as bulk copies have, each before its stores."""
        b, lanes, width = self.b, source.lanes, source.width
        across = source.factor.across
        apart = width if across else source.count
        for box in range(0, source.count, apart):
            begin = b.at("add", b.at("multiply", step, source.count * STEP), box * STEP)
            loaded = []
            for turn in range(0, apart * STEP, self.tiling.consumers * lanes):
                element = b.at("add", b.at("multiply", self.thread, lanes), turn)
                row, column = b.at("div", element, width), b.at("rem", element, width)
                own, deep = (column, row) if across else (row, column)
                own = b.at("add", b.at("add", source.first, own), box)
                value = self._load(source, corner, own, deep)
                loaded.append((self._swizzled(element, column, width), value))
            for place, value in loaded:
                to = b.at("add", place, begin)
                b.store(source.memory, to, value, alignment=lanes * HALF)

    def _load(
        self,
        source: _Source,
        corner: tuple[tuple[Operand, ...], Operand],
        own: Operand,
        deep: Operand,
    ) -> Operand:
        """Emit a load of what there is at a place; zeros beyond the edges."""
        b, factor = self.b, source.factor
        places, begin = corner
        matrix = map(partial(b.at, "div"), places, factor.shared)
        indices = own, b.at("add", begin, deep)
        steps = (1, factor.pitch) if factor.across else (factor.pitch, 1)
        place = b.number(0)
        walks = (
            *zip(matrix, factor.batch, strict=True),
            *zip(indices, steps, strict=True),
        )
        for index, step in walks:
            place = b.at("add", place, b.at("multiply", index, step))
        inside = [
            b.let("less", index, b.number(extent))
            for index, extent in zip(indices, source.extents, strict=True)
        ]
        mask = b.splat(b.let("bitwise_and", *inside), source.lanes)
        at = b.at("add", place, factor.first)
        return b.load(source.array, at, source.lanes, mask, source.lanes * HALF)

    def _swizzled(self, element: Operand, column: Operand, width: int) -> Operand:
        """Emit where an element lies in its box."""
        b = self.b
        line = b.at("rem", b.at("div", element, LINE), width * HALF // UNIT)
        unit = b.let("bitwise_xor", b.at("div", column, UNITS), line, name="i")
        row = b.at("subtract", element, column)
        inside = b.at("add", row, b.at("rem", element, UNITS))
        return b.at("add", inside, b.at("multiply", unit, UNITS))
