"""Emits reductions: those of the same axes at one place share a walk.

Each has an accumulator for every place of the open loops that it varies with, and for
every vector of an iteration; these are merged behind the walk, then the lanes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from math import nan, prod

from steelyard_kernels.expression.expr import Dot, Reduce
from steelyard_kernels.ir.builder import Builder, const
from steelyard_kernels.ir.loops import Operand
from steelyard_kernels.monoids import MONOIDS, Monoid, accumulator
from steelyard_kernels.nest.axes import Value
from steelyard_kernels.nest.emitter import Emitter
from steelyard_kernels.nest.offsets import At
from steelyard_kernels.schedule.schedule import Place
from steelyard_kernels.schedule.tile import Carried


@dataclass(frozen=True, slots=True)
class Slot:
    """One accumulator: of a reduction, at a place, of one vector of an iteration."""

    value: Value
    at: At
    unit: int
    lanes: int


def reduce(emitter: Emitter, first: Value, following: Sequence[Value]) -> None:
    """Emit a reduction with those that follow it and that its walk can serve."""
    every = emitter.every()
    group = [first] + [
        value
        for value in following[1:]
        if (value.over, value.axes) == (first.over, first.axes)
        and all(emitter.is_known(v, every[0]) for v in emitter.reads.outside(value))
    ]
    _Walk(emitter, group, every).emit()


class _Walk:
    """One walk over the axes of a group of reductions."""

    def __init__(
        self, emitter: Emitter, group: Sequence[Value], every: Sequence[At]
    ) -> None:
        self.emitter = emitter
        self.group = group
        self.loops = emitter.loops_of(group[0].over)
        self.goals = emitter.reads.inside(group, group[0].over)
        cuts = emitter.cuts
        self.summed = prod([cuts[k].at(Place.VECTOR) for k in self.loops])
        self.slots = [
            Slot(value, at, unit, max(self.summed, emitter.lanes(value.axes)))
            for value in group
            for at in {emitter.key(value, at): at for at in every}.values()
            for unit in range(cuts[self.loops[-1]].at(Place.REGISTER))
        ]

    def emit(self) -> None:
        """Emit the walk, and what the accumulators come to."""
        start = tuple(
            const(
                _monoid(s.value).neutral(accumulator(s.value.node.dtype)),
                accumulator(s.value.node.dtype),
                s.lanes,
            )
            for s in self.slots
        )
        parts: dict[tuple[int, At], list[Operand]] = {}
        for slot, total in zip(self.slots, self._open(0, start), strict=True):
            parts.setdefault((slot.value.number, slot.at), []).append(total)
        by_number = {value.number: value for value in self.group}
        for (number, at), totals in parts.items():
            value = by_number[number]
            self.emitter.know(value, at, self._finished(value, totals))

    def _open(self, depth: int, carried: Carried) -> Carried:
        """Emit the loops from one on, and in the last of them a step."""
        emitter = self.emitter
        inner = [v for v in self.goals if not emitter.is_ready(v)]
        emitter.prepare(inner)

        def body(vectors: int, carried: Carried) -> Carried:
            every = emitter.every()
            emitter.emit([v for v in inner if emitter.is_ready(v)], every)
            if depth + 1 < len(self.loops):
                return self._open(depth + 1, carried)
            return tuple(
                self._step(slot, into) if slot.unit < vectors else into
                for slot, into in zip(self.slots, carried, strict=True)
            )

        return emitter.walk(self.loops[depth], body, carried)

    def _step(self, slot: Slot, into: Operand) -> Operand:
        """Emit taking in what is at one place; masked lanes change nothing."""
        emitter, b, value = self.emitter, self.emitter.b, slot.value
        last = self.loops[-1]
        at = (*slot.at[:last], slot.unit, *slot.at[last + 1 :])
        dtype = into.type.dtype
        args = [
            b.cast(emitter.at(arg, at, slot.lanes), dtype)
            for arg in emitter.reads.of(value).values()
        ]
        if isinstance(value.node, Dot) and len(args) == 1:
            args *= 2  # of a value and itself
        mask = emitter.mask(self.loops)
        if mask is not None:
            nothing = const(_monoid(value).neutral(dtype), dtype, slot.lanes)
            args = [b.let("where", mask, arg, nothing) for arg in args]
        if len(args) == 2:
            return b.let("fma", *args, into)
        return b.let(_monoid(value).combine, into, *args)

    def _finished(self, value: Value, totals: Sequence[Operand]) -> Operand:
        b, monoid = self.emitter.b, _monoid(value)
        total = functools.reduce(lambda x, y: b.let(monoid.combine, x, y), totals)
        if self.summed > 1:
            total = _across(b, monoid.combine, total)
        if monoid.mean:
            extents = [self.emitter.nest.extents[axis] for axis in value.over]
            share = 1 / prod(extents) if all(extents) else nan
            lanes, dtype = total.type.lanes, total.type.dtype
            total = b.let("multiply", total, const(share, dtype, lanes))
        return b.cast(total, value.node.dtype)


def _across(b: Builder, combine: str, vector: Operand) -> Operand:
    """Emit the reduction of a vector's lanes."""
    if combine != "multiply":
        return b.let(f"reduce_{combine}", vector)
    lanes = [b.let("extract", vector, b.number(k)) for k in range(vector.type.lanes)]
    return functools.reduce(lambda x, y: b.let(combine, x, y), lanes)


def _monoid(value: Value) -> Monoid:
    node = value.node
    assert isinstance(node, Reduce | Dot)
    return MONOIDS["sum" if isinstance(node, Dot) else node.op]
