"""Emits whole lines: a walk along their axis fills memory that elements are read of.

A running total is stored at every step, and so are the elements that an order sorts. Where
only the first of these are asked for a thread of a CPU keeps those that may be among them,
until there are so many that it sorts them and drops the rest.
"""

from __future__ import annotations

from typing import Final

from steelyard_kernels import dtypes
from steelyard_kernels.expression.expr import Along
from steelyard_kernels.ir.builder import Index, const
from steelyard_kernels.ir.loops import Operand
from steelyard_kernels.monoids import accumulator
from steelyard_kernels.nest.axes import Value
from steelyard_kernels.nest.emitter import Emitter
from steelyard_kernels.nest.offsets import At
from steelyard_kernels.nest.sorts import ABOVE, Room, keyed, sort, sort_together
from steelyard_kernels.nest.values import total_of
from steelyard_kernels.schedule.lines import elements, held, kinds_of, wanted
from steelyard_kernels.schedule.tile import Carried

MOST_LANES: Final = 64


def emit(emitter: Emitter, line: Value, node: Along) -> None:
    """Emit a line in the loops that are open, which have one place each that it needs."""
    b, nest, cpu = emitter.b, emitter.nest, emitter.target == "cpu"
    (at,) = {emitter.key(line, at): at for at in emitter.every()}.values()
    (loop,) = emitter.loops_of(line.over)
    sharing, extent = emitter.sharing(loop), node.shape[node.axis]
    count = elements(nest, line, cpu=cpu)
    rows, space = (sharing.rows, "shared") if sharing else (1, "stack")
    buffers = tuple(
        [b.alloc("line", kind, count * rows, space) for kind in kinds_of(node)]
    )
    room = Room(buffers, b.at("multiply", sharing.row, count) if sharing else 0)
    if sharing is not None and sharing.again:
        b.effect("barrier")  # behind reads of the turn before
    chooses = cpu and node.op == "order" and held(nest, line) < extent
    begin = (_Choice if chooses else _Walk)(emitter, line, node, room).emit(loop)
    if sharing is not None:
        b.effect("barrier")
    if node.op == "order" and not cpu:
        sort_together(b, room, extent, sharing)
    emitter.lines[emitter.key(line, at)] = buffers[-1], begin
    emitter.know(line, at, const(0, dtypes.bool_))  # that it is there


class _Walk:
    """The walk along a line that fills its memory, from a place on."""

    def __init__(self, emitter: Emitter, line: Value, node: Along, room: Room) -> None:
        self.emitter = emitter
        self.line = line
        self.node = node
        self.room = room
        self.total = None if node.op in {"order", "copy"} else total_of(line)

    def emit(self, loop: int) -> Index:
        """Emit the walk, and sorting by a thread of a CPU; return where the line begins."""
        self.walk(loop)
        if self.node.op != "order" or self.emitter.target != "cpu":
            return self.room.begin
        return sort(self.emitter.b, self.room, self.node.shape[self.node.axis])

    def walk(self, loop: int) -> Carried:
        """Emit the walk, and return what it carries in the end."""
        emitter, first = self.emitter, self.emitter.every()[0]
        every = emitter.reads.inside([self.line], self.line.over)
        inside = [v for v in every if not emitter.is_known(v, first)]
        emitter.prepare([v for v in inside if not emitter.is_ready(v)])

        def body(_vectors: int, carried: Carried) -> Carried:
            into = list(carried)
            # Vectors of loops that the line does not vary with would take it in again.
            ats = [*{at[loop]: at for at in emitter.every()}.values()]
            emitter.emit(inside, ats, lambda at: self._step(loop, at, into))
            return tuple(into)

        return emitter.carrying(loop, inside, body, self.start())

    def start(self) -> Carried:
        """Return what the walk begins with."""
        if self.total is None:
            return ()
        wide = accumulator(self.node.dtype)
        return (const(self.total.neutral(wide), wide),)

    def _step(self, loop: int, at: At, into: list[Operand]) -> None:
        """Emit taking in the elements of a vector, and storing what that comes to."""
        emitter, b, node = self.emitter, self.emitter.b, self.node
        opened, mask = emitter.open[loop], emitter.mask([loop], at)
        lanes, place = opened.lanes, opened.places[at[loop]]
        (arg,) = self.line.args.values()
        found = emitter.at(arg, at, lanes)
        if node.op == "order":
            self._take(found, place, mask, into)
            return
        if self.total is not None:
            found = b.cast(found, into[0].type.dtype)
            neutral = const(
                self.total.neutral(found.type.dtype), found.type.dtype, lanes
            )
            found = found if mask is None else b.let("where", mask, found, neutral)
            found, into[0] = emitter.run(loop, self.total, found, into[0])
            found = b.cast(found, node.dtype)
        to: Index = place
        if node.reverse:
            to = b.at("subtract", node.shape[node.axis] - 1, place)
        self.room.store(b, to, (found,), mask)

    def _take(
        self, keys: Operand, place: Operand, mask: Operand | None, into: list[Operand]
    ) -> None:
        """Emit storing the elements of a vector of keys, and what goes on from there."""
        del into  # nothing does
        b, lanes = self.emitter.b, keys.type.lanes
        places = b.splat(b.cast(place, dtypes.int64), lanes)
        if lanes > 1:
            places = b.let("add", places, b.iota(lanes, dtypes.int64))
        wide = b.cast(keys, dtypes.int64)
        made = keyed(b.let, wide, places, packs=self.room.packs)
        self.room.store(b, place, made, mask)


class _Choice(_Walk):
    """The walk along a line that keeps the elements which may be among the first.

    It carries how many are kept, the key that all others must be below, and whether
    there is none yet.
    """

    def __init__(self, emitter: Emitter, line: Value, node: Along, room: Room) -> None:
        super().__init__(emitter, line, node, room)
        self.b = emitter.b
        self.some = held(emitter.nest, line)
        self.first = wanted(emitter.nest, line)
        self.keys = self.b.alloc("keys", node.arg.dtype, MOST_LANES)

    def emit(self, loop: int) -> Index:
        """Emit the walk, and sorting what is kept in the end."""
        count, *_ = self.walk(loop)
        return self.sorted(count)

    def start(self) -> Carried:
        """Return that nothing is kept."""
        return self.b.number(0), const(0, self.keys.dtype), const(1, dtypes.bool_)

    def sorted(self, count: Operand) -> Index:
        """Emit putting what is kept in order; return from where on it lies."""
        b = self.b
        last = const(dtypes.int64.largest, dtypes.int64)
        with b.loop(count, self.some, 1) as loop:
            self.room.store(b, loop.var, (last,) * len(self.room.buffers))
        return sort(b, self.room, self.some)

    def _take(
        self, keys: Operand, place: Operand, mask: Operand | None, into: list[Operand]
    ) -> None:
        """Emit keeping the elements of a vector that are below the last of the first."""
        del mask  # see `_kept`
        b, lanes = self.b, keys.type.lanes
        _, limit, is_open = into
        least = b.let("reduce_minimum", keys) if lanes > 1 else keys
        some = b.let("bitwise_or", b.let("less", least, limit), is_open)
        with b.branch(some, seldom=True) as branch:
            b.store(self.keys, 0, keys)
            count = self._kept(place, lanes, into)
            full = b.let("less", b.number(self.some - lanes), count)
            with b.branch(full, seldom=True) as more:
                more.gives(*self._dropped(count))
                more.otherwise()
                more.gives(count, limit, is_open)
            branch.gives(*more.results)
            branch.otherwise()
            branch.gives(*into)
        into[:] = branch.results

    def _kept(self, place: Operand, lanes: int, into: list[Operand]) -> Operand:
        """Emit keeping elements of so many keys; return how many there are then."""
        b, (count, limit, is_open) = self.b, into
        with b.loop(0, lanes, 1, count) as loop:
            (count,) = loop.carried
            key, at = b.load(self.keys, loop.var), b.at("add", place, loop.var)
            parts = b.cast(key, dtypes.int64), b.cast(at, dtypes.int64)
            self.room.store(b, count, keyed(b.let, *parts, packs=self.room.packs))
            below = b.let("bitwise_or", b.let("less", key, limit), is_open)
            here = b.let("less", at, b.number(self.node.shape[self.node.axis]))
            keeps = b.let("bitwise_and", below, here)
            loop.yields(b.let("where", keeps, b.at("add", count, 1), count))
        return loop.results[0]

    def _dropped(self, count: Operand) -> Carried:
        """Emit dropping all but the first of what is kept."""
        b, room = self.b, self.room
        found = room.behind(b, self.sorted(count))
        with b.loop(0, self.first, 1) as loop:
            room.store(b, loop.var, found.load(b, loop.var))
        key = room.load(b, self.first - 1)[0]
        if room.packs:
            key = b.let("shift_right_logical", key, const(ABOVE, dtypes.int64))
        limit = b.cast(key, self.keys.dtype)
        return b.number(self.first), limit, const(0, dtypes.bool_)
