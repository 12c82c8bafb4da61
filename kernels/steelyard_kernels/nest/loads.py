"""Factors that a block's threads bring to shared memory, where a bulk copy would put them.

That is all of them where there are no bulk copies, and those whose rows begin at no
multiples of 16 bytes. A thread takes 16 bytes at a time, or a pair of elements where all
are aligned, or one; asynchronous copies bring what they can.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from steelyard_kernels.ir.builder import Builder
from steelyard_kernels.ir.loops import Buffer, Operand
from steelyard_kernels.nest.sums import Position
from steelyard_kernels.schedule.contraction import HALF, UNIT, Factor
from steelyard_kernels.schedule.product_tiling import ROWS, STEP, Tiling

LINE = 64  # halves of 128 bytes, in which the swizzle's units change places
UNITS = UNIT // HALF  # halves of a unit
MOST_LOADS = 64  # of a thread on their way at a time


@dataclass(frozen=True, slots=True)
class Source:
    """A factor of `count` rows or columns a tile, of which there are `extents` in all.

    A thread takes so many `lanes` at a time; `copied`: asynchronously. A row in shared
    memory has `width` elements, and there is one in memory for each.
    """

    factor: Factor
    extents: tuple[int, int]
    count: int
    width: int
    lanes: int
    copied: bool
    array: Buffer
    memory: Buffer


@dataclass(frozen=True, slots=True)
class Start:
    """Where a thread's first element of a tile is: in the array, along both axes."""

    source: Source
    place: Operand
    own: Operand
    deep: Operand


_Turn: TypeAlias = tuple[int, int, Operand]


class Loads:
    """Emits the loads of a block's factors that are not `bulk`, or of `every` one."""

    def __init__(
        self,
        tiling: Tiling,
        b: Builder,
        arrays: Mapping[int, Buffer],
        memory: Mapping[str, Buffer],
        thread: Operand,
    ) -> None:
        self.tiling, self.b, self.thread = tiling, b, thread
        product, bulk = tiling.product, tiling.cores.bulk
        _, m, n, depth = product.extents
        self.sources = []
        for factor, name, extent, count, chunk in (
            (product.rows, "rows", m, tiling.tall, ROWS),
            (product.columns, "columns", n, tiling.columns, tiling.chunk),
        ):
            if not (bulk and factor.bulk):
                lanes = 2 if factor.is_paired(extent, depth) else 1
                source = Source(
                    factor,
                    (extent, depth),
                    count,
                    chunk if factor.across else STEP,
                    UNITS if factor.bulk else lanes,
                    not bulk and (factor.bulk or lanes > 1),
                    arrays[factor.source.index],
                    memory[name],
                )
                self.sources.append(source)

    def most(self, start: Start) -> int:
        """Return how many steps' loads may be on their way at a time."""
        source = start.source
        each = source.count * STEP // (source.lanes * self.tiling.consumers)
        return max(1, min(self.tiling.steps, MOST_LOADS // max(each, 1)))

    def starts(self, at: Position) -> list[Start]:
        """Emit where a thread's elements of a tile begin."""
        b, found = self.b, list[Start]()
        for source in self.sources:
            factor, width = source.factor, source.width
            element = b.at("multiply", self.thread, source.lanes)
            row, column = b.at("div", element, width), b.at("rem", element, width)
            own, deep = (column, row) if factor.across else (row, column)
            first = at.row if source.factor is self.tiling.product.rows else at.column
            own = b.at("add", first, own)
            pitch, one = (1, factor.pitch) if factor.across else (factor.pitch, 1)
            matrix = map(partial(b.at, "div"), at.matrix, factor.shared)
            place = b.number(factor.first)
            walks = (
                *zip(matrix, factor.batch, strict=True),
                (own, pitch),
                (deep, one),
            )
            for index, step in walks:
                place = b.at("add", place, b.at("multiply", index, step))
            found.append(Start(source, place, own, deep))
        return found

    def emit(self, start: Start, stage: Operand, depth: Operand) -> None:
        """Emit the loads of a stage, from a depth on, by boxes as bulk copies have."""
        b, source = self.b, start.source
        across, step = source.factor.across, source.factor.pitch
        begin = b.at("multiply", stage, source.count * STEP)
        further = b.at("multiply", depth, step if across else 1)
        there = replace(
            start,
            place=b.at("add", start.place, further),
            deep=b.at("add", start.deep, depth),
        )
        element = b.at("multiply", self.thread, source.lanes)
        near: dict[int, Operand] = {}  # units lie alike in every LINE x UNITS
        apart = source.width if across else source.count
        size, every = apart * STEP, self.tiling.consumers * source.lanes
        whole, part = list[_Turn](), list[_Turn]()
        for box in range(0, source.count, apart):
            for turn in range(0, size, every):
                inner = turn % (LINE * UNITS)
                if inner not in near:
                    at = b.at("add", element, inner)
                    at = self._swizzled(at, source.width)
                    near[inner] = b.at("add", at, begin)
                to = b.at("add", near[inner], box * STEP + turn - inner)
                (part if turn + every > size else whole).append((box, turn, to))
        self._turns(there, whole)
        if part:
            rest = b.number(size % every // source.lanes)
            with b.branch(b.let("less", self.thread, rest)):
                self._turns(there, part)

    def _turns(self, start: Start, turns: list[_Turn]) -> None:
        """Emit all loads before their stores; a turn begins in a box, and has its place."""
        b, source = self.b, start.source
        factor, loaded = source.factor, []
        for box, turn, to in turns:
            rows = turn // source.width
            own, deep = (box, rows) if factor.across else (box + rows, 0)
            steps = (1, factor.pitch) if factor.across else (factor.pitch, 1)
            at = b.at("add", start.place, own * steps[0] + deep * steps[1])
            places = b.at("add", start.own, own), b.at("add", start.deep, deep)
            some, count = self._some(source, *places), b.number(source.lanes)
            if source.copied:
                ends = count, count if some is None else some
                b.effect("copy_async", source.memory, to, source.array, at, *ends)
                continue
            exist = None if some is None else b.let("greater", some, b.number(0))
            mask = exist and b.splat(exist, source.lanes)
            aligned = source.lanes * HALF
            value = b.load(source.array, at, source.lanes, mask, aligned)
            loaded.append((to, value))
        for to, value in loaded:
            b.store(source.memory, to, value, alignment=source.lanes * HALF)

    def _some(self, source: Source, own: Operand, deep: Operand) -> Operand | None:
        """Emit how many elements there are at a place, 0 at least; None: all."""
        b, (extent, depth) = self.b, source.extents
        tiling = self.tiling
        inside = not extent % source.count
        deeper = tiling.steps * tiling.split * STEP == depth
        along, line = ((own, extent), (deep, depth))[
            :: 1 if source.factor.across else -1
        ]
        ends = (inside, deeper)[:: 1 if source.factor.across else -1]
        found: Operand | None = None
        if not ends[0]:
            left = b.at("subtract", along[1], along[0])
            found = b.at("maximum", b.at("minimum", left, source.lanes), 0)
        if not ends[1]:
            there = b.let("less", line[0], b.number(line[1]))
            every = b.number(source.lanes) if found is None else found
            found = b.let("where", there, every, b.number(0))
        return found

    def _swizzled(self, element: Operand, width: int) -> Operand:
        """Emit where an element lies in its box."""
        b = self.b
        column = b.at("rem", element, width)
        line = b.at("rem", b.at("div", element, LINE), width * HALF // UNIT)
        unit = b.let("bitwise_xor", b.at("div", column, UNITS), line, name="i")
        row = b.at("subtract", element, column)
        inside = b.at("add", row, b.at("rem", element, UNITS))
        return b.at("add", inside, b.at("multiply", unit, UNITS))
