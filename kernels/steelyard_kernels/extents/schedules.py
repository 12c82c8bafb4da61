"""The schedules that one kernel for all extents is tried under, in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd, prod
from typing import Final

from msgspec.structs import replace

from steelyard_kernels.building.build import Request
from steelyard_kernels.expression.expr import Program
from steelyard_kernels.nest.axes import Nest
from steelyard_kernels.schedule import strategies
from steelyard_kernels.schedule.schedule import Cut, Place, Schedule
from steelyard_kernels.targets import device

TRIED: Final = 64
"""Schedules that are lowered at most, the best predicted first."""


def schedules(
    program: Program, nests: Sequence[Nest], asked: Request
) -> Iterator[tuple[Schedule, float]]:
    """Yield the schedules to try with their times: the caller's, or the best predicted."""
    if asked.schedule is not None:
        yield asked.schedule, 0.0
        return
    ranked = [
        (schedule, found.total)
        for schedule, found in strategies.rank(
            program, device(asked.target), aligned=asked.aligned
        )[:TRIED]
    ]
    yield from ranked
    seen = {schedule for schedule, _ in ranked}
    for schedule, total in ranked:
        cuts = tuple(
            [
                _even(cut, [n.extent_of(cut.axes) for n in nests])
                for cut in schedule.cuts
            ]
        )
        if (other := replace(schedule, cuts=cuts)) not in seen:
            seen.add(other)
            sizes = [
                prod([each.size for each in every]) for every in (schedule.cuts, cuts)
            ]
            yield other, total * sizes[0] / sizes[1]


def _even(cut: Cut, extents: Sequence[int]) -> Cut:
    """Return a cut that leaves the same of a loop at all extents: something or nothing.

    What is left of two axes together, or of one that is taken several times, may be
    nothing at some of them, or one index, which has code of its own.
    """
    left = {extent % cut.size for extent in extents}
    if len(left) < 2 or left.isdisjoint({0, 1}):
        return cut
    whole = gcd(*extents)
    most = {Place.REGISTER: 1, Place.VECTOR: whole & -whole}
    factors = [(min(n, most.get(at, n)), at) for n, at in cut.factors]
    return replace(cut, factors=tuple(factors))
