"""The lowering of nests that read arrays along another axis than they write, on a CPU.

See `schedule.transposition`. A square is read by as many vectors as each has lanes, down that
axis, and transposed in registers; all else is read along the last axis, as it is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from steelyard_kernels.expression.expr import Input
from steelyard_kernels.ir.builder import Builder
from steelyard_kernels.ir.loops import INDEX, Operand, Var
from steelyard_kernels.nest.axes import Nest, Value
from steelyard_kernels.nest.emitter import Emitter
from steelyard_kernels.nest.panels import transposed
from steelyard_kernels.nest.reduce import reduce
from steelyard_kernels.schedule.legality import stores_aligned
from steelyard_kernels.schedule.model import LINE
from steelyard_kernels.schedule.parameters import Lowered, arguments, extent_slot
from steelyard_kernels.schedule.schedule import Place, Schedule
from steelyard_kernels.schedule.transposition import Transposed, blocks


def lower(nest: Nest, schedule: Schedule, of: Transposed, *, aligned: bool) -> Lowered:
    """Return the loop-level kernel of a nest under a schedule of squares that fits."""
    return _Lowering(nest, schedule, of, aligned=aligned).emit()


class _Lowering:
    """Emits what one thread does."""

    def __init__(
        self, nest: Nest, schedule: Schedule, of: Transposed, *, aligned: bool
    ) -> None:
        self.args = arguments(nest.program, LINE if aligned else 0)
        self.b = Builder()
        self.nest, self.schedule, self.of = nest, schedule, of
        self.last, self.lanes = (
            len(nest.extents) - 1,
            schedule.cuts[-1].at(Place.VECTOR),
        )
        self.extent = Var("rows", INDEX)
        self.emitter = Emitter(
            nest,
            schedule,
            self.args,
            self.b,
            target="cpu",
            extent=self.extent,
            reduce=reduce,
            alignment=stores_aligned(nest, schedule),
        )
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
        for axis, cut in reversed(list(enumerate(self.schedule.cuts))):
            count = -(-self.nest.extents[axis] // cut.size)
            own = b.at("rem", rest, count) if axis else rest
            starts[axis] = b.at("multiply", own, cut.size)
            rest = b.at("div", rest, count) if axis else rest
        others = {k: ([at], 1) for k, at in starts.items() if k not in self.square}
        down, across = (self.range(axis, starts[axis]) for axis in self.square)
        with (
            self.emitter.together(others),
            b.loop(*down, self.lanes) as far,
            b.loop(*across, self.lanes) as near,
            self.emitter.aside(),
        ):
            self.inside(far.var, near.var)

    @property
    def square(self) -> tuple[int, int]:
        """The axes of a square: that which arrays are read along, and the last."""
        return self.of.axis, self.last

    def range(self, axis: int, start: Operand) -> tuple[Operand, Operand]:
        """Emit from where to where a tile has an axis."""
        b, size, extent = self.b, self.schedule.cuts[axis].size, self.nest.extents[axis]
        end = b.at("add", start, size)
        return start, b.at("minimum", end, extent) if extent % size else end

    def inside(self, far: Operand, near: Operand) -> None:
        """Emit a square, and another way where some of it is beyond an axis' end."""
        b, found = self.b, None
        for axis, at in zip(self.square, (far, near), strict=True):
            extent, last = self.nest.extents[axis], b.at("add", at, self.lanes)
            if extent % self.lanes:
                fits = b.let("less_equal", last, b.number(extent))
                found = b.both(found, fits)
        if found is None:
            self.one(far, near, edge=False)
            return
        with b.branch(found) as branch, self.emitter.aside():
            self.one(far, near, edge=False)
            branch.otherwise()
            self.one(far, near, edge=True)

    def one(self, far: Operand, near: Operand, *, edge: bool) -> None:
        """Emit a square: what is read along its axis, then all along the last."""
        emitter, found = self.emitter, dict[int, list[Operand]]()
        with self.opened(far, near, edge=edge, reads=True):
            every = emitter.every()
            emitter.emit(self.of.values, every)
            for value in self.of.values:
                rows = [emitter.at(value, at, self.lanes) for at in every]
                found[value.number] = transposed(self.b, rows)
                if not edge:
                    self.ask_ahead(value)
        with self.opened(far, near, edge=edge, reads=False):
            every = emitter.every()
            for value in self.of.values:
                for at, column in zip(every, found[value.number], strict=True):
                    emitter.know(value, at, column)
            emitter.emit_and_store(self.values, every, emitter.depth)

    def ask_ahead(self, value: Value) -> None:
        """Ask for what an array has further along the axis."""
        emitter, ahead = self.emitter, self.schedule.prefetch
        assert isinstance(value.source, Input)
        for at in emitter.every() if ahead else ():
            start = emitter.offset(value.offset, at)
            start = self.b.at("add", start, ahead // value.node.dtype.bytes)
            self.b.prefetch(emitter.args.inputs[value.source.index], start, 2)

    @contextmanager
    def opened(
        self, far: Operand, near: Operand, *, edge: bool, reads: bool
    ) -> Iterator[None]:
        """Open a square's loops: by vectors along its axis to read, or along the last."""
        b, lanes, open_ = self.b, self.lanes, self.emitter.opened
        with ExitStack() as opened:
            for axis, first in zip(self.square, (far, near), strict=True):
                extent = self.nest.extents[axis]
                count = b.at("subtract", extent, first) if edge else None
                if (axis == self.last) is not reads:
                    mask = None if count is None else b.mask_below(count, lanes)
                    opened.enter_context(open_(axis, [first], lanes, [mask]))
                    continue
                places = [b.at("add", first, k) for k in range(lanes)]
                masks: list[Operand | None] = [None] * lanes
                if count is not None:
                    masks = [b.let("less", b.number(k), count) for k in range(lanes)]
                opened.enter_context(open_(axis, places, 1, masks))
            yield
