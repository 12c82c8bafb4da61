"""What follows from a tile's sums, emitted as all values are, and its stores.

A thread has, of each 8 columns, two neighbours in two rows that are 8 apart; by FMA, of
each 32 columns, two in eight such rows. Halves of tensor cores go through shared memory where rows are long enough, so that a warp stores whole sectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from msgspec import Struct

from steelyard_kernels.ir.builder import Builder
from steelyard_kernels.ir.loops import Buffer, Operand
from steelyard_kernels.nest.axes import Stored
from steelyard_kernels.nest.gpu_emitter import GpuEmitter
from steelyard_kernels.nest.offsets import At
from steelyard_kernels.schedule.contraction import HALF, UNIT, Product
from steelyard_kernels.schedule.gpu import WARP
from steelyard_kernels.schedule.product_tiling import GROUP, Tiling
from steelyard_kernels.schedule.product_tiling import ROWS as ROWS_OF_GROUP
from steelyard_kernels.schedule.warp import Group

ROWS = 16  # of a warp
APART = 8  # a thread's two rows
VECTOR = UNIT // HALF
# Registers of sums and of values that wait for them; more would spill what uses them.
EARLY = 112


class Position(Struct, frozen=True):
    """A tile's matrix, by its index along each axis of the batch, and first row and column."""

    matrix: tuple[Operand, ...]
    row: Operand
    column: Operand


class _Chunk(Struct, frozen=True):
    """Columns that are computed together: their places, and which exist (None: all)."""

    first: int  # of the tile's groups of columns
    count: int
    columns: list[Operand]
    exist: list[Operand | None]
    known: dict[object, Operand]


def lane_of(b: Builder, thread: Operand) -> tuple[Operand, Operand]:
    """Emit the first row and column of a thread that multiplies by FMA.

    A warp has 8 rows and 8 columns of every 32. Neighbours read one row, lanes that are 2
    apart one pair of columns: then a warp's loads of 16 bytes take half as long.
    """

    def bits(lowest: int, count: int, times: int) -> Operand:
        shifted = b.at("div", thread, 1 << lowest)
        return b.at("multiply", b.at("rem", shifted, 1 << count), times)

    group = b.at("multiply", b.at("div", thread, GROUP), ROWS_OF_GROUP)
    down = b.at("add", group, b.at("add", bits(1, 2, 1), bits(4, 1, 4)))
    return down, b.at(
        "add", bits(5, 2, APART), b.at("add", bits(0, 1, 2), bits(3, 1, 4))
    )


def of_warp(b: Builder, thread: Operand, top: Operand) -> tuple[list[Operand], Operand]:
    """Emit a thread's two rows of tensor cores' sums, and its lane."""
    warp, lane = b.at("div", thread, WARP), b.at("rem", thread, WARP)
    row = b.at("add", top, b.at("multiply", warp, ROWS))
    row = b.at("add", row, b.at("div", lane, 4))
    return [row, b.at("add", row, APART)], lane


class Sums:
    """Emits what is made of the sums of one tile."""

    def __init__(
        self,
        tiling: Tiling,
        emitter: GpuEmitter,
        memory: Mapping[str, Buffer],
        threads: tuple[Operand, Operand],
        product: Product | None = None,
    ) -> None:
        self.tiling, self.emitter, self.memory = tiling, emitter, memory
        self.thread, self.whole = threads  # of those with one tile, and of the block
        self.b, self.product = emitter.b, product or tiling.product
        self.lanes = self.product.lanes
        self.values = self.product.sums.behind
        self.loads = [v for v in self.values if v.source is not None and not v.step]
        if self.product.sums.reduces:  # a row's columns are four threads', side by side
            over = emitter.loops_of(self.product.sums.columns)
            group = Group(self.thread, 4)
            emitter.threads.groups |= dict.fromkeys(over, group)
        self.at: Position
        self.rows: list[Operand] = []
        self.exist: list[Operand | None] = []
        self.chunks: list[_Chunk] = []
        self.first = 0  # of the sums

    def prepare(self, at: Position) -> None:
        """Emit the loads of what all rows or columns share, before the sums are there."""
        own = [self.product.loops[loop] for loop in self.product.axes[1:3]]
        self.at, self.chunks = at, []
        early = [v for v in self.loads if not all(v.axes.intersection(x) for x in own)]
        each = [max(self.lanes * v.node.dtype.bytes // 4, 1) for v in early]
        held = sum(each) * self.tiling.owned // 8
        if held and held + self.tiling.columns // 2 <= EARLY:
            self._place()
            for chunk in self.chunks:
                with self._opened(self.rows, chunk.columns, self.lanes):
                    self.emitter.emit(early, self.emitter.every())
                    chunk.known.update(self.emitter.known[-1])

    def _place(self) -> None:
        """Emit a thread's rows and columns."""
        b, at = self.b, self.at
        _, m, n, _ = self.product.extents
        self.warp = b.at("div", self.thread, WARP)
        self.lane = b.at("rem", self.thread, WARP)
        pairs, lines = self.tiling.cores.pairs, self.tiling.cores.lines
        if self.tiling.cores.exact:
            down, over = lane_of(b, self.thread)
            row = b.at("add", at.row, down)
        else:
            top = b.at("add", at.row, b.at("multiply", self.warp, ROWS))
            row = b.at("add", top, b.at("div", self.lane, 4))
            over = b.at("multiply", b.at("rem", self.lane, 4), 2)
        every = [b.at("add", row, line * APART) for line in range(lines)]
        whole = m % self.tiling.tall == 0
        self.rows, self.exist = self._inside(every, 1, m, whole=whole)
        column = b.at("add", at.column, over)
        groups = self.tiling.owned // pairs
        for first in range(0, groups, self.tiling.taken // pairs):
            count = min(self.tiling.taken // pairs, groups - first)
            places = [
                b.at("add", column, pairs * k + lane)
                for k in range(first, first + count)
                for lane in range(0, 2, self.lanes)
            ]
            whole = n % self.tiling.columns == 0
            columns, exist = self._inside(places, self.lanes, n, whole=whole)
            self.chunks.append(_Chunk(first, count, columns, exist, {}))

    def _inside(
        self, places: list[Operand], lanes: int, extent: int, *, whole: bool
    ) -> tuple[list[Operand], list[Operand | None]]:
        """Emit places that surely exist instead of those behind an end, and which do."""
        if whole:
            return places, [None] * len(places)
        b = self.b
        exist: list[Operand | None] = [
            b.let("less", place, b.number(extent)) for place in places
        ]
        if self.loads:
            places = [b.at("minimum", place, extent - lanes) for place in places]
        return places, exist

    @contextmanager
    def _opened(
        self, rows: list[Operand], columns: list[Operand], lanes: int
    ) -> Iterator[None]:
        """Open the loops of the space at some rows and columns."""
        batch, i, j, _ = self.product.axes
        places = {i: (rows, 1), j: (columns, lanes)}
        places |= {k: ([at], 1) for k, at in zip(batch, self.at.matrix, strict=True)}
        with self.emitter.together(places):
            yield

    def emit(self, sums: Buffer, first: int = 0) -> None:
        """Emit the values that are made of a block's sums, and store the outputs."""
        self.first = first
        if not self.chunks:  # later, they take no registers from the sums
            self._place()
        for chunk in self.chunks:
            self._chunk(sums, chunk)

    def _chunk(self, sums: Buffer, chunk: _Chunk) -> None:
        emitter, outputs = self.emitter, self.product.sums.outputs
        with self._opened(self.rows, chunk.columns, self.lanes):
            emitter.known[-1].update(chunk.known)
            every = emitter.every()
            for at in every:
                emitter.know(self.product.sums.total, at, self._sum(sums, chunk, at))
            emitter.emit(self.loads, every)
            emitter.emit(self.values, every)
            for place, output in outputs:
                if not self.tiling.is_staged(output):
                    for at in every:
                        self._store(place, output, at, chunk)
            staged = [
                (place, output, [(at, self._value(output, at)) for at in every])
                for place, output in outputs
                if self.tiling.is_staged(output)
            ]
        for place, output, values in staged:
            self._stage(values, output)
            self._rows(place, output, chunk)

    def _sum(self, sums: Buffer, chunk: _Chunk, at: At) -> Operand:
        """Emit the sums of one place, in the type that they have there."""
        _, i, j, _ = self.product.axes
        group, lane = divmod(at[j] * self.lanes, 2)
        four = 2 * self.tiling.cores.lines
        first = self.first + four * (chunk.first + group) + 2 * at[i] + lane
        found = self.b.load(sums, first, self.lanes)
        return self.b.cast(found, self.product.sums.total.node.dtype)

    def _value(self, output: Stored, at: At) -> Operand:
        return self.emitter.at(output.value, at, self.lanes)

    def _store(self, place: int, output: Stored, at: At, chunk: _Chunk) -> None:
        """Emit the store of a thread's own columns."""
        _, i, j, _ = self.product.axes
        value = self._value(output, at)
        buffer = self.emitter.args.outputs[place]
        self.b.store(
            buffer,
            self.emitter.offset(output.offset, at),
            value,
            self._mask((self.exist[at[i]], chunk.exist[at[j]]), self.lanes),
            alignment=self.lanes * buffer.dtype.bytes if self.lanes > 1 else 0,
        )

    def _mask(
        self, conditions: tuple[Operand | None, ...], lanes: int
    ) -> Operand | None:
        """Emit whether all conditions hold, in every lane; None where there is none."""
        found: Operand | None = None
        for each in conditions:
            found = self.b.both(found, each)
        return found and self.b.splat(found, lanes)

    def _stage(self, values: list[tuple[At, Operand]], output: Stored) -> None:
        """Emit putting a thread's columns where its warp will read rows."""
        b, (_, i, j, _) = self.b, self.product.axes
        pitch, memory = self.tiling.pitch, self._staged(output)
        row = b.at(
            "add", self._first(), b.at("multiply", b.at("div", self.lane, 4), pitch)
        )
        place = b.at("add", row, b.at("multiply", b.at("rem", self.lane, 4), 2))
        for at, value in values:
            group, lane = divmod(at[j] * self.lanes, 2)
            to = b.at("add", place, at[i] * APART * pitch + 8 * group + lane)
            b.store(memory, to, value, alignment=self.lanes * HALF)
        b.effect("warp_barrier")

    def _first(self) -> Operand:
        """Emit where a warp's rows begin in shared memory."""
        warp = self.b.at("div", self.whole, WARP) if self.tiling.sliced else self.warp
        return self.b.at("multiply", warp, ROWS * self.tiling.pitch)

    def _staged(self, output: Stored) -> Buffer:
        return self.memory[f"staged_{output.value.node.dtype.name}"]

    def _rows(self, place: int, output: Stored, chunk: _Chunk) -> None:
        """Emit the stores of a warp's rows, 16 bytes a lane."""
        b, total = self.b, ROWS * chunk.count
        for first in range(0, total, WARP):
            if total - first >= WARP:
                self._row(place, output, chunk, first)
            else:
                with b.branch(b.let("less", self.lane, b.number(total - first))):
                    self._row(place, output, chunk, first)
        b.effect("warp_barrier")  # before others are put there

    def _row(self, place: int, output: Stored, chunk: _Chunk, first: int) -> None:
        """Emit the store of one lane's 16 bytes."""
        b, (_, m, n, _) = self.b, self.product.extents
        apart = 0 if WARP % chunk.count else first  # then all lanes are as far apart
        lane = b.at("add", self.lane, first - apart)
        down = b.at("add", b.at("div", lane, chunk.count), apart // chunk.count)
        over = b.at("rem", lane, chunk.count)
        right = b.at("multiply", over, VECTOR)
        line = b.at("add", self._first(), b.at("multiply", down, self.tiling.pitch))
        at = b.at("add", line, right)
        value = b.load(self._staged(output), at, VECTOR, alignment=UNIT)
        top = b.at("add", self.at.row, b.at("multiply", self.warp, ROWS))
        row = b.at("add", top, down)
        column = b.at("add", b.at("add", self.at.column, 8 * chunk.first), right)
        ends = (row, m, self.tiling.tall), (column, n, self.tiling.columns)
        exist = tuple(
            b.let("less", each, b.number(end)) if end % size else None
            for each, end, size in ends
        )
        with self._opened([row], [column], VECTOR):
            (only,) = self.emitter.every()
            start = self.emitter.offset(output.offset, only)
        buffer = self.emitter.args.outputs[place]
        mask = self._mask(exist, VECTOR)
        b.store(buffer, start, value, mask, alignment=UNIT)
