"""Emits reductions: those of the same axes at one place share a walk.

A variance is the mean square of deviations from the mean, which takes a second walk; in
one pass it is that only where the first, over values and squares, lost too much.

Columns are reduced on a CPU with rows walked in the order in which they lie. A thread
reads some rows at a time along many columns, and adds them to what these have come to so
far, on its stack: rows lie side by side in memory, columns far apart.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import nan, prod
from typing import Final, TypeAlias

from msgspec.structs import replace

from steelyard_kernels import dtypes
from steelyard_kernels.expression.expr import Along, Reduce
from steelyard_kernels.ir.builder import Builder, const
from steelyard_kernels.ir.loops import Operand
from steelyard_kernels.monoids import rounding_loss
from steelyard_kernels.nest import lines
from steelyard_kernels.nest.accumulate import Site, Totals, Walker, like
from steelyard_kernels.nest.axes import Nest, Value
from steelyard_kernels.nest.contraction import reached
from steelyard_kernels.nest.emitter import Emitter
from steelyard_kernels.nest.keep import Walk
from steelyard_kernels.nest.offsets import At
from steelyard_kernels.nest.reads import ADDED, Term, deviates, terms
from steelyard_kernels.schedule.parameters import Arguments
from steelyard_kernels.schedule.schedule import Place, Schedule
from steelyard_kernels.schedule.tile import Carried, tile_runtime

# A variance of one pass loses the factor 1 + mean**2 / variance to cancellation. Beyond
# this share the row is walked again: what is nearly centred, with its mean within 0.7
# standard deviations, costs nothing and loses half a unit.
CANCELLATION: Final = 0.5
# So many float32 that one accumulator takes in have lost what a hundred vectors do not,
# and so many lose 1e-5 where each lane has one: ten million equal ones lost 0.6 % by 16.
# In float64 those of memory take as long, those of the second cache 1.1 times; where
# outputs are walked as well, there are registers for it in longer rows alone.
ONE_BY_ONE: Final = 256
LANE_BY_LANE: Final = 1024
ROW_BY_ROW: Final = 4096


# By a value's number and a place: its mean and its variance.
Moments: TypeAlias = Mapping[tuple[int, At], tuple[Operand, Operand]]


def emitter_of(
    nest: Nest, schedule: Schedule, args: Arguments, extent: Operand, alignment: int = 0
) -> Emitter:
    """Return what emits a nest on a CPU."""
    return Emitter(
        nest,
        schedule,
        args,
        Builder(),
        target="cpu",
        extent=extent,
        reduce=reduce,
        alignment=alignment,
    )


def reduce(emitter: Emitter, values: Sequence[Value]) -> None:
    """Emit the first of some values, a reduction, and those that its walk can serve."""
    if isinstance(values[0].node, Along):
        lines.emit(emitter, values[0], values[0].node)
        return
    first = emitter.every()[0]
    group = emitter.reads.together(values, lambda v: emitter.is_known(v, first))
    Group(emitter, group).emit()


class Group:
    """Reductions that share a walk over their axes, and a second one for variances."""

    def __init__(self, emitter: Emitter, group: Sequence[Value]) -> None:
        self.emitter = emitter
        self.b = emitter.b
        self.group = group
        self.count = prod([emitter.nest.extents[axis] for axis in group[0].over])
        self.site = Site(emitter, group[0])
        self.walk, self.again = self._walks()

    def _walks(self) -> tuple[Walk, Walk]:
        """Return what the walk emits, and that over deviations."""
        group, kept = self.group, self.emitter.kept
        if kept is not None and group[0].number in kept.reductions:
            first, again = kept.reductions[group[0].number]
            return first, again or first
        reads = self.emitter.reads
        inside = Walk(tuple(reads.inside(group, group[0].over)))
        return inside, inside

    def emit(self) -> None:
        """Emit the walks, and what the reductions come to."""
        self.know(self.walked())

    @property
    def terms(self) -> tuple[Term, ...]:
        """What the walk accumulates."""
        every = [term for value in self.group for term in self._terms(value)]
        return tuple(dict.fromkeys(every))

    def walked(self, start: Carried = ()) -> Totals:
        """Emit the walk from what the terms have come to so far: from nothing, if ()."""
        return Walker(self.site, self.walk, self.terms, {}).emit(start)

    def know(self, totals: Totals) -> None:
        """Emit what the reductions come to, with a second walk for variances."""
        moments = self._moments(totals)
        for value in self.group:
            for at in self.site.places:
                found = self._finished(value, at, totals, moments)
                self.emitter.know(value, at, self.b.cast(found, value.node.dtype))

    def _terms(self, value: Value) -> list[Term]:
        """Return what a value accumulates: many float32 in float64, which takes as long."""
        one_pass = self.emitter.schedule.one_pass
        found = terms(value, self.emitter.reads, one_pass=one_pass)
        site, each = self.site, self.count // (self.site.summed * self.site.units)
        alone = site.lanes == site.units == 1 and each >= ONE_BY_ONE
        stores = any(o.value.axes >= set(site.loops) for o in self.emitter.nest.outputs)
        shared = site.summed > 1 and each >= (ROW_BY_ROW if stores else LANE_BY_LANE)
        if self.emitter.target != "cpu" or not (alone or shared):
            return found
        return [
            replace(term, dtype=dtypes.float64)
            if term.monoid is ADDED and term.dtype is dtypes.float32
            else term
            for term in found
        ]

    def _finished(
        self, value: Value, at: At, totals: Totals, moments: Moments
    ) -> Operand:
        node, term = value.node, self._terms(value)[0]
        if not isinstance(node, Reduce) or node.op not in {"mean", "var"}:
            return totals[term, at]
        known = moments.get((term.args[0].number, at))
        if known is not None and len(term.args) == 1:
            return known[node.op == "var"]
        return self._share(totals[term, at])

    def _share(self, total: Operand) -> Operand:
        """Emit a total over the number of values."""
        share = 1 / self.count if self.count else nan
        return self.b.let("multiply", total, like(total, share))

    def _moments(self, totals: Totals) -> Moments:
        """Emit the means and variances of what variances are taken of."""
        args = {
            arg.number: self._terms(value)[0]
            for value in self.group
            if deviates(value)
            for arg in value.args.values()
        }
        if not args:
            return {}
        places = [(term, at) for term in args.values() for at in self.site.places]
        means = {key: self._share(totals[key]) for key in places}
        if not self.emitter.schedule.one_pass:
            return self._deviations(self.site, means)
        b, found, lost = self.b, dict[tuple[int, At], tuple[Operand, Operand]](), []
        for (term, at), mean in means.items():
            squares = self._share(totals[replace(term, args=term.args * 2), at])
            var = b.let("fma", b.let("negative", mean), mean, squares)
            found[term.args[0].number, at] = mean, var
            most = b.let("multiply", var, like(var, CANCELLATION))
            off = b.let("less", b.let("multiply", mean, mean), most)
            lost.append(b.let("logical_not", off))
        any_lost = functools.reduce(lambda x, y: b.let("bitwise_or", x, y), lost)
        with b.branch(any_lost, seldom=True) as branch, self.emitter.aside():
            branch.gives(*[each for pair in self._again(means) for each in pair])
            branch.otherwise()
            branch.gives(*[each for pair in found.values() for each in pair])
        results = branch.results
        return dict(
            zip(found, zip(results[::2], results[1::2], strict=True), strict=True)
        )

    def _again(self, means: Totals) -> list[tuple[Operand, Operand]]:
        """Emit means and variances of what one pass lost, added up in float64.

        Where all that is walked is kept, it is a loop over the rows: seldom, so short.
        """
        b, emitter, rows = self.b, self.emitter, len(self.site.places)
        wide = {
            key: (replace(key[0], dtype=dtypes.float64), mean)
            for key, mean in means.items()
        }
        if rows == 1 or self.again.computed:
            found = self._deviations(
                self.site, {(term, key[1]): mean for key, (term, mean) in wide.items()}
            )
            pairs = zip(means.values(), found.values(), strict=True)
            return [
                (b.cast(x, mean.type.dtype), b.cast(y, mean.type.dtype))
                for mean, (x, y) in pairs
            ]
        each = {term: (mean.type.dtype) for (term, _), mean in means.items()}
        room = {
            term: [b.alloc("again", dtype, rows) for _ in range(2)]
            for term, dtype in each.items()
        }
        for (term, at), mean in means.items():
            b.store(room[term][0], at[0], mean)
        with b.loop(0, rows, 1) as loop, emitter.one_row(loop.var):
            site = Site(emitter, self.group[0])
            (at,) = site.places
            mine = {
                (replace(term, dtype=dtypes.float64), at): b.load(buffer, loop.var)
                for term, (buffer, _) in room.items()
            }
            found = self._deviations(site, mine)
            for buffers, pair in zip(room.values(), found.values(), strict=True):
                for buffer, value in zip(buffers, pair, strict=True):
                    b.store(buffer, loop.var, b.cast(value, buffer.dtype))
        return [
            (b.load(room[term][0], at[0]), b.load(room[term][1], at[0]))
            for term, at in means
        ]

    def _deviations(self, site: Site, means: Totals) -> Moments:
        """Emit the walk over deviations from the means, by the terms that add them up.

        The mean of the deviations is what the mean's rounding left: it goes to the mean,
        and its square leaves the variance (Chan, Golub and LeVeque, "Algorithms for
        computing the sample variance", 1983, the corrected two-pass algorithm). Where
        the mean is near enough nothing of that is needed.
        """
        b = self.b
        means = {key: b.cast(mean, key[0].dtype) for key, mean in means.items()}
        shifts = {(term.args[0].number, at): mean for (term, at), mean in means.items()}
        square_of = {term: replace(term, args=term.args * 2) for term, _ in means}
        squares = tuple(square_of.values())
        if self.emitter.is_near(site.loops):
            totals = Walker(site, self.again, squares, shifts).emit()
            return {
                (term.args[0].number, at): (
                    mean,
                    self._share(totals[square_of[term], at]),
                )
                for (term, at), mean in means.items()
            }
        totals = Walker(site, self.again, (*square_of, *squares), shifts).emit()
        found: dict[tuple[int, At], tuple[Operand, Operand]] = {}
        for (term, at), mean in means.items():
            rest = self._share(totals[term, at])
            square = self._share(totals[square_of[term], at])
            var = b.let("fma", b.let("negative", rest), rest, square)
            limit = rounding_loss(self.count, term.dtype)
            nothing = b.let("less", var, b.let("multiply", square, like(square, limit)))
            var = b.let("where", nothing, like(var, 0.0), var)
            found[term.args[0].number, at] = b.let("add", mean, rest), var
        return found


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
