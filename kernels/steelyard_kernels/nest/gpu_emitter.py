"""Emits the values of a nest for one thread of a GPU.

A block's threads share loops. What is walked in turns is a loop of each thread over its
own vectors; where one turn has all of an axis, its vectors are open from the start for
good, and what one reduction computed of them is still in registers for the next. Loads
are all on their way before the first is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from math import prod
from typing import Any, Final

from steelyard_kernels.expression.expr import Arange, Handed, Input
from steelyard_kernels.expression.structure import closure
from steelyard_kernels.ir.builder import Index
from steelyard_kernels.ir.loops import Buffer, Operand
from steelyard_kernels.monoids import ALONG, MONOIDS, Monoid
from steelyard_kernels.nest.axes import Stored, Value, is_column
from steelyard_kernels.nest.emitter import Emitter
from steelyard_kernels.nest.offsets import At
from steelyard_kernels.nest.sorts import Sharing
from steelyard_kernels.nest.threads import Threads
from steelyard_kernels.nest.values import Run, total_of
from steelyard_kernels.schedule.cluster import Hand
from steelyard_kernels.schedule.schedule import Place
from steelyard_kernels.schedule.tile import Carried
from steelyard_kernels.schedule.warp import prefix_of_lanes

VECTOR_BYTES: Final = 16  # the widest load and store of a thread
SHORT: Final = 128  # values that a thread adds up by itself: a mean is true to some ulp


class GpuEmitter(Emitter):
    """Emits one nest under one schedule, for a thread of a block."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.threads = Threads(self.nest, self.schedule, self.b)
        self.cuts = self.threads.cuts
        self._columns: dict[int, Buffer] = {}  # of what is hoisted to shared memory
        self._own: Operand = self.b.number(0)  # this thread's place there
        self.back: Operand | None = None  # from a vector of memory to a row's start
        self.hand = self._hand()

    def _hand(self) -> Hand | None:
        """Emit taking a turn, where blocks hand totals over."""
        node = self.nest.handed
        if node is None:
            return None
        assert isinstance(node.memory, Input)
        (group,) = {id(g): g for g in self.threads.groups.values()}.values()
        return Hand(self.b, self.args.inputs[node.memory.index], group)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Open the loops, but the first, of which one turn has all: for good."""
        with ExitStack() as opened:
            for loop, cut in list(enumerate(self.cuts))[1:]:
                extent = self.extent_of(loop)
                if 0 < extent <= cut.size - self._before(loop):
                    opened.enter_context(self._last(loop, 0, extent))
            yield

    def hoist_columns(self) -> None:
        """Emit keeping what all rows share in shared memory, where each thread has its own."""
        if self.schedule.hoist is None:
            return
        b, last, every = self.b, len(self.axes) - 1, self.every()
        columns = [v for v in self.nest.values if is_column(self.nest, v)]
        super().emit(columns, every)
        lanes, threads = self.cuts[last].at(Place.VECTOR), self.schedule.threads
        self._own = b.at("multiply", b.thread(), lanes)
        for value in columns:
            size = threads * lanes * len(self.open[last].places)
            room = b.alloc("column", value.node.dtype, size, "shared", VECTOR_BYTES)
            alignment = self.aligned(value.node.dtype.bytes, lanes)
            for at in every:
                place = self._column(at[last])
                known = self.known[-1].pop(self.key(value, at))
                b.store(room, place, known, alignment=alignment)
            self._columns[value.number] = room

    def _column(self, turn: int) -> Operand:
        """Emit where this thread's vector of a turn lies among what is hoisted."""
        width = self.cuts[-1].at(Place.VECTOR) * self.schedule.threads
        return self.b.at("add", self._own, turn * width)

    def _value(self, value: Value, at: At) -> Operand:
        room = self._columns.get(value.number)
        if isinstance(value.node, Handed):
            return self._handed(value.node)
        if room is None:
            return super()._value(value, at)
        lanes = self.lanes(value.axes)
        alignment = self.aligned(room.dtype.bytes, lanes)
        return self.b.load(room, self._column(at[-1]), lanes, None, alignment)

    def _handed(self, node: Handed) -> Operand:
        """Emit the total before this block's, which all blocks hand over in turn."""
        assert self.hand is not None
        monoid = MONOIDS[ALONG[node.op].total]
        return self.hand.before(monoid, node.dtype, node.shape[node.axis])

    def _sorted(self) -> list[list[Value]]:
        """Return what outputs need by the last loop; what is waited for comes last."""
        levels = super()._sorted()
        late = [v for each in levels for v in each if isinstance(v.node, Handed)]
        rest = [[v for v in each if v not in late] for each in levels]
        return [*rest[:-1], sorted([*rest[-1], *late], key=lambda v: v.number)]

    def level(self, depth: int) -> None:
        """Emit what is inside of so many open loops; totals are told as they are known."""
        super().level(depth)
        told = [v for v in self.nest.values if isinstance(v.node, Handed)]
        for value in told if depth == 1 else ():
            assert self.hand is not None
            (total,) = value.args.values()
            self.hand.tell(self.at(total, self.every()[0], 1))

    # loops

    def walk(
        self,
        loop: int,
        body: Callable[[int, Carried], Carried],
        first: Carried = (),
    ) -> Carried:
        """Emit a walk by a block's threads: whole turns, then what is left of one."""
        b, size, extent = self.b, self.cuts[loop].size, self.extent_of(loop)
        whole = (extent + max(0, self._before(loop) - 1)) // size * size
        carried = first
        if whole:
            self.threads.within += 1
            with (
                b.loop(0, whole, size, *carried) as turn,
                self._turn(loop, turn.var),
            ):
                turn.yields(*body(len(self.open[loop].places), turn.carried))
            self.threads.within -= 1
            carried = turn.results
        if whole < extent:
            with self._last(loop, whole, extent):
                carried = body(len(self.open[loop].places), carried)
        return carried

    def _before(self, loop: int) -> int:
        """Return how many elements of a row may lie before its first whole vector."""
        return 0 if self.back is None else self.cuts[loop].at(Place.VECTOR) - 1

    def _turn(self, loop: int, at: Index) -> AbstractContextManager[None]:
        """Open a loop at a thread's places of a whole turn from `at` on."""
        cut = self.cuts[loop]
        if self.back is None:
            found = self.threads.places(loop, cut, at, cut.size, self.extent)
        else:
            found = self.threads.places_behind(cut, at, self.back)
        return self.opened(loop, found[0], cut.at(Place.VECTOR), found[1])

    def _last(self, loop: int, at: int, extent: int) -> AbstractContextManager[None]:
        """Open a loop at a thread's places of what is left from `at` on."""
        cut = self.cuts[loop]
        if self.back is None:
            found = self.threads.places(loop, cut, at, extent - at, self.extent)
        else:
            found = self.threads.places_about(cut, at, self.back, extent)
        return self.opened(loop, found[0], cut.at(Place.VECTOR), found[1])

    def across(
        self, loops: Iterable[int], combines: Sequence[str], totals: list[Operand]
    ) -> list[Operand]:
        """Emit what totals of some loops come to over all threads that walk these."""
        return self.threads.across(loops, combines, totals)

    def _running(self, value: Value, axis: int, at: At, lanes: int) -> Operand:
        """Emit a running total through the elements of a loop's threads, side by side.

        Those of all vectors that are open meet at one barrier, at the first of these.
        """
        (loop,) = self.loops_of([axis])
        if loop not in self.threads.groups:
            return super()._running(value, axis, at, lanes)
        taken = []
        places = range(at[loop], len(self.open[loop].places))
        ats = [(*at[:loop], place, *at[loop + 1 :]) for place in places]
        for each in ats:
            self._each(self._asked(value, each), each)
            taken.append(self.taken(value, loop, each, lanes))
        key = self.state_key(value, axis, at)
        found, self.states[key] = self._side_by_side(
            loop, total_of(value), taken, self.states[key]
        )
        for each, one in zip(ats, found, strict=True):
            self.know(value, each, self.shown(value, each, one))
        return self.at(value, at, lanes)

    def run(self, loop: int, row: Monoid, arg: Operand, state: Operand) -> Run:
        """Emit a running total through one vector of each of a loop's threads."""
        if loop not in self.threads.groups:
            return super().run(loop, row, arg, state)
        (found,), state = self._side_by_side(loop, row, [arg], state)
        return found, state

    def _side_by_side(
        self, loop: int, row: Monoid, taken: Sequence[Operand], state: Operand
    ) -> tuple[list[Operand], Operand]:
        """Emit a running total through vectors of a loop's threads, and how it goes on."""
        b, lanes = self.b, taken[0].type.lanes
        dtype = taken[0].type.dtype
        neutral = row.neutral(dtype)
        if row.combine == "add" and dtype.kind == "float":
            neutral = -0.0  # which changes no zero's sign: nothing is left of adding it
        prefixes = mine = list(taken)
        if state.type.lanes < lanes:
            prefixes = [prefix_of_lanes(b, row.combine, x, neutral) for x in taken]
            mine = [b.let("extract", x, b.number(lanes - 1)) for x in prefixes]
        befores, total = self.threads.prefix(loop, row.combine, mine, neutral)
        starts = [b.splat(b.let(row.combine, state, x), lanes) for x in befores]
        pairs = zip(starts, prefixes, strict=True)
        found: list[Operand] = [b.let(row.combine, *pair) for pair in pairs]
        return found, b.let(row.combine, state, total)

    def _asked(self, value: Value, at: At) -> list[Value]:
        """Return what a value is made of at a place and has not been emitted there."""
        roots = self.reads.of(value).values()
        return closure(roots, self.reads.needs, lambda v: not self.is_known(v, at))

    def sharing(self, loop: int) -> Sharing | None:
        """Return how threads share a loop's lines; None: each has its own."""
        threads, group = self.threads, self.threads.groups.get(loop)
        if group is None:
            return None
        rows, row = self.schedule.threads // group.count, threads.number.get(0, 0)
        number, again = threads.number[loop], threads.within > 0
        return Sharing(number, group.count, row, rows, again)

    def is_near(self, loops: Iterable[int]) -> bool:
        """Say whether means over loops are true to some ulp, added up in short parts."""
        own = [self.extent_of(k) // self.cuts[k].beside for k in loops]
        return prod(own) <= SHORT

    # values

    def emit(
        self,
        values: Sequence[Value],
        every: Sequence[At],
        end_with: Callable[[At], None] | None = None,
    ) -> None:
        """Emit values, operands first, loads of what the first loop walks before others.

        What all of its indices share is in a cache, and waits there for its use. Elements
        at places that were loaded come next, before reductions are waited for.
        """
        loads = [
            v for v in values if isinstance(v.source, Input | Arange) and not v.step
        ]
        for at in every:
            self._each([v for v in loads if 0 in self.loops[v.number]], at)
        chosen = self.reads.ahead([v for v in values if v.step])
        for at in every:
            self._each([v for v in values if v.number in chosen], at)
        super().emit(values, every, end_with)

    def _each(self, values: Sequence[Value], at: At) -> None:
        super()._each([v for v in values if not self.is_known(v, at)], at)

    def emit_and_store(
        self, values: Sequence[Value], every: Sequence[At], depth: int
    ) -> None:
        """Emit values and stores, one place's after another's."""
        self.emit(values, every, partial(self._store, depth))

    # memory

    def aligned(self, element: int, lanes: int, value: Value | None = None) -> int:
        """Return what a vector's address is a multiple of, in bytes; 0: of one element."""
        if value is not None and self.back is not None and is_column(self.nest, value):
            return 0  # rows' vectors begin elsewhere
        return min(VECTOR_BYTES, lanes * element) if lanes > 1 else 0

    def reached(self, value: Value, loops: Sequence[int], at: At) -> Operand | None:
        """Emit which lanes are read: all of a vector that holds some of a row's.

        Those before and behind the row are of others, and nobody asks for them. One by one
        lanes would be waited for before the loads behind them are on their way. What is
        overwritten is not read for a place that stands for none: another thread has it.
        """
        b, last, array = self.b, len(self.axes) - 1, value.source
        updates = [output.updates for output in self.nest.program.outputs]
        overwritten = isinstance(array, Input) and array.index in updates
        if overwritten and 0 in loops:
            mask = super().reached(value, loops, at)
            return b.both(mask, self.open[0].live[at[0]])
        if (
            self.back is None
            or last not in loops
            or self.open[last].masks[at[last]] is None
            or not isinstance(array, Input)
            or is_column(self.nest, value)
            or prod(array.shape) % self.open[last].lanes
            or overwritten
        ):
            return super().reached(value, loops, at)
        place = self.open[last].places[at[last]]
        begun = b.let("greater", place, b.number(-self.open[last].lanes))
        left = b.let("less", place, b.number(self.extent_of(last)))
        mask = self.mask([k for k in loops if k != last], at)
        return b.both(mask, b.both(begun, left))

    def _store(self, depth: int, at: At) -> None:
        """Emit the stores for which so many open loops suffice, each once."""
        for place in self._stores[depth]:
            output, buffer = self.nest.outputs[place], self.args.outputs[place]
            walked = self.walks(output.offset)
            if any(here and k and k not in walked for k, here in enumerate(at)):
                continue  # the same as at an earlier place
            lanes = self.lanes(output.offset.axes)
            value = self.at(output.value, at, lanes)
            start, mask = self.offset(output.offset, at), self._mine(output, at, lanes)
            alignment = self.aligned(buffer.dtype.bytes, lanes)
            self.b.store(buffer, start, value, mask, alignment=alignment)

    def _mine(self, output: Stored, at: At, lanes: int) -> Operand | None:
        """Emit whether this thread is the first that has an output's element."""
        stored = output.offset.axes
        mask = self.mask(self.walks(output.offset), at)
        mask = self.b.both(mask, self.open[0].live[at[0]])
        for loop, axes in enumerate(self.axes):
            if stored.issuperset(axes):
                continue
            first = self.threads.first(loop) if loop else self.is_first(stored, at)
            mask = self.b.both(mask, first)
        return None if mask is None else self.b.splat(mask, lanes)
