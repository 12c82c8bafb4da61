"""The lowering of sums of products on a CPU: tiles, their steps, and blocks of registers.

A core takes one tile after another. In each step along the depth it copies what it needs
of both factors (`panels`), multiplies them block by block, the sums of a block in
registers, and keeps these sums for the next step. Behind the last step, what follows from
a block's sums is emitted as all values are, and stored. Every sum is added up in the order
of the depth, whatever the blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from msgspec import Struct
from msgspec.structs import replace

from steelyard_kernels.ir.builder import Builder, Index, const
from steelyard_kernels.ir.loops import INDEX, Buffer, Operand, Var
from steelyard_kernels.nest.panels import Copies
from steelyard_kernels.nest.reduce import emitter_of
from steelyard_kernels.schedule.blocking import Blocking, Panel, lying
from steelyard_kernels.schedule.parameters import Lowered, arguments, extent_slot


class Walk(Struct, frozen=True):
    """Where a factor's elements of a block lie.

    Rows, or single columns, are `apart`, and `step` lead to the next of the depth.
    `masks` say which columns are read, one a vector; none: all.
    """

    buffer: Buffer
    start: Operand
    apart: int
    step: int
    masks: tuple[Operand | None, ...] = ()


class Tile(Struct, frozen=True):
    """The first row and column of a tile, and how many it has."""

    row: Operand
    column: Operand
    rows: Operand
    columns: Operand


def lower(blocking: Blocking) -> Lowered:
    """Return the loop-level kernel of sums of products under a blocking that fits."""
    return Lowering(blocking).emit()


class Lowering:
    """Emits what one thread does."""

    def __init__(self, blocking: Blocking) -> None:
        self.blocking, self.product = blocking, blocking.product
        nest = self.product.nest
        self.args = arguments(nest.program)
        self.extent = Var("rows", INDEX)
        self.emitter = emitter_of(nest, blocking.schedule, self.args, self.extent)
        self.b = b = self.emitter.b
        self.panels = blocking.panels()
        self.copies = Copies(blocking, self.emitter)
        self.buffers = [
            b.alloc(name, self.product.dtype, panel.size) if panel.copied else None
            for name, panel in zip(("left", "right"), self.panels, strict=True)
        ]
        rows, self.pitch = blocking.sums
        self.sums = b.alloc("sums", self.product.dtype, rows * self.pitch)
        self.batch = bool(self.product.outer)
        behind = {value.number for value in self.product.behind}
        for depth in (self.batch + 1, self.batch + 2):  # what is before, copies compute
            level = self.emitter.levels[depth]
            self.emitter.levels[depth] = [v for v in level if v.number in behind]

    def emit(self) -> Lowered:
        """Emit the tiles of a thread, and close the kernel."""
        b, (outer, down, over) = self.b, self.blocking.blocks
        threads = 0 if self.blocking.shared else 1
        self.emitter.level(0)
        with (
            b.parallel(self.extent, self.blocking.turns, threads) as (low, high),
            b.loop(low, high, 1) as task,
            self.emitter.aside(),
        ):
            self.matrix(task.var)
        kernel = b.kernel("kernel", (*self.args.order, self.extent))
        slots = (*self.args.slots, extent_slot(outer * down * over))
        return Lowered(kernel, slots, threads)

    def matrix(self, task: Operand) -> None:
        """Emit one tile, of one matrix of the batch; neighbours share columns."""
        b, (_, down, over) = self.b, self.blocking.blocks
        _, m, n, _ = self.product.extents
        tall, wide = self.blocking.tile
        matrix = b.at("div", task, down * over)
        column, row = b.number(0), b.number(0)
        if over > 1:
            column = b.at("rem", b.at("div", task, down), over)
        if down > 1:
            row = b.at("rem", task, down)
        row, column = b.at("multiply", row, tall), b.at("multiply", column, wide)
        tile = Tile(row, column, self.rest(m, row, tall), self.rest(n, column, wide))
        if not self.batch:
            self.steps(tile)
            return
        with self.emitter.opened(0, [matrix], 1):
            self.emitter.level(1)
            self.steps(tile)

    def rest(self, extent: int, first: Operand, most: int) -> Operand:
        """Emit how many of an extent there are from one on, at most so many."""
        if extent % most == 0:
            return self.b.number(most)
        return self.b.at("minimum", self.b.at("subtract", extent, first), most)

    def steps(self, tile: Tile) -> None:
        """Emit all steps along the depth."""
        b, deep, k = self.b, self.blocking.depth, self.product.extents[3]
        if self.blocking.steps == 1:
            self.step(tile, b.number(0), b.number(k))
            return
        with b.loop(0, k, deep) as loop, self.emitter.aside():
            self.step(tile, loop.var, self.rest(k, loop.var, deep))

    def step(self, tile: Tile, first: Operand, depth: Operand) -> None:
        """Emit a step: copies, and all blocks."""
        b, blocking = self.b, self.blocking
        own = (tile.row, tile.rows), (tile.column, tile.columns)
        units = blocking.rows, blocking.columns
        for panel, buffer, place, unit in zip(
            self.panels, self.buffers, own, units, strict=True
        ):
            if buffer is not None:
                self.copies.emit(panel, buffer, place, unit, (first, depth))
        with (
            b.loop(0, tile.columns, blocking.columns) as over,
            b.loop(0, tile.rows, blocking.rows) as down,
            self.emitter.aside(),
        ):
            at = Tile(
                b.at("add", tile.row, down.var),
                b.at("add", tile.column, over.var),
                self.rest_of(tile.rows, down.var, 0),
                self.rest_of(tile.columns, over.var, 1),
            )
            self.block(at, (down.var, over.var), first, depth)

    def rest_of(self, count: Operand, first: Operand, side: int) -> Operand:
        """Emit how many rows or columns of a tile a block has."""
        unit = (self.blocking.rows, self.blocking.columns)[side]
        if self.product.extents[1 + side] % unit == 0:
            return self.b.number(unit)
        return self.b.at("minimum", self.b.at("subtract", count, first), unit)

    def block(
        self, at: Tile, inside: tuple[Operand, Operand], first: Operand, depth: Operand
    ) -> None:
        """Emit one block: its sums, and what follows from them."""
        b, blocking = self.b, self.blocking
        begin: Operand = b.number(0)
        if blocking.steps > 1:
            row = b.at("multiply", inside[0], self.pitch)
            begin = b.at("add", row, inside[1])
        walks = [
            self.copied(panel, buffer, inside[side])
            if buffer is not None
            else self.in_place(panel, at, first)
            for side, (panel, buffer) in enumerate(
                zip(self.panels, self.buffers, strict=True)
            )
        ]
        begun = self.begun(begin, first)
        walks[1] = replace(walks[1], masks=self.masks(at))
        sums = multiplied(self.b, blocking, walks, depth, begun)
        for place, value in zip(self.places(begin), sums, strict=True):
            b.store(self.sums, place, value)
        # Always true of one step: without a branch LLVM moves numbers that follow need
        # before all blocks, into the registers of the sums, which it then spills.
        end = b.at("add", first, blocking.depth) if blocking.steps > 1 else self.extent
        least = self.product.extents[3] if blocking.steps > 1 else 0
        last = b.let("greater_equal", end, b.number(least))
        with b.branch(last), self.emitter.aside():
            self.behind(at, begin)

    def places(self, begin: Operand) -> list[Operand]:
        """Emit where a block's sums are kept, row by row."""
        blocking = self.blocking
        return [
            self.b.at("add", begin, row * self.pitch + vector * blocking.lanes)
            for row in range(blocking.rows)
            for vector in range(blocking.vectors)
        ]

    def begun(self, begin: Operand, first: Operand) -> tuple[Operand, ...]:
        """Emit what a block's sums are before a step."""
        b, blocking = self.b, self.blocking
        count = blocking.rows * blocking.vectors
        zeros = (const(0, self.product.dtype, blocking.lanes),) * count
        if blocking.steps == 1:
            return zeros
        with b.branch(b.let("equal", first, b.number(0))) as branch:
            branch.gives(*zeros)
            branch.otherwise()
            places = self.places(begin)
            branch.gives(*[b.load(self.sums, at, blocking.lanes) for at in places])
        return branch.results

    def copied(self, panel: Panel, buffer: Buffer, inside: Operand) -> Walk:
        """Emit where a block's part of a copy begins."""
        if panel.across:
            return Walk(buffer, inside, 1, panel.pitch)
        start = self.b.at("multiply", inside, panel.pitch)
        return Walk(buffer, start, panel.pitch, 1)

    def in_place(self, panel: Panel, at: Tile, first: Operand) -> Walk:
        """Emit where a block's part of an array begins."""
        emitter, product, value = self.emitter, self.product, lying(panel.value)
        side = panel is self.panels[1]
        own, deep = self.batch + side, self.batch + 2
        with (
            emitter.opened(own, [at.column if side else at.row], 1),
            emitter.opened(deep, [first], 1),
        ):
            start = self.b.number(emitter.offset(value.offset, emitter.every()[0]))
        apart, step = (
            product.walks(value.offset, axes) for axes in (panel.axes, product.depth)
        )
        source = self.args.inputs[getattr(value.source, "index", 0)]
        return Walk(source, start, apart or 0, step or 0)

    def masks(self, at: Tile) -> tuple[Operand | None, ...]:
        """Emit which columns of a block are read, a mask a vector; (): all."""
        b, blocking = self.b, self.blocking
        if not blocking.masked:
            return ()
        lanes = blocking.lanes
        return tuple(
            [
                b.mask_below(b.at("subtract", at.columns, vector * lanes), lanes)
                for vector in range(blocking.vectors)
            ]
        )

    def share(self, row: Operand) -> Operand | None:  # noqa: ARG002 - for those who override it
        """Emit what a row's sums are multiplied by, in all lanes; None: by nothing."""
        return None

    def behind(self, at: Tile, begin: Operand) -> None:
        """Emit what follows from a block's sums, and its stores: row by row."""
        b, emitter, batch = self.b, self.emitter, self.batch
        lanes = self.blocking.lanes
        with b.loop(0, at.rows, 1) as down:
            start = b.at("add", begin, b.at("multiply", down.var, self.pitch))
            with emitter.opened(batch, [b.at("add", at.row, down.var)], 1):
                emitter.level(batch + 1)
                share = self.share(down.var)
                with b.loop(0, at.columns, lanes) as over, self.columns(at, over.var):
                    (place,) = emitter.every()
                    found = b.load(self.sums, b.at("add", start, over.var), lanes)
                    found = b.let("multiply", found, share) if share else found
                    emitter.know(self.product.reduction, place, found)
                    emitter.know(
                        self.product.total,
                        place,
                        b.cast(found, self.product.total.node.dtype),
                    )
                    emitter.level(batch + 2)

    @contextmanager
    def columns(self, at: Tile, first: Index) -> Iterator[None]:
        """Open the columns at one vector of a block."""
        b, lanes = self.b, self.blocking.lanes
        mask: Operand | None = None
        if self.product.extents[2] % lanes:
            mask = b.mask_below(b.at("subtract", at.columns, first), lanes)
        place = b.at("add", at.column, first)
        with self.emitter.opened(self.batch + 1, [place], lanes, [mask]):
            yield


def multiplied(
    b: Builder,
    blocking: Blocking,
    walks: Sequence[Walk],
    depth: Operand,
    begun: Sequence[Operand],
) -> tuple[Operand, ...]:
    """Emit the sums of a block in registers: the loop that takes nearly all time."""
    (left, right), lanes = walks, blocking.lanes
    with b.loop(0, depth, 1, *begun, left.start, right.start) as loop:
        *sums, row, column = loop.carried
        loaded = [
            b.load(
                right.buffer,
                b.at("add", column, vector * lanes),
                lanes,
                right.masks[vector] if right.masks else None,
            )
            for vector in range(blocking.vectors)
        ]
        vectors = [b.cast(each, blocking.product.dtype) for each in loaded]
        found: list[Operand] = []
        for each in range(blocking.rows):
            one = b.load(left.buffer, b.at("add", row, each * left.apart))
            wide = b.splat(one, lanes)
            for vector in vectors:
                found.append(b.added(wide, vector, sums[len(found)]))
        loop.yields(
            *found, b.at("add", row, left.step), b.at("add", column, right.step)
        )
    return loop.results[:-2]
