"""Walks over the axes of reductions, and their accumulators.

Each term has an accumulator for every place of the open loops that it varies with, and
for every vector of an iteration; these are merged behind the walk, then the lanes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from math import prod
from typing import TypeAlias

from msgspec import Struct

from steelyard_kernels.dtypes import DType
from steelyard_kernels.expression.expr import Segments
from steelyard_kernels.ir.builder import const
from steelyard_kernels.ir.loops import Const, Operand
from steelyard_kernels.nest.axes import Value
from steelyard_kernels.nest.emitter import Emitter
from steelyard_kernels.nest.keep import Walk
from steelyard_kernels.nest.offsets import At
from steelyard_kernels.nest.reads import Term
from steelyard_kernels.schedule.schedule import Place
from steelyard_kernels.schedule.tile import Carried
from steelyard_kernels.schedule.warp import across_lanes


class Slot(Struct, frozen=True):
    """One accumulator: of a term, at a place, of one vector of an iteration."""

    term: Term
    at: At
    unit: int


Totals: TypeAlias = Mapping[tuple[Term, At], Operand]
Shifts: TypeAlias = Mapping[tuple[int, At], Operand]  # by a value's number and a place


class Site:
    """Where reductions that share a walk are emitted.

    `loops` are those of their axes, `places` those of the open loops that they vary
    with, `lanes` those of their accumulators. `bounds` are those of a segment.
    """

    def __init__(self, emitter: Emitter, first: Value) -> None:
        self.emitter = emitter
        self.loops = emitter.loops_of(first.over)
        every = emitter.every()
        self.places = tuple({emitter.key(first, at): at for at in every}.values())
        opened = emitter.open
        self.summed = prod(
            [
                opened[k].lanes if k in opened else emitter.cuts[k].at(Place.VECTOR)
                for k in self.loops
            ]
        )
        # Where all of a loop is open at once, one accumulator takes in every vector of it.
        held = all(k in emitter.open for k in self.loops)
        self.units = 1 if held else emitter.cuts[self.loops[-1]].at(Place.REGISTER)
        self.lanes = max(self.summed, emitter.lanes(first.axes))
        self.bounds: tuple[Operand, Operand] | None = None
        if isinstance(first.node, Segments):
            _, *ends = first.args.values()
            low, high = (emitter.at(end, self.places[0], 1) for end in ends)
            self.bounds = low, high


class Walker:
    """One walk: what it emits, and the terms of that which it accumulates.

    From a value its shift is subtracted first, where it has one.
    """

    def __init__(
        self, site: Site, walk: Walk, terms: Sequence[Term], shifts: Shifts
    ) -> None:
        self.site = site
        self.walk = walk
        self.emitter = emitter = site.emitter
        self.shifts = {
            key: emitter.b.splat(shift, site.lanes) for key, shift in shifts.items()
        }
        self.bounds = site.bounds
        last = site.loops[-1]
        vectors = emitter.cuts[last].at(Place.REGISTER)
        if last in emitter.open:
            vectors = len(emitter.open[last].places)
        self.slots = [
            Slot(term, at, unit)
            for term in terms
            for at in site.places
            for unit in range(site.units)
        ]
        self._of: dict[At, list[int]] = {}  # the slots of each place of an iteration
        for number, slot in enumerate(self.slots):
            for unit in range(slot.unit, vectors, site.units):
                at = (*slot.at[:last], unit, *slot.at[last + 1 :])
                self._of.setdefault(at, []).append(number)

    def emit(self, start: Carried = ()) -> Totals:
        """Emit the walk, and what the accumulators come to; () starts from nothing."""
        lanes = self.site.lanes
        nothing = [const(s.term.neutral, s.term.dtype, lanes) for s in self.slots]
        parts: dict[tuple[Term, At], list[Operand]] = {}
        with self.emitter.walking(self.walk):
            ends = self._open(0, start or tuple(nothing))
        for slot, total in zip(self.slots, ends, strict=True):
            parts.setdefault((slot.term, slot.at), []).append(total)
        combines = [term.monoid.combine for term, _ in parts]
        merged = [self._total(key[0], totals) for key, totals in parts.items()]
        merged = self.emitter.across(self.site.loops, combines, merged)
        return dict(zip(parts, merged, strict=True))

    def _open(self, depth: int, carried: Carried) -> Carried:
        """Emit the loops from one on, and in the last of them a step."""
        emitter, loops = self.emitter, self.site.loops
        inner = [
            v for v in self.walk.values if not emitter.is_known(v, emitter.every()[0])
        ]
        closed = [v for v in inner if not emitter.is_ready(v)]
        emitter.prepare([v for v in closed if v.number not in self.walk.loads])

        def body(_vectors: int, carried: Carried) -> Carried:
            ready = [v for v in inner if emitter.is_ready(v)]
            every, into = emitter.every(), list(carried)
            if depth + 1 < len(loops):
                emitter.emit(ready, every)
                return self._open(depth + 1, carried)
            emitter.emit(ready, every, functools.partial(self._step, into))
            return tuple(into)

        if self.bounds is not None:
            return emitter.between(loops[depth], self.bounds, body, carried)
        return emitter.carrying(loops[depth], self.walk.values, body, carried)

    def _step(self, into: list[Operand], at: At) -> None:
        """Emit taking in what is at one place; masked lanes change nothing."""
        known: dict[tuple[int, DType, float], Operand] = {}
        for number in self._of.get(at, ()):
            slot = self.slots[number]
            term, args = slot.term, []
            for value in term.args:
                key = value.number, term.dtype, term.neutral
                if key not in known:
                    known[key] = self._taken(value, slot, at)
                args.append(known[key])
            into[number] = self._with(term, into[number], args)

    def _with(self, term: Term, into: Operand, args: Sequence[Operand]) -> Operand:
        """Emit a total with one more value, or with a product."""
        b, first = self.emitter.b, self.site.units == 1 and isinstance(into, Const)
        if len(args) == 2:
            return b.let("multiply", *args) if first else b.let("fma", *args, into)
        return args[0] if first else b.let(term.monoid.combine, into, *args)

    def _taken(self, value: Value, slot: Slot, at: At) -> Operand:
        """Emit a value as a term takes it in."""
        emitter, b, term = self.emitter, self.emitter.b, slot.term
        found = b.cast(emitter.at(value, at, self.site.lanes), term.dtype)
        shift = self.shifts.get((value.number, slot.at))
        if shift is not None:
            found = b.let("subtract", found, shift)
        mask = emitter.mask(self.site.loops, at)
        if mask is not None:
            found = b.let("where", mask, found, like(found, term.neutral))
        return found

    def _total(self, term: Term, totals: Sequence[Operand]) -> Operand:
        b, combine = self.emitter.b, term.monoid.combine
        total = functools.reduce(lambda x, y: b.let(combine, x, y), totals)
        return across_lanes(b, combine, total) if self.site.summed > 1 else total


def like(value: Operand, number: float) -> Const:
    """Return a number as a value's dtype and lanes have it."""
    return const(number, value.type.dtype, value.type.lanes)
