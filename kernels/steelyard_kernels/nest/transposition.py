"""The lowering of tiles that are read along one axis and written along another, on GPUs.

See `schedule.transposition`. A tile's rows lie behind one another in shared memory: a
vector that is read down a column is left there element by element, in as many rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from steelyard_kernels.ir.builder import Builder, Index
from steelyard_kernels.ir.loops import Buffer, Operand
from steelyard_kernels.nest.axes import Nest
from steelyard_kernels.nest.gpu_emitter import GpuEmitter
from steelyard_kernels.schedule.schedule import Schedule
from steelyard_kernels.schedule.transposition import Tile, Transposed


class Transposition:
    """Emits what one thread does of a block's tile."""

    def __init__(
        self, emitter: GpuEmitter, nest: Nest, schedule: Schedule, of: Transposed
    ) -> None:
        self.b: Builder = emitter.b
        self.emitter = emitter
        self.extents = nest.extents
        self.schedule = schedule
        self.of = of
        self.tile = tile = Tile.of(of, schedule)
        self.last = len(nest.extents) - 1
        self.room: list[Buffer] = [
            self.b.alloc("tile", value.node.dtype, tile.elements, "shared", 16)
            for value in of.values
        ]

    def emit(self) -> None:
        """Emit both walks of a tile, with all other axes' loops open."""
        emitter, b = self.emitter, self.b
        starts = self._starts()
        with ExitStack() as opened:
            for axis in range(self.last):
                if axis != self.of.axis:
                    opened.enter_context(emitter.opened(axis, [starts[axis]], 1))
            with self._open(starts, reads=True) as places:
                self._read(*places)
            b.effect("barrier")
            with self._open(starts, reads=False) as places:
                self._write(*places)

    def _starts(self) -> dict[int, Operand]:
        """Emit where the block's tile begins along each axis; neighbours share rows."""
        b, found = self.b, dict[int, Operand]()
        rest: Operand = b.block()
        for axis, cut in reversed(list(enumerate(self.schedule.cuts))):
            count = -(-self.extents[axis] // cut.size)
            own = b.at("rem", rest, count) if axis else rest
            found[axis] = b.at("multiply", own, cut.size)
            rest = b.at("div", rest, count) if axis else rest
        return found

    @contextmanager
    def _open(
        self, starts: dict[int, Operand], *, reads: bool
    ) -> Iterator[tuple[list[Operand], list[Operand]]]:
        """Open the tile's loops at a thread's places; gives these from the tile's start."""
        b, tile = self.b, self.tile
        side = tile.readers if reads else tile.across
        other = tile.threads // side
        thread = b.thread()
        near, far = b.at("rem", thread, side), b.at("div", thread, side)
        if reads:
            rows = self._places(near, tile.lanes, side, tile.rows)
            columns = self._places(far, 1, other, tile.columns)
        else:
            rows = self._places(far, 1, other, tile.rows)
            columns = self._places(near, tile.wide, side, tile.columns)
        with ExitStack() as opened:
            for axis, own, lanes in (
                (self.of.axis, rows, tile.lanes if reads else 1),
                (self.last, columns, 1 if reads else tile.wide),
            ):
                places = [b.at("add", starts[axis], at) for at in own]
                masks = [self._inside(axis, at, lanes) for at in places]
                opened.enter_context(self.emitter.opened(axis, places, lanes, masks))
            yield rows, columns

    def _places(
        self, own: Operand, lanes: int, threads: int, size: int
    ) -> list[Operand]:
        """Emit where a thread's vectors begin in a tile, `threads` of them side by side."""
        begin = self.b.at("multiply", own, lanes)
        return [self.b.at("add", begin, at) for at in range(0, size, lanes * threads)]

    def _inside(self, axis: int, at: Operand, lanes: int) -> Operand | None:
        """Emit which lanes of a place exist; None: all of every tile."""
        b, extent = self.b, self.extents[axis]
        if extent % self.schedule.cuts[axis].size == 0:
            return None
        if extent % lanes == 0:
            return b.splat(b.let("less", at, b.number(extent)), lanes)
        return b.mask_below(b.at("subtract", extent, at), lanes)

    def _read(self, rows: list[Operand], columns: list[Operand]) -> None:
        """Emit the first walk: all loads, then what is left in shared memory of each."""
        emitter, b, tile = self.emitter, self.b, self.tile
        emitter.emit(self.of.values, emitter.every())
        for value, room in zip(self.of.values, self.room, strict=True):
            for at in emitter.every():
                found = emitter.at(value, at, tile.lanes)
                place = self._place(rows[at[self.of.axis]], columns[at[self.last]])
                for lane in range(tile.lanes):
                    element: Operand = found
                    if tile.lanes > 1:
                        element = b.let("extract", found, b.number(lane))
                    b.store(room, b.at("add", place, lane * tile.columns), element)

    def _place(self, row: Operand, column: Operand) -> Index:
        """Emit where shared memory has an element, by the tile's row and column."""
        b, tile = self.b, self.tile
        skewed = b.at("multiply", b.at("div", row, tile.lanes), tile.skew)
        place = b.at("add", b.at("multiply", row, tile.columns), column)
        return b.at("add", place, skewed)

    def _write(self, rows: list[Operand], columns: list[Operand]) -> None:
        """Emit the second walk: what was left is read as arrays are, then all else."""
        emitter, tile = self.emitter, self.tile
        every = emitter.every()
        for value, room in zip(self.of.values, self.room, strict=True):
            wide = emitter.aligned(value.node.dtype.bytes, tile.wide)
            for at in every:
                place = self._place(rows[at[self.of.axis]], columns[at[self.last]])
                found = self.b.load(room, place, tile.wide, None, wide)
                emitter.know(value, at, found)
        values = sorted(
            [value for level in emitter.levels[1:] for value in level],
            key=lambda value: value.number,
        )
        emitter.emit_and_store(values, every, emitter.depth)
