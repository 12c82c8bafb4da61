"""Factors that a block's threads bring to shared memory, where a bulk copy would put them.

That is all of them where there are no bulk copies, and those whose rows begin at no
multiples of 16 bytes. What is read through windows is at an index of the thread's row and
depth, of which the row's part is computed once a tile. A thread takes 16 bytes at a time,
or a pair of elements where all are aligned, or one; asynchronous copies bring what they
can.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from steelyard_kernels.ir.builder import Builder
from steelyard_kernels.ir.loops import Buffer, Operand
from steelyard_kernels.nest.offsets import Loops
from steelyard_kernels.nest.sums import Position
from steelyard_kernels.schedule.contraction import LINE, UNIT, Factor
from steelyard_kernels.schedule.product_tiling import ROWS, Tiling

ROWS_BESIDE = LINE // UNIT  # whose units lie in unlike banks
LEAST_COPIED = 4  # bytes of an asynchronous copy
MOST_LOADS = 64  # of a thread on their way at a time


class Source(Struct, frozen=True):
    """A factor of `count` rows or columns a tile, of which there are `extents` in all.

    A thread takes so many `lanes` at a time; `copied`: asynchronously. A row in shared
    memory has `width` elements. Its own axes are those of a `loop`. `whole`: every step
    is within the depth. Threads walk along rows, or first along `beside` of them: then
    neighbours read neighbours of what is turned, and their stores meet no bank twice.
    """

    factor: Factor
    loop: int
    extents: tuple[int, int]
    count: int
    width: int
    copied: bool
    array: Buffer
    memory: Buffer
    whole: bool
    beside: int = 1

    @property
    def lanes(self) -> int:
        """Elements that a thread takes at a time."""
        return self.factor.lanes

    def walked(self, box: int, turn: int) -> tuple[int, int]:
        """Return how far along its own axes and the depth a turn of a box is."""
        rows, rest = divmod(turn, self.width * self.beside)
        if self.factor.across:
            return box, rows
        return box + rows * self.beside, rest // self.beside


class Start(Struct, frozen=True):
    """Where a thread's first element of a tile is: in the array, along both axes.

    Of a window `loops` are open at the thread's places along `owns`.
    """

    source: Source
    place: Operand
    own: Operand
    deep: Operand
    loops: Loops | None = None
    owns: tuple[int, ...] = ()


_Turn: TypeAlias = tuple[int, int, Operand]


def sources_of(
    tiling: Tiling, arrays: Mapping[int, Buffer], memory: Mapping[str, Buffer]
) -> list[Source]:
    """Return the factors of a product that no bulk copy brings."""
    product, bulk, found = tiling.product, tiling.bulk, list[Source]()
    (_, i, j, _), (_, m, n, depth) = product.axes, product.extents
    for factor, name, loop, extent, count, chunk in (
        (product.rows, "rows", i, m, tiling.tall, ROWS),
        (product.columns, "columns", j, n, tiling.columns, tiling.chunk),
    ):
        if not (bulk and factor.bulk):
            alike = factor.source.dtype.bytes == product.dtype.bytes
            copied = factor.lanes * product.dtype.bytes >= LEAST_COPIED
            source = Source(
                factor,
                loop,
                (extent, depth),
                count,
                chunk if factor.across else product.step,
                not bulk and copied and alike,
                arrays[factor.source.index],
                memory[name],
                tiling.steps * tiling.split * product.step == depth,
                _beside(tiling, factor),
            )
            found.append(source)
    return found


def _beside(tiling: Tiling, factor: Factor) -> int:
    """Return how many rows threads walk along first, where all turns are so far apart."""
    patch, threads = ROWS_BESIDE * tiling.product.step, tiling.consumers
    fits = threads % patch == 0 or patch % threads == 0
    wanted = tiling.cores.exact and factor.turned and factor.lanes == 1
    return ROWS_BESIDE if wanted and fits else 1


class Loads:
    """Emits the loads of sources by a block's threads."""

    def __init__(
        self, tiling: Tiling, b: Builder, sources: Sequence[Source], thread: Operand
    ) -> None:
        self.tiling, self.b, self.thread = tiling, b, thread
        self.line, self.size = tiling.product.step, tiling.product.dtype.bytes
        self.sources = sources

    def most(self, start: Start) -> int:
        """Return how many steps' loads may be on their way at a time."""
        source = start.source
        each = source.count * self.line // (source.lanes * self.tiling.consumers)
        return max(1, min(self.tiling.steps, MOST_LOADS // max(each, 1)))

    def starts(self, at: Position, opened: ExitStack) -> list[Start]:
        """Emit where a thread's elements of a tile begin; `opened` has what stays so."""
        found, rows = list[Start](), self.tiling.product.rows
        for source in self.sources:
            first = at.row if source.factor is rows else at.column
            if source.factor.window is None:
                found.append(self.start(source, at.matrix, first))
                continue
            own, deep = self._places(source, first)
            found.append(self._through(Start(source, own, own, deep), at, opened))
        return found

    def start(self, source: Source, matrix: Sequence[Operand], first: Operand) -> Start:
        """Emit where a thread's elements of a matrix begin, from a row or column on."""
        b, factor = self.b, source.factor
        own, deep = self._places(source, first)
        at = map(partial(b.at, "div"), matrix, factor.shared)
        place = b.number(factor.first)
        walks = (
            *zip(at, factor.batch, strict=True),
            *zip((own, deep), factor.steps, strict=True),
        )
        for index, step in walks:
            place = b.at("add", place, b.at("multiply", index, step))
        return Start(source, place, own, deep)

    def _places(self, source: Source, first: Operand) -> tuple[Operand, Operand]:
        """Emit a thread's place along a source's own axes and along its depth."""
        b = self.b
        row, column = self._place(source)
        own, deep = (column, row) if source.factor.across else (row, column)
        return b.at("add", first, own), deep

    def _place(self, source: Source) -> tuple[Operand, Operand]:
        """Emit the first row of a box, and its element, that a thread takes."""
        b, beside = self.b, source.beside
        element = b.at("multiply", self.thread, source.lanes)
        row, column = (b.at(x, element, source.width * beside) for x in ("div", "rem"))
        if beside > 1:
            further = b.at("rem", column, beside)
            row = b.at("add", b.at("multiply", row, beside), further)
        return row, b.at("div", column, beside)

    def _through(self, start: Start, at: Position, opened: ExitStack) -> Start:
        """Emit where windows are at a thread's rows, which each step begins with."""
        source, product = start.source, self.tiling.product
        window = source.factor.window
        assert window is not None
        turns = self._boxes(source)
        owns = tuple(sorted({source.walked(*turn)[0] for turn in turns}))
        loops = Loops(product.nest, self.tiling.schedule.cuts, self.b)
        every = [self.b.at("add", start.own, own) for own in owns]
        places = {source.loop: (every, 1)}
        places |= {
            loop: ([matrix], 1)
            for loop, matrix in zip(product.axes[0], at.matrix, strict=True)
        }
        opened.enter_context(loops.together(places))
        for each in loops.every():
            for index in (window.offset, *[index for index, _ in window.guards]):
                loops.offset(index, each)
        return replace(start, loops=loops, owns=owns)

    def _boxes(self, source: Source) -> list[tuple[int, int]]:
        """Return the boxes of a stage as bulk copies have them, each with its turns."""
        apart = source.width if source.factor.across else source.count
        every = self.tiling.consumers * source.lanes
        return [
            (box, turn)
            for box in range(0, source.count, apart)
            for turn in range(0, apart * self.line, every)
        ]

    def emit(self, start: Start, stage: Operand, depth: Operand) -> None:
        """Emit the loads of a stage, from a depth on, by boxes as bulk copies have."""
        b, source = self.b, start.source
        begin = b.at("multiply", stage, source.count * self.line)
        further = b.at("multiply", depth, source.factor.steps[1])
        there = replace(
            start,
            place=b.at("add", start.place, further),
            deep=b.at("add", start.deep, depth),
        )
        element = b.at("multiply", self.thread, source.lanes)
        if source.beside > 1:
            line, deep = self._place(source)
            element = b.at("add", b.at("multiply", line, self.line), deep)
        near: dict[int, Operand] = {}  # units lie alike in every 8 lines
        alike = self.line * (LINE // UNIT)
        size = (source.width if source.factor.across else source.count) * self.line
        every = self.tiling.consumers * source.lanes
        whole, part = list[_Turn](), list[_Turn]()
        for box, turn in self._boxes(source):
            inner = turn % alike
            if source.beside > 1:
                inner //= source.beside
            if inner not in near:
                at = b.at("add", element, inner)
                at = self._swizzled(at, source.width)
                near[inner] = b.at("add", at, begin)
            to = b.at("add", near[inner], box * self.line + turn - turn % alike)
            (part if turn + every > size else whole).append((box, turn, to))
        self._turns(there, whole)
        if part:
            rest = b.number(size % every // source.lanes)
            with b.branch(b.let("less", self.thread, rest)):
                self._turns(there, part)

    def _turns(self, start: Start, turns: list[_Turn]) -> None:
        """Emit all loads before their stores; a turn begins in a box, and has its place."""
        b, source = self.b, start.source
        loaded, count = [], b.number(source.lanes)
        for at, some, to in self._found(start, turns):
            if source.copied:
                ends = count, count if some is None else some
                b.effect("copy_async", source.memory, to, source.array, at, *ends)
                continue
            exist = None if some is None else b.let("greater", some, b.number(0))
            mask = exist and b.splat(exist, source.lanes)
            aligned = source.lanes * source.array.dtype.bytes
            value = b.load(source.array, at, source.lanes, mask, aligned)
            loaded.append((to, b.cast(value, source.memory.dtype)))
        for to, wide in loaded:
            b.store(source.memory, to, wide, alignment=source.lanes * self.size)

    def _found(
        self, start: Start, turns: list[_Turn]
    ) -> Iterator[tuple[Operand, Operand | None, Operand]]:
        """Emit where turns read, how many elements there are (None: all), and their places."""
        b, source, loops = self.b, start.source, start.loops
        steps = source.factor.steps
        walked = [source.walked(box, turn) for box, turn, _ in turns]
        deeps = sorted({deep for _, deep in walked})
        with ExitStack() as opened:
            if loops is not None:
                every = [b.at("add", start.deep, deep) for deep in deeps]
                depth = {self.tiling.product.axes[3]: (every, 1)}
                opened.enter_context(loops.together(depth))
            for (own, deep), (_, _, to) in zip(walked, turns, strict=True):
                places = b.at("add", start.own, own), b.at("add", start.deep, deep)
                some = self._some(source, *places)
                at = b.at("add", start.place, own * steps[0] + deep * steps[1])
                if loops is not None:
                    here = start.owns.index(own), deeps.index(deep)
                    at, some = self._windowed(source, loops, here, some)
                yield at, some, to

    def _windowed(
        self, source: Source, loops: Loops, here: tuple[int, int], some: Operand | None
    ) -> tuple[Operand, Operand | None]:
        """Emit where a window reads, and how many elements there are of those."""
        b, window = self.b, source.factor.window
        assert window is not None
        place = {source.loop: here[0], self.tiling.product.axes[3]: here[1]}
        at = tuple([place.get(loop, 0) for loop in range(len(loops.axes))])
        if window.guards:
            inside = loops.guard(window.guards, at, 1)
            count = b.number(source.lanes) if some is None else some
            some = b.let("where", inside, count, b.number(0))
        return b.number(loops.offset(window.offset, at)), some

    def _some(self, source: Source, own: Operand, deep: Operand) -> Operand | None:
        """Emit how many elements there are at a place, 0 at least; None: all."""
        b, (extent, depth) = self.b, source.extents
        inside, deeper = not extent % source.count, source.whole
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
        b, units = self.b, UNIT // self.size
        column = b.at("rem", element, width)
        line = b.at("rem", b.at("div", element, self.line), width // units)
        unit = b.let("bitwise_xor", b.at("div", column, units), line, name="i")
        row = b.at("subtract", element, column)
        inside = b.at("add", row, b.at("rem", element, units))
        return b.at("add", inside, b.at("multiply", unit, units))
