"""Index expressions: where along an axis of an operand its reader finds an element.

    index = constant + sum(coefficient * term)
    term  = an axis of the reader, by its position
          | Part(index, divisor, modulus)     -- index // divisor % modulus, rounded down

Broadcasts, permutations, slices, windows and reshapes that keep axes whole have no
parts. `extents` below is what each axis of the reader counts to; with it parts that
cannot change are left out, so that equal places are equal expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import gcd
from typing import TypeAlias, TypeVar

from msgspec import Struct

Term: TypeAlias = "int | Part"
Extents: TypeAlias = Sequence[int] | Mapping[int, int]
Number = TypeVar("Number")


class Index(Struct, frozen=True):
    """constant + sum(coefficient * term); terms are distinct, coefficients not 0."""

    constant: int = 0
    terms: tuple[tuple[Term, int], ...] = ()

    # What is made of one index is in order as that is; `total` puts several in order.
    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.constant + other, self.terms) if other else self
        constant = self.constant + other.constant
        if not (self.terms and other.terms):
            return Index(constant, self.terms or other.terms)
        return total(constant, (*self.terms, *other.terms))

    def __mul__(self, factor: int) -> Index:
        if factor in {0, 1}:
            return self if factor else Index()
        terms = tuple([(term, c * factor) for term, c in self.terms])
        return Index(self.constant * factor, terms)

    @property
    def axes(self) -> frozenset[int]:
        """The axes that it varies with."""
        found: frozenset[int] = frozenset()
        for term, _ in self.terms:
            inner = term.index.axes if isinstance(term, Part) else {term}
            found |= inner
        return found

    def step(self, axis: int, within: int = 0) -> int | None:
        """Return what one step along an axis adds, or None where that differs.

        `within` blocks of so many steps, which begin at multiples of that.
        """
        found = 0
        for term, coefficient in self.terms:
            own = coefficient * (term == axis)
            if isinstance(term, Part) and axis in term.index.axes:
                own = coefficient if term.modulus and term.divisor == 1 else 0
                blocks = term.modulus if own else term.divisor
                if term.index.terms != ((axis, 1),) or term.index.constant:
                    return None
                if not within or blocks % within:
                    return None
            found += own
        return found

    def has_all(self, along: int, extent: int) -> bool:
        """Say whether it follows all of an axis, from the first on or from the last."""
        back = self.constant == extent - 1 and self.terms == ((along, -1),)
        return back or (self.constant == 0 and self.terms == ((along, 1),))

    def bounds(self, extents: Extents) -> tuple[int, int]:
        """Return the least and the largest value it can have, over all extents."""
        low = high = self.constant
        for term, coefficient in self.terms:
            if isinstance(term, Part):
                ends = term.bounds(extents)
            else:
                ends = 0, max(extents[term] - 1, 0)
            low += min(coefficient * end for end in ends)
            high += max(coefficient * end for end in ends)
        return low, high

    def at(self, places: Sequence[Index], extents: Extents) -> Index:
        """Return the index with an expression put for each axis; `extents` are theirs."""
        found = Index(self.constant)
        for term, coefficient in self.terms:
            if isinstance(term, Part):
                inner = term.index.at(places, extents)
                new = part(inner, term.divisor, term.modulus, extents)
            else:
                new = places[term]
            found += new * coefficient
        return found

    def evaluate(
        self,
        places: Sequence[Number] | Mapping[int, Number],
        number: Callable[[int], Number],
        operation: Callable[[str], Callable[[Number, Number], Number]],
    ) -> Number | None:
        """Compute it from the axes' values; None for 0.

        `operation` gives what adds ("add"), multiplies ("mul"), divides ("div") or takes
        remainders ("rem") of two values, rounding down; `number` makes a value of an int.
        """
        found: Number | None = number(self.constant) if self.constant else None
        for term, coefficient in self.terms:
            if isinstance(term, Part):
                value = term.index.evaluate(places, number, operation)
                value = number(0) if value is None else value
                if term.divisor > 1:
                    value = operation("div")(value, number(term.divisor))
                if term.modulus:
                    value = operation("rem")(value, number(term.modulus))
            else:
                value = places[term]
            if coefficient != 1:
                value = operation("mul")(value, number(coefficient))
            found = value if found is None else operation("add")(found, value)
        return found

    def __str__(self) -> str:
        parts = [f"{'' if c == 1 else f'{c}*'}{_text(t)}" for t, c in self.terms]
        if self.constant or not parts:
            parts.append(str(self.constant))
        return " + ".join(parts).replace("+ -", "- ")


class Part(Struct, frozen=True):
    """index // divisor % modulus, both rounded down; modulus 0: no remainder."""

    index: Index
    divisor: int
    modulus: int

    def bounds(self, extents: Extents) -> tuple[int, int]:
        """Return the least and the largest value it can have."""
        low, high = (end // self.divisor for end in self.index.bounds(extents))
        if not self.modulus:
            return low, high
        if low // self.modulus == high // self.modulus:
            return low % self.modulus, high % self.modulus
        return 0, self.modulus - 1


def axis(position: int) -> Index:
    """Return the index that follows one axis of the reader."""
    return Index(0, ((position, 1),))


def part(index: Index, divisor: int, modulus: int, extents: Extents) -> Index:
    """Return index // divisor % modulus, without what its range makes needless.

    modulus 0: no remainder is taken. Both are positive else.
    """
    whole, rest = _split(index, divisor)
    if modulus:
        whole = _split(whole, modulus)[1]
    low, high = (end // divisor for end in rest.bounds(extents))
    if low == high:
        return _remainder(whole + low, modulus, extents)
    if not modulus or _within(whole, modulus, extents) == Index():
        return whole + _part(rest, divisor, modulus, extents)
    return _part(whole * divisor + rest, divisor, modulus, extents)


def _part(index: Index, divisor: int, modulus: int, extents: Extents) -> Index:
    """Return the part of an index that its divisor divides no term of."""
    common, index, _ = _scaled(index, divisor, extents)
    divisor //= common
    if divisor == 1:
        return _remainder(index, modulus, extents)
    low, high = (end // divisor for end in index.bounds(extents))
    if modulus and 0 <= low <= high < modulus:
        modulus = 0
    return Index(0, ((Part(index, divisor, modulus), 1),))


def _remainder(index: Index, modulus: int, extents: Extents) -> Index:
    """Return index % modulus."""
    if not modulus:
        return index
    known = _within(index, modulus, extents)
    if known is not None:
        return known
    common, inner, low = _scaled(_split(index, modulus)[1], modulus, extents)
    return Index(0, ((Part(inner, 1, modulus // common), common),)) + low


def _scaled(index: Index, number: int, extents: Extents) -> tuple[int, Index, Index]:
    """Return (common, high, low): index is high * common + low, low below common.

    `common` is the largest divisor of a number for which that can be said; then
    index // number is high // (number // common), and so on.
    """
    divisors = {gcd(number, coefficient) for _, coefficient in index.terms}
    for common in sorted(divisors, reverse=True):
        high, low = _split(index, common)
        if low.bounds(extents)[0] >= 0 and low.bounds(extents)[1] < common:
            return common, high, low
    return 1, index, Index()


def _within(index: Index, modulus: int, extents: Extents) -> Index | None:
    """Return index % modulus where all its values share one quotient, else None."""
    _, rest = _split(index, modulus)
    low, high = rest.bounds(extents)
    if low // modulus != high // modulus:
        return None
    return rest + -(low // modulus) * modulus


def offset_in(shape: Sequence[int], at: Sequence[Index]) -> Index:
    """Return where a row-major array has an element."""
    terms: list[tuple[int | Part, int]] = []
    constant, stride = 0, 1
    for extent, index in zip(reversed(shape), reversed(at), strict=True):
        constant += index.constant * stride
        terms += [(term, step * stride) for term, step in index.terms]
        stride *= extent
    return total(constant, terms)


def reshaped(
    shape: Sequence[int], other: Sequence[int], at: Sequence[Index], extents: Extents
) -> tuple[Index, ...]:
    """Return where an element of a shape lies in another one with the same order."""
    flat = offset_in(shape, at)
    found, inner = [], 1
    for extent in reversed(other):
        found.append(part(flat, inner, extent, extents) if extent > 1 else Index())
        inner *= max(extent, 1)  # no element lies anywhere
    return tuple(reversed(found))


def _split(index: Index, divisor: int) -> tuple[Index, Index]:
    """Return (whole, rest): index is whole * divisor + rest, term by term."""
    whole = [(t, c // divisor) for t, c in index.terms if c % divisor == 0]
    rest = [(t, c) for t, c in index.terms if c % divisor]
    quotient, constant = divmod(index.constant, divisor)
    return Index(quotient, tuple(whole)), Index(constant, tuple(rest))


def total(constant: int, terms: Iterable[tuple[Term, int]]) -> Index:
    """Return constant + the sum of (term, coefficient): the one form of equal ones."""
    found: dict[Term, int] = {}
    for term, coefficient in terms:
        found[term] = found.get(term, 0) + coefficient
    for term, coefficient in found.items():
        if isinstance(term, Part) and term.modulus:
            further = Part(term.index, term.divisor * term.modulus, 0)
            if coefficient and found.get(further) == coefficient * term.modulus:
                rest = [
                    pair for pair in found.items() if pair[0] not in {term, further}
                ]
                return total(constant, rest) + _whole(term) * coefficient
    kept = [(t, c) for t, c in found.items() if c]
    return Index(constant, tuple(sorted(kept, key=_order)))


def _whole(term: Part) -> Index:
    """Return what a part and what its remainder was taken from come to together."""
    if term.divisor == 1:
        return term.index
    return Index(0, ((Part(term.index, term.divisor, 0), 1),))


def _order(term: tuple[Term, int]) -> tuple[bool, int, str]:
    what = term[0]
    return (False, what, "") if isinstance(what, int) else (True, 0, _text(what))


def _text(term: Term) -> str:
    if isinstance(term, int):
        return f"i{term}"
    inner = str(term.index)
    inner = f"({inner})" if " " in inner else inner
    divided = f"{inner} // {term.divisor}" if term.divisor > 1 else inner
    return f"({divided}{f' % {term.modulus}' if term.modulus else ''})"
