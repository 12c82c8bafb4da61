"""At which extents a program is lowered, so that one kernel may serve all of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from steelyard_kernels.expression.expr import Program
from steelyard_kernels.extents.formulas import Point

ALONG: Final = 9
"""Extents of an axis that are looked at, up to more than twice the first: an axis is in
as many parts at all of these only where it is one part."""

VECTOR: Final = 16
"""Lanes of the widest vectors: an axis that is one more than some has an end of its own."""

FEWEST: Final = 5
"""Elements of an axis, of fewer of which nothing is known: a bound that has not so many
extents below it is looked at from it on."""


def points(
    bounds: Sequence[int], least: int, but: Collection[int] = ()
) -> tuple[Point, ...]:
    """Return extents of all axes, from their bounds or `least` on, even and odd ones.

    None is a multiple of 3 or 4, or one more than a multiple of 4, and no two axes have
    the same: what is whole, or is one more, has code that others cannot share. With a
    `least` of 0 those of bounds that have as many below them are below: a table that is
    as long is no part of one at the bound. None is beyond a multiple of 16 by one of `but`.
    """
    taken: set[int] = set()
    every: list[list[int]] = [[] for _ in bounds]
    # The longest first: below it there is most room.
    for axis, bound in sorted(enumerate(bounds), key=lambda e: 0 if least else -e[1]):
        first = max(bound, least)
        own = [] if least else _along(first - 1, first * 5 // 11, taken, but)
        if min(own, default=0) < FEWEST:
            own = _along(first, first * 11 // 5, taken, but)
        taken.update(own)
        every[axis] = own
    return tuple(
        tuple(
            [
                own[(at * (1 + 2 * axis) + at // ALONG * axis) % ALONG]
                for axis, own in enumerate(every)
            ]
        )
        for at in range(ALONG if len(bounds) == 1 else 2 * ALONG)
    )


def _along(first: int, last: int, taken: set[int], but: Collection[int]) -> list[int]:
    """Return extents of an axis from the first on, towards the last."""
    own: list[int] = []
    turn = 1 if last > first else -1
    for place in range(ALONG):
        wanted = first + place * (last - first) // (ALONG - 1)
        others = taken.union(own)
        while (
            wanted % 4 != 2 + place % 2
            or not wanted % 3
            or wanted in others
            or wanted % VECTOR in but
        ):
            wanted += turn
        own.append(wanted)
    return own


def one_beyond(program: Program, bounds: Sequence[int]) -> list[int]:
    """Return of which extents multiples that a program has are one more than vectors.

    As 7 times 23 is. Two at most, so that odd ones are left.
    """
    extents = {extent for node in program.nodes for extent in node.shape}
    times = {e // bound for e in extents for bound in bounds if not e % bound}
    own = [pow(k, -1, VECTOR) for k in sorted(times) if k % 4 == 3]
    return [*dict.fromkeys(own)][:2]
