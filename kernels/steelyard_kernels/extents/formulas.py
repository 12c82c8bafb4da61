"""Numbers that were seen at several extents, as formulas of the extents.

    formula = constant + coefficient * term + ...
    term    = extent * extent * ...            -- each at most squared
            | ceil(formula / number) * extent

Coefficients are integers, and terms at most three. Where formulas of as many terms explain
what was seen, and differ at other extents, none is believed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import combinations, product
from math import isfinite, prod
from typing import Any, Final, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from steelyard_kernels import dtypes
from steelyard_kernels.errors import Unsupported

Point: TypeAlias = tuple[int, ...]
"""An extent of each runtime axis."""

# What axes are cut into: powers of two, or three times one. Of 2 points tell too little.
PARTS: Final = tuple(sorted({k << n for n in range(1, 12) for k in (1, 3)} - {2}))
LEVELS: Final = 3
"""Numbers of parts that tell: two might be those of powers of two as well."""

OVER: Final = (1, -1, 2, -2)
"""What numbers are over a formula: of means, of variances' gradients."""

NEAR: Final = 1e-7  # the sine of two vectors that may be one


class Term(Struct, frozen=True):
    """A product of powers of the extents, and of how many parts a formula has."""

    powers: Point
    of: Formula | None = None
    parts: int = 1

    def at(self, point: Point) -> int:
        """Return its value."""
        power: int = prod([n**k for n, k in zip(point, self.powers, strict=True)])
        return power if self.of is None else power * -(-self.of.at(point) // self.parts)


class Differs(Unsupported):
    """Programs or kernels at several extents that are not the same but for numbers."""


class Formula(Struct, frozen=True):
    """A number that follows from the extents."""

    constant: int
    terms: tuple[tuple[int, Term], ...] = ()

    def at(self, point: Point) -> int:
        """Return the number at some extents."""
        return self.constant + sum([c * term.at(point) for c, term in self.terms])


class Number(Struct, frozen=True):
    """A number that follows from the extents: so many units, a power of two to 1.

    With a `unit` of 0 it is a number `over` a formula.
    """

    formula: Formula
    unit: int
    over: int = 1

    def is_at(self, point: Point, seen: float) -> bool:
        """Say whether it is a number at some extents, perhaps rounded to a dtype."""
        found = self.formula.at(point)
        if self.unit == 1 or not found:
            return found == seen
        exact = found / self.unit if self.unit else self.over / found
        return _is_rounded(exact, seen)


class Fitter:
    """Finds formulas of numbers that were seen at some points, for extents up to bounds.

    Between points numbers that are rounded down differ from those that are rounded up by
    one, always: points are such that nothing is whole. Formulas round up, so that where a
    part is whole it is the last one, which the code says how to end.
    """

    def __init__(self, points: Sequence[Point], bounds: Point) -> None:
        self.points, self.bounds = points, bounds
        axes = len(bounds)
        powers = [p for p in product(range(3), repeat=axes) if 0 < sum(p) <= axes + 1]
        plain = [Term(p) for p in sorted(powers, key=lambda p: (sum(p), p))]
        self.parts = set(PARTS)
        self.checks = _spread(bounds)
        self.plain = len(plain)
        self.terms: list[Term] = []
        self._columns: NDArray[Any] = np.empty((0, len(points)))
        self._lengths: list[Formula] = []
        self._found: dict[tuple[int, ...], Formula | None] = {}
        self._add(plain)
        for axis in zip(*points, strict=True):
            self.length(axis)

    def length(self, seen: Sequence[int]) -> bool:
        """Take an extent of an axis of loops for what may be cut into parts.

        False if that is in parts itself, as of every second element: where a part begins
        is not known.
        """
        found = self.fit(seen)
        if found is None or any(term.of for _, term in found.terms):
            return False
        if not found.terms or found in self._lengths:
            return True
        self._lengths.append(found)
        self._add(self._cut(found, self.parts))
        return True

    def cut(self, sizes: Sequence[int]) -> None:
        """Take sizes of parts besides the usual."""
        new = {*sizes} - self.parts - {1, 2}
        self.parts |= new
        self._add([term for each in self._lengths for term in self._cut(each, new)])

    def _cut(self, length: Formula, parts: Iterable[int]) -> list[Term]:
        """Return how many parts there are, of all axes or for each index of one."""
        axes = range(len(self.points[0]))
        powers = [tuple([int(k == axis) for k in axes]) for axis in (-1, *axes)]
        return [Term(power, length, size) for size in sorted(parts) for power in powers]

    def _add(self, terms: Sequence[Term]) -> None:
        """Take terms for what formulas may have, those that differ at the points."""
        rows = []
        for term in terms:
            if term.of is not None and self._levels(term.of, term.parts) < LEVELS:
                continue
            row = np.array([float(term.at(point)) for point in self.points])
            if np.ptp(row):
                rows.append(row)
                self.terms.append(term)
        if rows:
            self._columns = np.vstack([self._columns, *rows])
            self._found = {k: v for k, v in self._found.items() if v is not None}

    def _levels(self, length: Formula, parts: int) -> int:
        """Return how many numbers of parts a length is in, at all points."""
        return len({-(-length.at(point) // parts) for point in self.points})

    def fit(self, seen: Sequence[int]) -> Formula | None:
        """Return a formula that gives what was seen at each point; None if there is none."""
        key = tuple(seen)
        if len(set(key)) == 1:
            return Formula(key[0])
        if key not in self._found:
            self._found[key] = self._fit(key)
        return self._found[key]

    def number(self, values: Sequence[float]) -> Number:
        """Return what numbers at all points are; raises Differs if that is unknown."""
        if not all(map(isfinite, values)):
            raise Differs(f"a number is {values[0]!r} and {values[-1]!r}")
        exact = list(map(Fraction, values))
        unit = max([each.denominator for each in exact])
        whole = [int(each * unit) for each in exact]
        found = self.fit(whole)
        if found is not None:
            return Number(found, unit)
        for over in OVER if all(0 < abs(each) < 1 for each in values) else ():
            shares = [round(over / value) for value in values]
            alike = all(map(_is_rounded, [over / n for n in shares], values))
            if alike and (found := self.fit(shares)) is not None:
                return Number(found, 0, over)
        raise Differs(
            f"a number is {values[0]!r} at the former and {values[-1]!r} at the latter, "
            "which follow from extents by no formula that is known"
        )

    def _fit(self, seen: tuple[int, ...]) -> Formula | None:
        """Return the formula of fewest terms, if those of as many are one."""
        plain, every = range(self.plain), range(len(self.terms))
        levels: tuple[Iterator[tuple[int, ...]], ...] = (
            iter([()]),
            ((each,) for each in plain),
            ((each,) for each in every[self.plain :]),
            combinations(plain, 2),
        )
        for level in levels:
            found = [each for base in level for each in self._beside(base, seen)]
            if found:
                first = found[0]
                alike = all(
                    each.at(point) == first.at(point)
                    for each in found[1:]
                    for point in self.checks
                )
                return first if alike else None
        return None

    def _beside(
        self, base: tuple[int, ...], seen: tuple[int, ...]
    ) -> Iterator[Formula]:
        """Yield formulas of some terms and one more."""
        ones = np.ones((1, len(seen)))
        space, _ = np.linalg.qr(
            np.vstack([ones, *[self._columns[[k]] for k in base]]).T
        )
        rest = self._columns - (self._columns @ space) @ space.T
        own = np.array(seen, float)
        own = own - space @ (space.T @ own)
        sizes = np.linalg.norm(rest, axis=1) * np.linalg.norm(own)
        near = np.abs(rest @ own) > (1 - NEAR) * sizes
        for term in np.flatnonzero(near & (sizes > 0)):
            made = self._solved((*base, int(term)), seen)
            if made is not None:
                yield made

    def _solved(self, picked: Sequence[int], seen: tuple[int, ...]) -> Formula | None:
        """Return the formula of these terms, if there is one of integers."""
        rows = np.vstack([np.ones(len(seen)), self._columns[[*picked]]])
        size = rows.max(1, keepdims=True)
        factors = (
            np.linalg.lstsq((rows / size).T, np.array(seen, float))[0] / size[:, 0]
        )
        constant, *others = [round(float(each)) for each in factors]
        terms = [self.terms[each] for each in picked]
        found = Formula(constant, tuple(zip(others, terms, strict=True)))
        return found if tuple(map(found.at, self.points)) == seen else None


def _is_rounded(value: float, seen: float) -> bool:
    """Say whether a number is another one, or that rounded to a dtype."""
    kinds = [dtype for dtype in dtypes.ALL if dtype.kind == "float"]
    return value == seen or any(dtypes.rounded(value, kind) == seen for kind in kinds)


def _spread(bounds: Point) -> list[Point]:
    """Return extents up to bounds: all along each axis, of many some."""
    found = {bounds}
    for axis, bound in enumerate(bounds):
        for n in {
            *range(1, min(bound, 300) + 1),
            *range(1, bound + 1, bound // 300 + 1),
        }:
            found |= {tuple([n if k == axis else m for k, m in enumerate(bounds)])}
            found |= {tuple([n if k == axis else 1 for k, m in enumerate(bounds)])}
    return sorted(found)
