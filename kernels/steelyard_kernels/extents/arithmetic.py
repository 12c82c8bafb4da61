"""What operations on integers of the loop IR give, as polynomials (see `ranges`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from math import ceil, floor, gcd, isfinite
from typing import Final

from steelyard_kernels.extents.formulas import Formula, Point
from steelyard_kernels.extents.ranges import (
    Number,
    Polynomial,
    Ranges,
    constant,
    parted,
    plus,
    times,
)

NONE: Final = constant(0)
ONE: Final = constant(1)


def less(a: Polynomial, b: Polynomial) -> Polynomial:
    """Return what is at least 0 where integers are a < b."""
    return plus(plus(b, a, -1), ONE, -1)


def number(value: Number) -> list[Polynomial]:
    """Return a bound of integers as a polynomial, none where there is none."""
    return [constant(floor(value))] if isfinite(value) else []


class Extents:
    """Formulas of extents as polynomials, of these and of how many parts there are."""

    def __init__(self, ranges: Ranges, least: Point, most: Point) -> None:
        self.ranges = ranges
        ends = zip(map(constant, least), map(constant, most), strict=True)
        self.extents = [ranges.between(low, high) for low, high in ends]
        self.parts: dict[object, Polynomial] = {}

    def of(self, formula: Formula) -> Polynomial:
        """Return a formula."""
        found = constant(formula.constant)
        for by, term in formula.terms:
            each = ONE
            for extent, power in zip(self.extents, term.powers, strict=True):
                for _ in range(power):
                    each = times(each, extent)
            if term.of:
                each = times(each, self.cut(term.of, term.parts))
            found = plus(found, each, by)
        return found

    def cut(self, length: Formula, size: int) -> Polynomial:
        """Return in how many parts of a size a length is, the last one perhaps shorter."""
        quotient, rest = parted(self.of(length), constant(size))
        key = frozenset(rest.items()), size
        if rest and key not in self.parts:
            low = plus(NONE, rest, Fraction(1, size))
            high = plus(low, constant(Fraction(size - 1, size)))
            lows = [(low,), (constant(ceil(self.ranges.least(low))),)]
            highs = [(high,), *[(each,) for each in number(self.ranges.most(high))]]
            self.parts[key] = self.ranges.atom(lows, highs)
        return plus(quotient, self.parts[key]) if rest else quotient


def _least_of(ranges: Ranges, a: Polynomial, b: Polynomial) -> Polynomial:
    if ranges.holds(plus(b, a, -1)):
        return a
    if ranges.holds(plus(a, b, -1)):
        return b
    unit, a, b = _reduced(a, b)
    return times(constant(unit), ranges.lesser(a, b))


def _reduced(a: Polynomial, b: Polynomial) -> tuple[int, Polynomial, Polynomial]:
    """Return what two numbers are multiples of, and how many times."""
    unit = gcd(*[n if isinstance(n, int) else 1 for n in (*a.values(), *b.values())])
    share = Fraction(1, unit or 1)
    return unit, plus(NONE, a, share), plus(NONE, b, share)


def _most_of(ranges: Ranges, a: Polynomial, b: Polynomial) -> Polynomial:
    return plus(NONE, _least_of(ranges, plus(NONE, a, -1), plus(NONE, b, -1)), -1)


def _quotient(ranges: Ranges, a: Polynomial, b: Polynomial) -> Polynomial:
    """Return a / b of numbers that are at least 0, the divisor one term."""
    if len(b) != 1 or not ranges.holds(a) or not ranges.holds(plus(b, ONE, -1)):
        return ranges.atom()
    _, a, b = _reduced(a, b)
    key = frozenset(a.items()), frozenset(b.items())
    if key not in ranges.divided:
        ranges.divided[key] = _divided(ranges, a, b)
    return ranges.divided[key]


def _divided(ranges: Ranges, a: Polynomial, b: Polynomial) -> Polynomial:
    lows, highs = [NONE], list[Polynomial]()
    for most in (a, *ranges.uppers(a)):
        found, rest = parted(most, b)
        if ranges.holds(plus(NONE, plus(rest, ONE), -1)):
            found, rest = plus(found, ONE, -1), plus(rest, b)
        if ranges.holds(less(rest, b)):
            if most is a and ranges.holds(rest):
                return found
            highs.append(found)
    if () in b:
        share = Fraction(1, b[()])
        lows.append(plus(NONE, plus(a, plus(ONE, b, -1)), share))
        highs += [plus(NONE, a, share), *number(ranges.most(a) * share)]
    return ranges.quotient(a, b, [(x,) for x in lows], [(x,) for x in highs])


def _remainder(ranges: Ranges, a: Polynomial, b: Polynomial) -> Polynomial:
    if len(b) != 1 or not ranges.holds(a) or not ranges.holds(plus(b, ONE, -1)):
        return ranges.atom()
    quotient = _quotient(ranges, a, b)
    if () in b or ranges.holds(less(parted(a, b)[1], b)):
        return ranges.rest(plus(a, times(b, quotient), -1), b)
    return ranges.remainder(a, b, quotient)


def _shifted(ranges: Ranges, a: Polynomial, b: Polynomial, *, up: bool) -> Polynomial:
    if set(b) - {()}:
        return ranges.atom()
    by = constant(1 << int(b.get((), 0)))
    return times(a, by) if up else _quotient(ranges, a, by)


def _bits(ranges: Ranges, a: Polynomial, b: Polynomial, *, both: bool) -> Polynomial:
    """Return what bits of numbers that are at least 0 give: no more bits than these."""
    if not (ranges.holds(a) and ranges.holds(b)):
        return ranges.atom()
    if both:
        return ranges.between(NONE, a, b)
    most = max(ranges.most(a), ranges.most(b))
    bits = [constant((1 << int(most).bit_length()) - 1)] if isfinite(most) else []
    return ranges.between(NONE, *bits)


FOUND: Final[Mapping[str, Callable[..., Polynomial]]] = {
    "add": lambda _, a, b: plus(a, b),
    "subtract": lambda _, a, b: plus(a, b, -1),
    "multiply": lambda _, a, b: times(a, b),
    "negative": lambda _, a: plus(NONE, a, -1),
    "minimum": _least_of,
    "maximum": _most_of,
    "div": _quotient,
    "floor_divide": _quotient,
    "rem": _remainder,
    "remainder": _remainder,
    "bitwise_left_shift": partial(_shifted, up=True),
    "bitwise_right_shift": partial(_shifted, up=False),
    "bitwise_and": partial(_bits, both=True),
    "bitwise_or": partial(_bits, both=False),
    "bitwise_xor": partial(_bits, both=False),
    "cast": lambda _, a: a,
    "splat": lambda _, a: a,
}
