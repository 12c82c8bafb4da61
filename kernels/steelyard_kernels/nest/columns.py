"""Reductions of columns on a CPU, whose rows are walked in the order in which they lie.

A thread reads some rows at a time along many columns, and adds them to what these have
come to so far, on its stack: rows lie side by side in memory, columns far apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from steelyard_kernels.ir.builder import const
from steelyard_kernels.ir.loops import Operand
from steelyard_kernels.nest.accumulate import Totals
from steelyard_kernels.nest.contraction import reached
from steelyard_kernels.nest.emitter import Emitter
from steelyard_kernels.nest.reduce import Group
from steelyard_kernels.schedule.schedule import Place
from steelyard_kernels.schedule.tile import Carried, tile_runtime


class Columns:
    """Emits a nest's reductions, and what follows, of a range of the columns of a loop."""

    def __init__(self, emitter: Emitter, loop: int) -> None:
        self.emitter, self.b, self.loop = emitter, emitter.b, loop
        self.cut = cut = emitter.cuts[loop]
        self.step = cut.at(Place.VECTOR), cut.at(Place.REGISTER)
        nest, reads = emitter.nest, emitter.reads
        self.group = [value for value in nest.values if value.over]
        outside = [arg for value in self.group for arg in reads.outside(value)]
        self.outside = reached(nest, outside, set())
        self.reduced = emitter.loops_of(self.group[0].over)

    def emit(self, low: Operand, high: Operand) -> None:
        """Emit the columns from `low` up to `high`, at most the cut's size."""
        b, lanes = self.b, self.step[0]
        self.low = low
        self.terms = Group(self.emitter, self.group).terms
        self.rooms = [b.alloc("totals", t.dtype, self.cut.size) for t in self.terms]
        with b.loop(0, self.cut.size, lanes) as each:
            for term, room in zip(self.terms, self.rooms, strict=True):
                b.store(room, each.var, const(term.neutral, term.dtype, lanes))
        self._rows(high, 0)
        tile_runtime(b, low, high, self.step, self._behind)

    def _rows(self, high: Operand, depth: int, *_: object) -> Carried:
        """Emit the walk over all rows, and in the last loop of it some of them."""
        if depth < len(self.reduced):
            body = partial(self._rows, high, depth + 1)
            return self.emitter.walk(self.reduced[depth], body)
        tile_runtime(self.b, self.low, high, self.step, self._taken)
        return ()

    def _taken(
        self, at: Operand, vectors: int, mask: Operand | None, _: Carried
    ) -> Carried:
        """Emit taking some rows in, along some columns."""
        emitter, b, lanes = self.emitter, self.b, self.step[0]
        with self._open(at, vectors, mask) as places:
            every = emitter.every()
            known = [v for v in self.outside if not emitter.is_known(v, every[0])]
            emitter.emit(known, every)
            begun = [b.load(room, k, lanes) for room in self.rooms for k in places]
            ends = Group(emitter, self.group).walked(tuple(begun))
            rooms = [(room, k) for room in self.rooms for k in places]
            for (room, place), total in zip(rooms, ends.values(), strict=True):
                b.store(room, place, total)
        return ()

    def _behind(
        self, at: Operand, vectors: int, mask: Operand | None, _: Carried
    ) -> Carried:
        """Emit what some columns come to, and what follows from that."""
        b, lanes = self.b, self.step[0]
        with self._open(at, vectors, mask) as places:
            group = Group(self.emitter, self.group)
            totals: Totals = {
                (term, where): b.load(room, place, lanes)
                for term, room in zip(self.terms, self.rooms, strict=True)
                for where, place in zip(group.site.places, places, strict=True)
            }
            group.know(totals)
            self.emitter.level(self.loop + 1)
        return ()

    @contextmanager
    def _open(
        self, at: Operand, vectors: int, mask: Operand | None
    ) -> Iterator[list[Operand]]:
        """Open the columns' loop; give where their totals are kept."""
        b, lanes = self.b, self.step[0]
        places = [b.at("add", at, lanes * u) for u in range(vectors)]
        inside = b.at("subtract", at, self.low)
        with self.emitter.opened(self.loop, places, lanes, (mask,) * vectors):
            yield [b.at("add", inside, lanes * u) for u in range(vectors)]
