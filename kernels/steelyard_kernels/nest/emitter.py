"""Emits the values of a nest: each in the innermost loop that it varies with.

What no inner loop changes is emitted before that is opened: values, where in an array a
loop begins, and single values in all lanes. An open loop has one or more places at a
time, each a vector or a single index; a value is emitted once for each combination of
places of the loops that it varies with. A reduction opens the loops of its axes where
its value is asked for, after all that does not vary with them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from math import prod
from typing import Final

from steelyard_kernels.expression.expr import Input
from steelyard_kernels.expression.indices import Index as Offset
from steelyard_kernels.expression.structure import closure
from steelyard_kernels.ir.builder import Builder
from steelyard_kernels.ir.loops import Operand
from steelyard_kernels.nest.axes import Nest, Value
from steelyard_kernels.nest.keep import Kept, Stack, planner
from steelyard_kernels.nest.offsets import At
from steelyard_kernels.nest.values import NOTHING, Values
from steelyard_kernels.schedule.model import LINE
from steelyard_kernels.schedule.parameters import Arguments
from steelyard_kernels.schedule.schedule import Place, Schedule
from steelyard_kernels.schedule.tile import Carried, tile_constant

AHEAD: Final = 4
"""Turns of a loop over part of its indices whose loads are on their way at once."""


class Emitter(Values):
    """Emits one nest under one schedule.

    `alignment` is what the address of every streaming store is a multiple of. `extent` is any number that only the
    launch knows and that is never below 1, `reduce` emits the first of some values, a
    reduction, with those behind it that it can serve.
    """

    def __init__(
        self,
        nest: Nest,
        schedule: Schedule,
        args: Arguments,
        b: Builder,
        *,
        target: str,
        extent: Operand,
        reduce: Callable[[Emitter, Sequence[Value]], None],
        alignment: int = 0,
    ) -> None:
        super().__init__(nest, schedule, args, b, target)
        self.schedule = schedule
        self.cuts = schedule.cuts
        self.extent = extent
        self.alignment = alignment
        self._reduce = reduce
        # The loops of the space come first: they are opened one in the other.
        self.depth = len([axes for axes in self.axes if axes[0] < nest.space])
        # A CPU's loops are opened one in the other; all of a GPU's threads have their first.
        self._hoists = target == "cpu"
        self.levels = self._sorted()
        self.kept: Kept | None = None
        rows = schedule.keep is Place.STACK or schedule.hoist is not None
        if self._hoists and rows:
            self.kept = planner(nest).kept(schedule)
            self._room = Stack(
                b,
                self.kept,
                nest.extents[-1],
                self.cuts[-1].at(Place.VECTOR),
                self.cuts[0].at(Place.REGISTER),
            )
            if self.depth == len(self.axes):
                self.levels[-1] = list(self.kept.outputs.values)
        self.ahead = nest.streams if schedule.prefetch else []
        self._stores: list[list[int]] = [[] for _ in self.levels]
        for place, output in enumerate(nest.outputs):
            depth = _depth(self.walks(output.offset))
            self._stores[depth if self._hoists else -1].append(place)

    def _sorted(self) -> list[list[Value]]:
        """Return what outputs need, but inside of reductions, by the last loop."""
        outputs = [output.value for output in self.nest.outputs]
        levels: list[list[Value]] = [[] for _ in range(self.depth + 1)]
        for value in closure(outputs, self.reads.needs):
            levels[_depth(self.loops[value.number])].append(value)
        return levels

    # loops

    def level(self, depth: int) -> None:
        """Emit what is inside of so many open loops, and the loops inside of that."""
        values, every = self.levels[depth], self.every()
        more = depth < self.depth and (self._hoists or depth > 0)
        last = self.kept.outputs if self.kept else NOTHING
        inner = [v for each in self.levels[depth + 1 :] for v in each]
        inner = [v for v in inner if v.number not in last.loads]
        outputs = self.nest.outputs
        if more:
            stored = [output.offset for output in outputs]
            ahead = [v.offset for v in self.ahead]
            sources = [v.offset for v in inner if v.source is not None]
            self._begin([*sources, *ahead, *stored])
        with self.walking(NOTHING if more else last):
            self.emit_and_store(values, every, depth)
        if more:
            self._spread(inner, [(o.value, o.offset.axes) for o in outputs])

    def emit_and_store(
        self, values: Sequence[Value], every: Sequence[At], depth: int
    ) -> None:
        """Emit values and stores: of several rows one after the other, in few registers."""
        end = functools.partial(self.end, depth)
        if self.cuts and len(every) > self.cuts[-1].at(Place.REGISTER):
            self.emit(values, every, end)
            return
        self.emit(values, every)
        for at in every:
            end(at)

    def hoist(self) -> None:
        """Emit what is kept for all rows."""
        if self.kept is None or not self.kept.columns.values:
            return
        columns = self.kept.columns
        self.prepare(columns.values)

        def body(_vectors: int, _carried: Carried) -> Carried:
            with self.walking(columns):
                self.emit(columns.values, self.every())
            return ()

        self.carrying(len(self.axes) - 1, columns.values, body)

    def inside(self, depth: int = 1) -> None:
        """Emit what is inside of so many open loops, and the next of them."""
        self.level(depth)
        if depth < self.depth:

            def body(_vectors: int, _carried: Carried) -> Carried:
                self.inside(depth + 1)
                return ()

            self.carrying(depth, self.levels[depth + 1], body)

    def walk(
        self,
        loop: int,
        body: Callable[[int, Carried], Carried],
        first: Carried = (),
    ) -> Carried:
        """Emit a loop whose extent is known; `body` gets how many places are open."""
        b, cut = self.b, self.cuts[loop]
        lanes = cut.at(Place.VECTOR)

        def inside(
            at: Operand, vectors: int, mask: Operand | None, carried: Carried
        ) -> Carried:
            places = [b.at("add", at, lanes * u) for u in range(vectors)]
            with self.opened(loop, places, lanes, (mask,) * vectors):
                return body(vectors, carried)

        step = lanes, cut.at(Place.REGISTER)
        extent = self.extent_of(loop)
        return tile_constant(b, extent, step, inside, first, positive=self.extent)

    def carrying(
        self,
        loop: int,
        values: Iterable[Value],
        body: Callable[[int, Carried], Carried],
        first: Carried = (),
    ) -> Carried:
        """Emit a loop along which the running totals among some values go on.

        One that is open, all of it or some of its places, is not opened again.
        """
        totals = [v for v in values if v.runs is not None and v.runs in self.axes[loop]]
        starts: dict[tuple[int, ...], Operand] = {}
        for value, at in product(totals, self.every()):
            assert value.runs is not None
            starts[self.state_key(value, value.runs, at)] = self.begun(value, at)
        own = len(first)

        def inside(vectors: int, carried: Carried) -> Carried:
            self.states |= zip(starts, carried[own:], strict=True)
            ends = body(vectors, carried[:own])
            return (*ends, *[self.states[key] for key in starts])

        every = (*first, *starts.values())
        if loop in self.open:
            return inside(len(self.open[loop].places), every)[:own]
        return self.walk(loop, inside, every)[:own]

    def between(
        self,
        loop: int,
        bounds: tuple[Operand, Operand],
        body: Callable[[int, Carried], Carried],
        first: Carried,
    ) -> Carried:
        """Emit a loop over a part of its indices, one by one."""
        b = self.b
        low, high = [b.cast(each, b.index.dtype) for each in bounds]
        with (
            b.loop(low, high, 1, *first, unroll=AHEAD) as turn,
            self.opened(loop, [turn.var], 1),
        ):
            turn.yields(*body(1, turn.carried))
        return turn.results

    def extent_of(self, loop: int) -> int:
        """Return how many indices a loop has."""
        return prod([self.nest.extents[axis] for axis in self.axes[loop]])

    def across(
        self, _loops: Iterable[int], _combines: Sequence[str], totals: list[Operand]
    ) -> list[Operand]:
        """Emit what totals of some loops come to over all threads that walk these."""
        return totals

    def is_near(self, _loops: Iterable[int]) -> bool:
        """Say whether means over loops are true to some ulp, added up in short parts."""
        return False

    def prepare(self, values: Sequence[Value]) -> None:
        """Emit what a loop that is to be opened changes nothing of."""
        self._begin([value.offset for value in values if value.source is not None])
        self._spread(values, ())

    def ready(self, values: Sequence[Value]) -> list[Value]:
        """Emit what a loop that is to be opened changes nothing of; return the others."""
        every = self.every()
        values = [v for v in values if not self.is_known(v, every[0])]
        self.emit([v for v in values if self.is_ready(v)], every)
        rest = [v for v in values if not self.is_ready(v)]
        self.prepare(rest)
        return rest

    def _begin(self, offsets: Iterable[Offset]) -> None:
        """Emit where the arrays begin that both open and closed loops walk."""
        for offset in dict.fromkeys(offsets):
            opened = [k in self.open for k in self.walks(offset)]
            if any(opened) and not all(opened):
                for at in self.every():
                    self.offset(offset, at)

    def _spread(
        self,
        values: Iterable[Value],
        stored: Iterable[tuple[Value, frozenset[int]]],
    ) -> None:
        """Emit in all lanes what vectors of loops that are closed yet read or store."""
        for loop, cut in enumerate(self.cuts):
            lanes, axis = cut.at(Place.VECTOR), self.axes[loop][-1]
            if lanes == 1 or loop in self.open:
                continue
            wanted = [v for v, axes in stored if axis in axes]
            for value in values:
                if axis in value.axes:
                    wanted += self.reads.of(value).values()
            for value in sorted(dict.fromkeys(wanted), key=lambda v: v.number):
                for at in self.every():
                    if self.is_known(value, at):
                        self.at(value, at, lanes)

    # values

    def emit(
        self,
        values: Sequence[Value],
        every: Sequence[At],
        end_with: Callable[[At], None] | None = None,
    ) -> None:
        """Emit values, operands first, each at all places, and what ends each place."""
        first = 0
        for end, value in enumerate(values):
            if value.over:
                for at in every:
                    self._each(values[first:end], at)
                if self.found(self.key(value, every[0])) is None:
                    self._reduce(self, values[end:])
                first = end + 1
        for at in every:
            self._each(values[first:], at)
            if end_with is not None:
                end_with(at)

    def _each(self, values: Sequence[Value], at: At) -> None:
        known = self.known[-1]
        for value in values:
            key = self.key(value, at)
            if key not in known and not value.over:
                known[key] = self._value(value, at)
        for value in values if self._walk.stores else ():
            if self._room is not None and value.number in self._walk.stores:
                self._room.store(
                    value, *self._kept_at(value, at), known[self.key(value, at)]
                )
        if self.kept and self._walk is self.kept.asking:
            self._ask_ahead(at)

    # memory

    def end(self, depth: int, at: At) -> None:
        """Emit the stores at a place of so many open loops, and ask for what comes later."""
        self._store(depth, at)
        if depth == self.depth and not (self.kept and self.kept.asking):
            self._ask_ahead(at)

    def _ask_ahead(self, at: At) -> None:
        """Ask for what rows to come read, where a vector of this one is whole."""
        if self.mask(self.open, at) is None:
            for value in self.ahead:
                self._prefetch(value, at)

    def _prefetch(self, value: Value, at: At) -> None:
        """Ask for an array's elements ahead of a place, once a cache line."""
        b, bytes_, loop = self.b, value.node.dtype.bytes, len(self.axes) - 1
        assert isinstance(value.source, Input)
        if at[loop] * self.open[loop].lanes * bytes_ % LINE == 0:
            widest = max([array.node.dtype.bytes for array in self.ahead])
            ahead = self.schedule.prefetch // widest
            start = b.at("add", self.offset(value.offset, at), ahead)
            b.prefetch(self.args.inputs[value.source.index], start)

    def _store(self, depth: int, at: At) -> None:
        """Emit the stores for which so many open loops suffice."""
        for place in self._stores[depth]:
            output, buffer = self.nest.outputs[place], self.args.outputs[place]
            lanes = self.lanes(output.offset.axes)
            value = self.at(output.value, at, lanes)
            start = self.offset(output.offset, at)
            mask = self.mask(self.walks(output.offset), at)
            streams = self.schedule.streaming and mask is None and depth == self.depth
            alignment = self.alignment if streams else 0
            self.b.store(
                buffer, start, value, mask, streaming=streams, alignment=alignment
            )


def _depth(loops: Sequence[int]) -> int:
    """Return how many loops must be open for what varies with these."""
    return loops[-1] + 1 if loops else 0
