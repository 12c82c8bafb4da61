"""Emits whole lines: a walk along their axis fills memory that elements are read of.

A running total is stored at every step. An order packs each int32 key above its place in
one int64, so that no two are equal, and sorts these. A thread by itself merges runs of
twice the length each time, from one half of its memory to the other; a block's threads
compare and exchange in shared memory.
"""

from __future__ import annotations

from steelyard_kernels import dtypes
from steelyard_kernels.along import ABOVE
from steelyard_kernels.expression.expr import Along
from steelyard_kernels.ir.builder import Builder, Index, const
from steelyard_kernels.ir.loops import Buffer, Operand
from steelyard_kernels.monoids import accumulator
from steelyard_kernels.nest.axes import Value
from steelyard_kernels.nest.emitter import Emitter
from steelyard_kernels.nest.offsets import At
from steelyard_kernels.nest.values import Sharing, total_of
from steelyard_kernels.schedule.tile import Carried


def emit(emitter: Emitter, line: Value, node: Along) -> None:
    """Emit a line in the loops that are open, which have one place each that it needs."""
    b, orders, extent = emitter.b, node.op == "order", node.shape[node.axis]
    (at,) = {emitter.key(line, at): at for at in emitter.every()}.values()
    (loop,) = emitter.loops_of(line.over)
    sharing = emitter.sharing(loop)
    dtype = dtypes.int64 if orders else node.dtype
    begin: Index = 0
    if sharing is None:
        buffer = b.alloc("line", dtype, extent * (1 + orders))
    else:
        buffer = b.alloc("line", dtype, extent * sharing.rows, "shared")
        begin = b.at("multiply", sharing.row, extent)
        if sharing.again:
            b.effect("barrier")  # behind reads of the turn before
    _Walk(emitter, line, node, (buffer, begin)).emit(loop)
    if sharing is not None:
        b.effect("barrier")
        if orders:
            sort_together(b, buffer, begin, extent, sharing)
    elif orders:
        begin = sort(b, buffer, extent)
    emitter.lines[emitter.key(line, at)] = buffer, begin
    emitter.know(line, at, const(0, dtypes.bool_))  # that it is there


class _Walk:
    """The walk along a line that fills its memory, from a place on."""

    def __init__(
        self, emitter: Emitter, line: Value, node: Along, room: tuple[Buffer, Index]
    ) -> None:
        self.emitter = emitter
        self.line = line
        self.node = node
        self.buffer, self.begin = room
        self.total = None if node.op in {"order", "copy"} else total_of(line)

    def emit(self, loop: int) -> None:
        """Emit the walk."""
        emitter, first = self.emitter, self.emitter.every()[0]
        every = emitter.reads.inside([self.line], self.line.over)
        inside = [v for v in every if not emitter.is_known(v, first)]
        emitter.prepare([v for v in inside if not emitter.is_ready(v)])
        start: Carried = ()
        if self.total is not None:
            wide = accumulator(self.node.dtype)
            start = (const(self.total.neutral(wide), wide),)

        def body(_vectors: int, carried: Carried) -> Carried:
            into = list(carried)
            # Vectors of loops that the line does not vary with would take it in again.
            ats = [*{at[loop]: at for at in emitter.every()}.values()]
            emitter.emit(inside, ats, lambda at: self._step(loop, at, into))
            return tuple(into)

        emitter.carrying(loop, inside, body, start)

    def _step(self, loop: int, at: At, into: list[Operand]) -> None:
        """Emit taking in the elements of a vector, and storing what that comes to."""
        emitter, b, node = self.emitter, self.emitter.b, self.node
        opened, mask = emitter.open[loop], emitter.mask([loop], at)
        lanes, place = opened.lanes, opened.places[at[loop]]
        (arg,) = self.line.args.values()
        found = emitter.at(arg, at, lanes)
        if node.op == "order":
            found = _packed(b, found, place)
        elif self.total is not None:
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
        b.store(self.buffer, b.at("add", self.begin, to), found, mask)


def _packed(b: Builder, keys: Operand, place: Operand) -> Operand:
    """Emit keys above their places in int64."""
    dtype, lanes = dtypes.int64, keys.type.lanes
    places = b.splat(b.cast(place, dtype), lanes)
    if lanes > 1:
        places = b.let("add", places, b.iota(lanes, dtype))
    high = b.let("multiply", b.cast(keys, dtype), const(ABOVE, dtype, lanes))
    return b.let("add", high, places)


def sort(b: Builder, buffer: Buffer, extent: int) -> int:
    """Emit a merge sort of int64 in the first half of a buffer; return where they end up."""
    turns = (extent - 1).bit_length()
    # GPUs' compilers would spell all turns out, for seconds.
    with b.loop(0, turns, 1, b.number(0), unroll=1) as turn:
        (source,) = turn.carried
        to = b.at("subtract", extent, source)
        width = b.let("bitwise_left_shift", b.number(1), turn.var)
        both = b.at("multiply", width, 2)
        count = b.at("div", b.at("add", both, extent - 1), both)
        with b.loop(0, count, 1, unroll=1) as run:
            low = b.at("multiply", run.var, both)
            middle = b.at("minimum", b.at("add", low, width), extent)
            high = b.at("minimum", b.at("add", low, both), extent)
            with b.loop(low, high, 1, low, unroll=1) as out:
                (left,) = out.carried
                right = b.at("subtract", b.at("add", out.var, middle), left)
                takes, value = _least(b, buffer, source, (left, middle), (right, high))
                b.store(buffer, b.at("add", to, out.var), value)
                out.yields(b.let("where", takes, b.at("add", left, 1), left))
        turn.yields(to)
    return extent * (turns % 2)


def _least(
    b: Builder,
    buffer: Buffer,
    source: Operand,
    left: tuple[Operand, Operand],
    right: tuple[Operand, Operand],
) -> tuple[Operand, Operand]:
    """Emit the lesser of two runs' first, each from a place to an end, and if it is the left's."""
    ends = [b.at("minimum", at, b.at("subtract", end, 1)) for at, end in (left, right)]
    x, y = [b.load(buffer, b.at("add", source, at)) for at in ends]
    more = b.let("bitwise_or", b.let("less", x, y), b.let("greater_equal", *right))
    takes = b.let("bitwise_and", b.let("less", *left), more)
    return takes, b.let("where", takes, x, y)


def sort_together(
    b: Builder, buffer: Buffer, begin: Index, extent: int, sharing: Sharing
) -> None:
    """Emit a sort of int64 in shared memory by the threads of a group.

    Batcher's bitonic merges, with the second run backwards: all exchanges put the lesser
    first, so that what lies beyond the extent would stay there and is left out. K. E.
    Batcher, "Sorting networks and their applications", 1968.
    """
    turns = (extent - 1).bit_length()
    pairs = 1 << max(turns - 1, 0)

    def exchange(first: Operand, second: Operand) -> None:
        with b.branch(b.let("less", second, b.number(extent))):
            ends = [b.at("add", begin, each) for each in (first, second)]
            x, y = [b.load(buffer, end) for end in ends]
            b.store(buffer, ends[0], b.let("minimum", x, y))
            b.store(buffer, ends[1], b.let("maximum", x, y))

    def apart(pair: Operand, width: Operand) -> tuple[Operand, Operand]:
        """Emit where a run of twice the width begins, and how far in it the pair is."""
        inside = b.let("bitwise_and", pair, b.at("subtract", width, 1))
        return b.at("multiply", b.at("subtract", pair, inside), 2), inside

    with b.loop(0, turns, 1, unroll=1) as turn:
        width = b.let("bitwise_left_shift", b.number(1), turn.var)
        with b.loop(0, pairs, sharing.count) as loop:
            run, inside = apart(b.at("add", loop.var, sharing.number), width)
            last = b.at("add", run, b.at("subtract", b.at("multiply", width, 2), 1))
            exchange(b.at("add", run, inside), b.at("subtract", last, inside))
        b.effect("barrier")
        with b.loop(0, turn.var, 1, unroll=1) as step:
            by = b.at("add", step.var, 1)
            near = b.let("shift_right_logical", width, by)
            with b.loop(0, pairs, sharing.count) as loop:
                run, inside = apart(b.at("add", loop.var, sharing.number), near)
                first = b.at("add", run, inside)
                exchange(first, b.at("add", first, near))
            b.effect("barrier")
