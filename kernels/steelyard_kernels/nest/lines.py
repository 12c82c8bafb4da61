"""Emits whole lines: a walk along their axis fills memory that elements are read of.

A running total is stored at every step. An order packs each int32 key above its place in
one int64, so that no two are equal, and sorts these: by merging runs of twice the length
each time, from one half of the memory to the other.
"""

from __future__ import annotations

from typing import Final

from steelyard_kernels import dtypes
from steelyard_kernels.along import ALONG
from steelyard_kernels.expression.expr import Along
from steelyard_kernels.ir.builder import Builder, const
from steelyard_kernels.ir.loops import Buffer, Operand
from steelyard_kernels.monoids import MONOIDS, accumulator
from steelyard_kernels.nest.axes import Value
from steelyard_kernels.nest.emitter import Emitter
from steelyard_kernels.nest.offsets import At
from steelyard_kernels.schedule.tile import Carried

ABOVE: Final = 1 << 32  # what a key counts in an int64


def emit(emitter: Emitter, line: Value, node: Along) -> None:
    """Emit a line in the loops that are open, which have one place each that it needs."""
    (at,) = {emitter.key(line, at): at for at in emitter.every()}.values()
    extent = node.shape[node.axis]
    orders = node.op == "order"
    dtype = dtypes.int64 if orders else node.dtype
    buffer = emitter.b.alloc("line", dtype, extent * (1 + orders))
    _Walk(emitter, line, node, buffer).emit()
    first = sort(emitter.b, buffer, extent) if orders else 0
    emitter.lines[emitter.key(line, at)] = buffer, first
    emitter.know(line, at, const(0, dtypes.bool_))  # that it is there


class _Walk:
    """The walk along a line that fills its memory."""

    def __init__(
        self, emitter: Emitter, line: Value, node: Along, buffer: Buffer
    ) -> None:
        self.emitter = emitter
        self.line = line
        self.node = node
        self.buffer = buffer
        (self.loop,) = emitter.loops_of(line.over)
        self.total = MONOIDS.get(ALONG[node.op].total)

    def emit(self) -> None:
        """Emit the walk."""
        emitter, node = self.emitter, self.node
        inside = emitter.reads.inside([self.line], self.line.over)
        closed = [v for v in inside if not emitter.is_ready(v)]
        emitter.prepare(closed)
        first: Carried = ()
        if self.total is not None:
            wide = accumulator(node.dtype)
            first = (const(self.total.neutral(wide), wide),)

        def body(_vectors: int, carried: Carried) -> Carried:
            (at,) = emitter.every()
            into = list(carried)
            emitter.emit(inside, [at], lambda at: self._step(at, into))
            return tuple(into)

        emitter.carrying(self.loop, inside, body, first)

    def _step(self, at: At, into: list[Operand]) -> None:
        """Emit taking in an element, and storing what that comes to."""
        emitter, b, node = self.emitter, self.emitter.b, self.node
        (arg,) = self.line.args.values()
        value, place = (
            emitter.at(arg, at, 1),
            emitter.open[self.loop].places[at[self.loop]],
        )
        found = value
        if node.op == "order":
            high = b.let(
                "multiply", b.cast(value, dtypes.int64), const(ABOVE, dtypes.int64)
            )
            found = b.let("add", high, b.cast(place, dtypes.int64))
        elif self.total is not None:
            value = b.cast(value, into[0].type.dtype)
            into[0] = b.let(self.total.combine, into[0], value)
            found = b.cast(into[0], node.dtype)
        if node.reverse:
            place = b.at("subtract", node.shape[node.axis] - 1, place)
        b.store(self.buffer, place, found)


def sort(b: Builder, buffer: Buffer, extent: int) -> int:
    """Emit a merge sort of int64 in the first half of a buffer; return where they end up."""
    turns = (extent - 1).bit_length()
    with b.loop(0, turns, 1, b.number(0)) as turn:
        (source,) = turn.carried
        to = b.at("subtract", extent, source)
        width = b.let("bitwise_left_shift", b.number(1), turn.var)
        both = b.at("multiply", width, 2)
        count = b.at("div", b.at("add", both, extent - 1), both)
        with b.loop(0, count, 1) as run:
            low = b.at("multiply", run.var, both)
            middle = b.at("minimum", b.at("add", low, width), extent)
            high = b.at("minimum", b.at("add", low, both), extent)
            with b.loop(low, high, 1, low) as out:
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
