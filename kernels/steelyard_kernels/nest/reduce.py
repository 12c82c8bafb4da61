"""Emits reductions: those of the same axes at one place share a walk.

A variance is the mean square of deviations from the mean, which takes a second walk; in
one pass it is that only where the first, over values and squares, lost too much.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import nan, prod
from typing import Final, TypeAlias

from steelyard_kernels import dtypes
from steelyard_kernels.expression.expr import Dot, Reduce
from steelyard_kernels.ir.loops import Operand
from steelyard_kernels.monoids import MONOIDS, accumulator
from steelyard_kernels.nest.accumulate import Site, Term, Totals, Walker, like
from steelyard_kernels.nest.axes import Value
from steelyard_kernels.nest.emitter import Emitter
from steelyard_kernels.nest.keep import Walk
from steelyard_kernels.nest.offsets import At
from steelyard_kernels.nest.reads import deviates
from steelyard_kernels.schedule.variance import residue

ADDED: Final = MONOIDS["sum"]
# A variance of one pass loses the factor 1 + mean**2 / variance to cancellation. Beyond
# this share the row is walked again: what is nearly centred, with its mean within 0.7
# standard deviations, costs nothing and loses half a unit.
CANCELLATION: Final = 0.5


# By a value's number and a place: its mean and its variance.
Moments: TypeAlias = Mapping[tuple[int, At], tuple[Operand, Operand]]


def reduce(emitter: Emitter, values: Sequence[Value]) -> None:
    """Emit the first of some values, a reduction, and those that its walk can serve."""
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
        terms = dict.fromkeys(
            [term for value in self.group for term in self._terms(value)]
        )
        totals = Walker(self.site, self.walk, tuple(terms), {}).emit()
        moments = self._moments(totals)
        for value in self.group:
            for at in self.site.places:
                found = self._finished(value, at, totals, moments)
                self.emitter.know(value, at, self.b.cast(found, value.node.dtype))

    def _terms(self, value: Value) -> list[Term]:
        """Return what a reduction accumulates in the first walk."""
        node = value.node
        args = tuple(self.emitter.reads.of(value).values())
        dtype = accumulator(node.dtype)
        if isinstance(node, Dot):
            return [Term(ADDED, args * (3 - len(args)), dtype)]  # of itself too
        assert isinstance(node, Reduce)
        if not deviates(value):
            monoid = MONOIDS[node.op]
            return [Term(ADDED if monoid.mean else monoid, args, dtype)]
        terms = [Term(ADDED, args, dtype)]
        return terms + [Term(ADDED, args * 2, dtype)] * self.emitter.schedule.one_pass

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
            return self._deviations(means)
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
            exact = self._deviations(
                {
                    (replace(term, dtype=dtypes.float64), at): mean
                    for (term, at), mean in means.items()
                }
            )
            pairs = zip(found.values(), exact.values(), strict=True)
            every = [zip(near, true, strict=True) for near, true in pairs]
            branch.gives(*[b.cast(y, x.type.dtype) for pair in every for x, y in pair])
            branch.otherwise()
            branch.gives(*[each for pair in found.values() for each in pair])
        results = branch.results
        return dict(
            zip(found, zip(results[::2], results[1::2], strict=True), strict=True)
        )

    def _deviations(self, means: Totals) -> Moments:
        """Emit the walk over deviations from the means, by the terms that add them up.

        The mean of the deviations is what the mean's rounding left: it goes to the mean,
        and its square leaves the variance (Chan, Golub and LeVeque, "Algorithms for
        computing the sample variance", 1983, the corrected two-pass algorithm). Where
        the mean is near enough nothing of that is needed.
        """
        b = self.b
        means = {key: b.cast(mean, key[0].dtype) for key, mean in means.items()}
        shifts = {(term.args[0].number, at): mean for (term, at), mean in means.items()}
        terms = {term: replace(term, args=term.args * 2) for term, _ in means}
        if self.emitter.is_near(self.site.loops):
            totals = Walker(self.site, self.again, tuple(terms.values()), shifts).emit()
            return {
                (term.args[0].number, at): (mean, self._share(totals[terms[term], at]))
                for (term, at), mean in means.items()
            }
        every = *terms, *terms.values()
        totals = Walker(self.site, self.again, every, shifts).emit()
        found: dict[tuple[int, At], tuple[Operand, Operand]] = {}
        for (term, at), mean in means.items():
            rest = self._share(totals[term, at])
            square = self._share(totals[terms[term], at])
            var = b.let("fma", b.let("negative", rest), rest, square)
            limit = residue(self.count, term.dtype)
            nothing = b.let("less", var, b.let("multiply", square, like(square, limit)))
            var = b.let("where", nothing, like(var, 0.0), var)
            found[term.args[0].number, at] = b.let("add", mean, rest), var
        return found
