"""Emits one value at one place: from arrays, from what is kept, or from its operands.

What was emitted is known by the value's number and the places of the loops it varies with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeAlias

from steelyard_kernels import dtypes
from steelyard_kernels.expression.expr import (
    Along,
    Apply,
    Arange,
    Input,
    Merge,
    Scalar,
    View,
)
from steelyard_kernels.ir.builder import Builder, Index, const
from steelyard_kernels.ir.functions.exact import inverses, quotient
from steelyard_kernels.ir.functions.floats import Number
from steelyard_kernels.ir.loops import Buffer, Operand
from steelyard_kernels.monoids import ALONG, MONOIDS, Monoid, accumulator
from steelyard_kernels.nest import sorts
from steelyard_kernels.nest.axes import Guard, Nest, Source, Value
from steelyard_kernels.nest.keep import Stack, Walk
from steelyard_kernels.nest.offsets import At, Loops, Open
from steelyard_kernels.nest.reads import reads_of
from steelyard_kernels.nest.sorts import Sharing
from steelyard_kernels.schedule.parameters import Arguments
from steelyard_kernels.schedule.schedule import Schedule
from steelyard_kernels.schedule.values import lower as lower_node
from steelyard_kernels.schedule.warp import prefix_of_lanes

NOTHING: Final = Walk(())


Run: TypeAlias = tuple[Operand, Operand]  # of a running total: it, and its state


class Values(Loops):
    """The values of a nest in its open loops, for one kind of target."""

    def __init__(
        self, nest: Nest, schedule: Schedule, args: Arguments, b: Builder, target: str
    ) -> None:
        super().__init__(nest, schedule.cuts, b)
        self.args = args
        self.target = target
        self.reads = reads_of(nest, narrow=target == "cuda")
        self.lines: dict[tuple[int, ...], tuple[Buffer, Index]] = {}  # from where on
        self.states: dict[tuple[int, ...], Operand] = {}  # of running totals
        self._walk = NOTHING
        self._room: Stack | None = None
        self._row: Index = 0  # the first open row, of those that values are kept of

    @contextmanager
    def walking(self, walk: Walk) -> Iterator[None]:
        """Read and keep what a walk does while it is emitted."""
        before, self._walk = self._walk, walk
        yield
        self._walk = before

    def _kept_at(self, value: Value, at: At) -> tuple[Index, Operand]:
        """Return the row of the open ones, and the place in it, of a kept value."""
        loop = len(self.axes) - 1
        row = self.b.at("add", self._row, at[0]) if 0 in self.loops[value.number] else 0
        return row, self.open[loop].places[at[loop]]

    @contextmanager
    def one_row(self, row: Operand) -> Iterator[None]:
        """Have one of the open rows open alone, for what reads kept values of it only."""
        before, self._row = self._row, row
        rows, self.open[0] = self.open[0], Open([row], 1, [None], [None])
        yield
        self._row, self.open[0] = before, rows

    def key(self, value: Value, at: At) -> tuple[int, ...]:
        """Return what a value is known by at one place of the open loops."""
        return value.number, *map(at.__getitem__, self.loops[value.number])

    def is_known(self, value: Value, at: At) -> bool:
        """Say whether a value has been emitted for one place of the open loops."""
        return self.found(self.key(value, at)) is not None

    def know(self, value: Value, at: At, operand: Operand) -> None:
        """Remember a value that was emitted elsewhere."""
        self.known[-1][self.key(value, at)] = operand

    def at(self, value: Value, at: At, lanes: int) -> Operand:
        """Return a value at one place of the open loops, in so many lanes."""
        key = self.key(value, at)
        found = self.found(key)
        assert found is not None, value.node
        if found.type.lanes == lanes:
            return found
        spread = self.found((lanes, key))
        if spread is None:
            spread = self.known[-1][lanes, key] = self.b.splat(found, lanes)
        return spread

    def _value(self, value: Value, at: At) -> Operand:
        node, lanes = value.node, self.lanes(value.axes)
        if self._room and value.number in self._walk.loads:
            return self._room.load(value, *self._kept_at(value, at), lanes)
        if isinstance(node, Merge):
            return self._merged(value, node, at)
        if value.runs is not None:
            return self._running(value, value.runs, at, lanes)
        if value.source is not None:
            return self._load(value, value.source, at, lanes)
        if isinstance(node, Scalar):
            return self.args.scalars[node.name]
        if self._shares_divisor(value, lanes):
            return self._quotient(value, at, lanes)
        env = {n: self.at(arg, at, lanes) for n, arg in self.reads.of(value).items()}
        if isinstance(node, View):
            (shown,) = env.values()
            return self._guarded(value.guards, at, shown)
        fused, summed = self.reads.fused, self.reads.summed
        return lower_node(
            self.b, env, node, lanes, fused, target=self.target, summed=summed
        )

    def _shares_divisor(self, value: Value, lanes: int) -> bool:
        """Say whether all lanes of a float32 are divided by one that a walk came to.

        A GPU's division is a function: ten instructions and a branch for each lane.
        """
        node = value.node
        if not isinstance(node, Apply) or node.op != "divide" or self.target != "cuda":
            return False
        divisor = value.args[node.args[1].number]
        one = lanes > 1 and self.lanes(divisor.axes) == 1
        return one and bool(divisor.axes) and node.dtype is dtypes.float32

    def _quotient(self, value: Value, at: At, lanes: int) -> Operand:
        """Emit a division by what all lanes share, whose inverse is computed once."""
        assert isinstance(value.node, Apply)
        x, y = [value.args[arg.number] for arg in value.node.args]
        b, keys = self.b, [("inverse", k, self.key(y, at)) for k in range(3)]
        known = [each for each in map(self.found, keys) if each is not None]
        if not known:
            numbers = inverses(Number(b, self.at(y, at, 1)))
            known = [each.operand for each in numbers]
            self.known[-1].update(zip(keys, known, strict=True))
        of_y = [Number(b, b.splat(each, lanes)) for each in known]
        both = [Number(b, self.at(each, at, lanes)) for each in (x, y)]
        return quotient(*both, *of_y).operand

    def _running(self, value: Value, axis: int, at: At, lanes: int) -> Operand:
        """Emit a running total with the elements at a place, and remember how it goes on."""
        row, key = total_of(value), self.state_key(value, axis, at)
        (loop,) = self.loops_of([axis])
        taken = self.taken(value, loop, at, lanes)
        found, self.states[key] = self.run(loop, row, taken, self.states[key])
        return self.shown(value, at, found)

    def shown(self, value: Value, at: At, found: Operand) -> Operand:
        """Emit what a running total is at a place: zero where there is none."""
        return self._guarded(value.guards, at, self.b.cast(found, value.node.dtype))

    def taken(self, value: Value, loop: int, at: At, lanes: int) -> Operand:
        """Emit what a running total takes in at a place: nothing where there is none."""
        b, (arg,) = self.b, value.args.values()
        taken = b.cast(self.at(arg, at, lanes), accumulator(value.node.dtype))
        inside = self.guard(value.guards, at, lanes) if value.guards else None
        mask = b.both(inside, self.mask([loop], at))
        if mask is None:
            return taken
        neutral = total_of(value).neutral(taken.type.dtype)
        nothing = const(neutral, taken.type.dtype, lanes)
        return b.let("where", mask, taken, nothing)

    def run(self, _loop: int, row: Monoid, arg: Operand, state: Operand) -> Run:
        """Emit a running total through the lanes of a loop, or in those of another."""
        b, lanes = self.b, arg.type.lanes
        if state.type.lanes == lanes:
            found = b.let(row.combine, state, arg)
            return found, found
        if self.target == "cpu" and row.runs_in_order(arg.type.dtype):
            vector = arg
            for lane in map(b.number, range(lanes)):
                state = b.let(row.combine, state, b.let("extract", arg, lane))
                vector = b.let("insert", vector, state, lane)
            return vector, state
        prefix = prefix_of_lanes(b, row.combine, arg, row.neutral(arg.type.dtype))
        last = b.let("extract", prefix, b.number(lanes - 1))
        found = b.let(row.combine, b.splat(state, lanes), prefix)
        return found, b.let(row.combine, state, last)

    def begun(self, value: Value, at: At) -> Operand:
        """Emit what a value begins with that a walk carries on."""
        if isinstance(value.node, Merge):
            return sorts.searched(self.b, self._runs_of(value, value.node, at))
        assert value.runs is not None
        row, dtype = total_of(value), accumulator(value.node.dtype)
        lanes = self.lanes(value.axes - {value.runs})
        return const(row.neutral(dtype), dtype, lanes)

    def _runs_of(self, value: Value, node: Merge, at: At) -> sorts.Runs:
        """Return the runs that a merge reads, and the place in what it gives."""
        (array,) = value.args.values()
        assert isinstance(array.source, Input)
        b, buffer = self.b, self.args.inputs[array.source.index]
        begin = b.number(self.offset(array.offset, at))
        place = b.number(self.offset(value.offset, at))
        opened = [k for k in self.loops[value.number] if k in self.open]
        inside = self.mask(opened, at)
        if inside is not None:  # all threads read, also what is not stored
            nothing = b.number(0)
            begin, place = [
                b.let("where", inside, each, nothing) for each in (begin, place)
            ]
        return sorts.Runs(buffer, begin, node.arg.shape[-1] // 2, place)

    def _merged(self, value: Value, node: Merge, at: At) -> Operand:
        """Emit where the next element of two runs is."""
        b, runs = self.b, self._runs_of(value, node, at)
        if value.runs is None:
            found, _ = sorts.taken(b, runs, sorts.searched(b, runs))
        else:
            key = self.state_key(value, value.runs, at)
            found, self.states[key] = sorts.taken(b, runs, self.states[key])
        return b.cast(found, node.dtype)

    def sharing(self, _loop: int) -> Sharing | None:
        """Return how threads share a loop's lines; None: each has its own."""
        return None

    def state_key(self, value: Value, axis: int, at: At) -> tuple[int, ...]:
        """Return what a running total's state is known by: its other loops' places."""
        others = self.loops_of(value.axes - {axis})
        return value.number, *[at[loop] for loop in others]

    def _load(self, value: Value, of: Source, at: At, lanes: int) -> Operand:
        """Emit the elements of an array, of a line, or of 0, 1, 2, ..."""
        b, dtype = self.b, value.node.dtype
        start = b.number(self.offset(value.offset, at))
        if value.step:
            *_, which = value.args.values()
            chosen = b.cast(self.at(which, at, 1), b.index.dtype)
            start = b.at("add", start, b.at("multiply", chosen, value.step))
        if isinstance(of, Arange):
            first = b.cast(start, dtype)
            if lanes > 1:
                first = b.let("add", b.splat(first, lanes), b.iota(lanes, dtype))
            return self._guarded(value.guards, at, first)
        if isinstance(of, Along):
            buffer, begin = self.lines[self.key(value.args[-of.number], at)]
            start = b.number(b.at("add", start, begin))
        else:
            buffer = self.args.inputs[of.index]
        # What varies with a vector's rows alone is read for its first lane, which exists.
        own = [k for k in self.loops[value.number] if self.open[k].lanes in {1, lanes}]
        mask = self.reached(value, own, at)
        mask = mask and b.splat(mask, lanes)
        if value.guards:
            inside = self.guard(value.guards, at, lanes)
            mask = b.both(mask, inside)
        aligned = self.aligned(buffer.dtype.bytes, lanes, value)
        return b.cast(b.load(buffer, start, lanes, mask, aligned), dtype)

    def reached(self, _value: Value, loops: Sequence[int], at: At) -> Operand | None:
        """Emit which lanes of an array are read at a place of loops; None: all."""
        return self.mask(loops, at)

    def _guarded(self, guards: Sequence[Guard], at: At, value: Operand) -> Operand:
        if not guards:
            return value
        inside = self.guard(guards, at, value.type.lanes)
        nothing = const(0, value.type.dtype, value.type.lanes)
        return self.b.let("where", inside, value, nothing)

    def aligned(self, _element: int, _lanes: int, _value: Value | None = None) -> int:
        """Return what a vector's address is a multiple of, in bytes; 0: of one element."""
        return 0


def total_of(value: Value) -> Monoid:
    """Return the reduction whose running total a value is."""
    assert isinstance(value.node, Along)
    return MONOIDS[ALONG[value.node.op].total]
