"""The lowering of nests that read arrays along another axis than they write, on a CPU.

See `schedule.transposition`. A square is read by as many vectors as each has lanes, down that
axis, and transposed in registers; all else is read along the last axis, as it is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

from msgspec import Struct

from steelyard_kernels.expression.expr import Input
from steelyard_kernels.ir.builder import Index
from steelyard_kernels.ir.loops import INDEX, Operand, Var
from steelyard_kernels.nest.axes import Nest, Value
from steelyard_kernels.nest.offsets import At
from steelyard_kernels.nest.panels import transposed
from steelyard_kernels.nest.reduce import emitter_of
from steelyard_kernels.schedule.legality import stores_aligned
from steelyard_kernels.schedule.model import LINE
from steelyard_kernels.schedule.parameters import Lowered, arguments, extent_slot
from steelyard_kernels.schedule.schedule import Place, Schedule
from steelyard_kernels.schedule.transposition import Transposed, blocks


def lower(nest: Nest, schedule: Schedule, of: Transposed, *, aligned: bool) -> Lowered:
    """Return the loop-level kernel of a nest under a schedule of squares that fits."""
    return _Lowering(nest, schedule, of, aligned=aligned).emit()


# Lines of a row that are asked for one after another, and by a row of stores each: of
# 4096 x 4096 float32 and int8 two cores took 1.1 and 1.28 times as long by two lines, and a
# core 1.1 times as long with all that a square asks for before its stores.
GROUP: Final = 8


class Asked(Struct, frozen=True):
    """From where on a square asks for what lies ahead: along its axis, and the last."""

    group: Operand
    row: Operand


class _Lowering:
    """Emits what one thread does."""

    def __init__(
        self, nest: Nest, schedule: Schedule, of: Transposed, *, aligned: bool
    ) -> None:
        self.args = arguments(nest.program, LINE if aligned else 0)
        self.nest, self.schedule, self.of = nest, schedule, of
        self.last = len(schedule.cuts) - 1
        self.lanes = schedule.cuts[-1].at(Place.VECTOR)
        self.extent = Var("rows", INDEX)
        alignment = stores_aligned(nest, schedule)
        self.emitter = emitter_of(nest, schedule, self.args, self.extent, alignment)
        self.b = self.emitter.b
        self.emitter.ahead = [v for v in self.emitter.ahead if v not in of.values]
        levels = [value for level in self.emitter.levels[1:] for value in level]
        self.values = sorted(levels, key=lambda value: value.number)

    def emit(self) -> Lowered:
        """Emit the tiles of a thread, and close the kernel."""
        b = self.b
        self.emitter.level(0)
        with (
            b.parallel(self.extent, 1, self.schedule.threads) as (low, high),
            b.loop(low, high, 1) as task,
            self.emitter.aside(),
        ):
            self.tile(task.var)
        if self.schedule.streaming:
            b.fence()
        kernel = b.kernel("kernel", (*self.args.order, self.extent))
        count = extent_slot(blocks(self.nest, self.schedule))
        return Lowered(kernel, (*self.args.slots, count), self.schedule.threads)

    def tile(self, task: Operand) -> None:
        """Emit one tile: squares side by side, then those after them along the axis."""
        b, starts, rest = self.b, dict[int, Operand](), task
        for loop, cut in reversed(list(enumerate(self.schedule.cuts))):
            count = -(-self.emitter.extent_of(loop) // cut.size)
            own = b.at("rem", rest, count) if loop else rest
            starts[loop] = b.at("multiply", own, cut.size)
            rest = b.at("div", rest, count) if loop else rest
        others = {k: ([at], 1) for k, at in starts.items() if k not in self.square}
        (top, end), across = (self.range(loop, starts[loop]) for loop in self.square)
        with (
            self.emitter.together(others),
            b.loop(top, end, self.group) as group,
            b.loop(
                group.var,
                b.at("minimum", b.at("add", group.var, self.group), end),
                self.lanes,
            ) as far,
            b.loop(*across, self.lanes) as near,
            self.emitter.aside(),
        ):
            inside = b.at("subtract", near.var, across[0])
            down = b.at("subtract", far.var, group.var)
            done = b.at("add", b.at("multiply", down, self.beside), inside)
            row = b.at("div", done, self.group // self.lanes)
            row = b.at("add", across[0], row)
            self.inside(far.var, near.var, Asked(group.var, row))

    @property
    def beside(self) -> int:
        """How many squares of a tile lie side by side along the last axis."""
        return self.schedule.cuts[-1].size // self.lanes

    @property
    def group(self) -> int:
        """How far along their axis arrays are asked for at once: some whole lines."""
        most = self.schedule.prefetch or GROUP * LINE
        most = min(most, GROUP * LINE) // self.of.element
        return self.lanes * max(1, min(most // self.lanes, self.lanes))

    @property
    def square(self) -> tuple[int, int]:
        """The loops of a square: along the axis that arrays are read along, and the last."""
        return self.of.axis, self.last

    def range(self, loop: int, start: Operand) -> tuple[Operand, Operand]:
        """Emit from where to where a tile has a loop."""
        b, size = self.b, self.schedule.cuts[loop].size
        extent = self.emitter.extent_of(loop)
        end = b.at("add", start, size)
        return start, b.at("minimum", end, extent) if extent % size else end

    def inside(self, far: Operand, near: Operand, asked: Asked) -> None:
        """Emit a square; one that ends beyond an axis' end as far as to end there.

        What is updated in place is computed once: there such a square has an edge.
        """
        b, found = self.b, None
        extents = [self.emitter.extent_of(loop) for loop in self.square]
        updates = any(out.updates is not None for out in self.nest.program.outputs)
        if min(extents) >= self.lanes and not updates:
            far, near = (
                b.at("minimum", at, extent - self.lanes) if extent % self.lanes else at
                for at, extent in zip((far, near), extents, strict=True)
            )
            self.one(far, near, asked)
            return
        for at, extent in zip((far, near), extents, strict=True):
            if extent % self.lanes:
                last = b.at("add", at, self.lanes)
                fits = b.let("less_equal", last, b.number(extent))
                found = b.both(found, fits)
        if found is None:
            self.one(far, near, asked)
            return
        with b.branch(found) as branch, self.emitter.aside():
            self.one(far, near, asked)
            branch.otherwise()
            self.one(far, near, None)

    def one(self, far: Operand, near: Operand, asked: Asked | None) -> None:
        """Emit a square: what is read along its axis, then all along the last.

        Without what is asked for it has an edge.
        """
        emitter, found = self.emitter, dict[int, list[Operand]]()
        edge, lines = asked is None, [] if asked is None else self.lines(asked)
        with self.opened(far, near, edge=edge, reads=True):
            every = emitter.every()
            emitter.emit(self.of.values, every)
            for value in self.of.values:
                rows = [emitter.at(value, at, self.lanes) for at in every]
                found[value.number] = transposed(self.b, rows)
        with self.opened(far, near, edge=edge, reads=False):
            every = emitter.every()
            for value in self.of.values:
                for at, column in zip(every, found[value.number], strict=True):
                    emitter.know(value, at, column)

            def end(at: At) -> None:
                emitter.end(emitter.depth, at)
                for value, starts in lines:
                    self.ask_ahead(value, starts, at[self.of.axis])

            emitter.emit(self.values, every, end)

    def lines(self, asked: Asked) -> list[tuple[Value, list[Index]]]:
        """Emit where rows begin that are asked for ahead, for each array."""
        b, emitter = self.b, self.emitter
        found: list[tuple[Value, list[Index]]] = []
        for value in self.of.values if self.schedule.prefetch else ():
            each, several = self.each(value)
            count = -(-self.lanes // (each * several))
            rows = [b.at("add", asked.row, row) for row in range(count)]
            opened = {self.of.axis: ([asked.group], 1), self.last: (rows, 1)}
            with emitter.together(opened):
                every = emitter.every()
                found.append(
                    (value, [emitter.offset(value.offset, at) for at in every])
                )
        return found

    def each(self, value: Value) -> tuple[int, int]:
        """Return of how many stores one asks for a line, and of a row for how many lines."""
        bytes_ = value.node.dtype.bytes
        stores = max(1, LINE // (self.lanes * bytes_))
        return stores, max(1, self.group * bytes_ // LINE)

    def ask_ahead(self, value: Value, starts: Sequence[Index], k: int) -> None:
        """Ask for a line of an array further along its axis, behind a square's row of stores.

        Of each row in turn as many lines as a group has are asked for.
        """
        b, bytes_ = self.b, value.node.dtype.bytes
        each, several = self.each(value)
        if k % each == 0:
            assert isinstance(value.source, Input)
            row, line = divmod(k // each, several)
            further = (self.schedule.prefetch + line * LINE) // bytes_
            at = b.at("add", starts[row], further)
            b.prefetch(self.emitter.args.inputs[value.source.index], at, 2)

    @contextmanager
    def opened(
        self, far: Operand, near: Operand, *, edge: bool, reads: bool
    ) -> Iterator[None]:
        """Open a square's loops: by vectors along its axis to read, or along the last."""
        b, lanes, open_ = self.b, self.lanes, self.emitter.opened
        with ExitStack() as opened:
            for loop, first in zip(self.square, (far, near), strict=True):
                extent = self.emitter.extent_of(loop)
                count = b.at("subtract", extent, first) if edge else None
                if (loop == self.last) is not reads:
                    mask = None if count is None else b.mask_below(count, lanes)
                    opened.enter_context(open_(loop, [first], lanes, [mask]))
                    continue
                places = [b.at("add", first, k) for k in range(lanes)]
                masks: list[Operand | None] = [None] * lanes
                if count is not None:
                    masks = [b.let("less", b.number(k), count) for k in range(lanes)]
                opened.enter_context(open_(loop, places, 1, masks))
            yield
