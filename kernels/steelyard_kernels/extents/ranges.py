"""What integers of a kernel can be, as polynomials of others that came before them.

    polynomial = {monomial: coefficient}     -- a monomial: numbers of atoms, in order
    atom       = an integer that is no further than polynomials of earlier ones

A polynomial's least value is found by putting bounds for its last atom, then for the last
of what that gives, until there is none. What is found holds; more may hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from math import ceil, floor, gcd, inf
from typing import Final, TypeAlias

Number: TypeAlias = int | Fraction | float
Polynomial: TypeAlias = Mapping[tuple[int, ...], int | Fraction]
Ways: TypeAlias = tuple[Polynomial, ...]
"""Bounds, of which one holds; it is not known which."""

Key: TypeAlias = frozenset[tuple[tuple[int, ...], int | Fraction]]
Found: TypeAlias = dict[Key, tuple[Number, bool]]
"""Least values of polynomials but for their constants, and whether that is all known."""

STEPS: Final = 4000
"""Bounds that are put for atoms, after which a least value counts as unknown."""

IMPLIED: Final = 2
"""Facts that follow from one, of which others follow, and no further: a window's three
proved no more accesses, and of all that follow there were hundreds."""


def constant(value: int | Fraction) -> Polynomial:
    """Return a number as a polynomial."""
    return {(): value} if value else {}


def _key(a: Polynomial) -> Key:
    return frozenset(a.items())


def plus(a: Polynomial, b: Polynomial, factor: int | Fraction = 1) -> Polynomial:
    """Return a + factor * b."""
    found = dict(a)
    for monomial, coefficient in b.items():
        value = found.get(monomial, 0) + factor * coefficient
        found[monomial] = int(value) if value.denominator == 1 else value
        if not value:
            del found[monomial]
    return found


def times(a: Polynomial, b: Polynomial) -> Polynomial:
    """Return a * b."""
    found: Polynomial = {}
    for one, by in a.items():
        moved = {tuple(sorted(one + other)): n for other, n in b.items()}
        found = plus(found, moved, by)
    return found


def whole(a: Polynomial, *, up: bool) -> Polynomial:
    """Return a bound of integers rounded, where all but its constant is whole."""
    first = a.get((), 0)
    if any(n.denominator != 1 for monomial, n in a.items() if monomial):
        return a
    return plus(a, constant((ceil if up else floor)(first) - first))


def parted(a: Polynomial, divisor: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Return q and r of a = q * divisor + r, where the divisor is one term."""
    ((by, size),) = divisor.items()
    quotient: dict[tuple[int, ...], int | Fraction] = {}
    for monomial, n in a.items():
        left = list(monomial)
        for atom in by:
            if atom in left:
                left.remove(atom)
        if len(left) + len(by) == len(monomial) and n // size:
            quotient[tuple(left)] = n // size
    return quotient, plus(a, times(quotient, divisor), -1)


def _last(a: Polynomial) -> int:
    return max((monomial[-1] for monomial in a if monomial), default=-1)


def _parts(a: Polynomial, atom: int) -> tuple[Polynomial, Polynomial]:
    """Return the factor of an atom, behind which there is none, and what has it not."""
    factor = {m[:-1]: n for m, n in a.items() if m and m[-1] == atom}
    return factor, {m: n for m, n in a.items() if not m or m[-1] != atom}


def _tight(fact: Polynomial) -> Polynomial:
    """Return a number that is at least 0 less what its other terms are no multiples of."""
    terms = [n for monomial, n in fact.items() if monomial]
    first = fact.get((), 0)
    if any(n.denominator != 1 for n in (*terms, first)):
        return fact
    unit = gcd(*map(int, terms))
    return plus(fact, constant(first % unit), -1) if unit > 1 else fact


def _says(ways: Ways, bound: Polynomial, *, up: bool) -> bool:
    """Say whether a bound from below (`up`) or above says no more than a known one."""
    more = plus(ways[0], bound, -1)
    further = more.get((), 0) * (1 if up else -1)
    return len(ways) == 1 and more.keys() <= {()} and further >= 0


class Ranges:
    """Atoms with their bounds, of which `assuming` adds some for a while.

    What is left of a division is as much as the quotients leave. `apart` has it an atom
    that is also no more than it may be, which the search for bounds takes longer over.
    """

    def __init__(self, *, apart: bool = False) -> None:
        self.apart = apart
        self.rests = False  # whether something is left of a division
        self._bounds: list[tuple[list[Ways], list[Ways]]] = []
        self._facts: list[Key] = []  # that are assumed now
        self._found: dict[tuple[Key, ...], Found] = {}  # by what was assumed
        self._known: Found = self._found.setdefault((), {})
        self._quotients: dict[int, tuple[Polynomial, Polynomial]] = {}
        self._remainders: dict[int, tuple[Polynomial, Polynomial, int]] = {}
        self._lesser = set[int]()  # atoms that are the lesser of two
        self.divided: dict[object, Polynomial] = {}
        self._steps = self._base = 0

    def atom(self, lows: Sequence[Ways] = (), highs: Sequence[Ways] = ()) -> Polynomial:
        """Return a new atom that is no further than one of each of the ways."""
        self._bounds.append(([*lows], [*highs]))
        return {(len(self._bounds) - 1,): 1}

    def between(self, low: Polynomial, *highs: Polynomial) -> Polynomial:
        """Return a new atom from a bound to the least of others, both included."""
        return self.atom([(low,)], [(high,) for high in highs])

    @contextmanager
    def assuming(self, facts: Sequence[Polynomial]) -> Iterator[None]:
        """Take for a while that polynomials are at least 0.

        What is found then is kept for the next time that the same is assumed.
        """
        added, before = list[list[Ways]](), len(self.divided)
        left = [(fact, IMPLIED) for fact in facts]
        while left:
            fact, depth = left.pop()
            fact = _tight(fact)
            last = _last(fact)
            if [monomial for monomial in fact if last in monomial] != [(last,)]:
                continue  # a number, or what has others for factors
            by = fact[last,]
            bound = plus({}, plus(fact, {(last,): by}, -1), -1 / Fraction(by))
            bound = whole(bound, up=by > 0)
            side = self._bounds[last][by < 0]
            if any(_says(ways, bound, up=by > 0) for ways in side):
                continue
            if depth:
                implied = (*self._implied(last, fact, bound), *self._divided(fact))
                left += [(each, depth - 1) for each in implied]
            side.insert(0, (bound,))
            added.append(side)
        known, count = self._known, len(self._facts)
        self._facts += map(_key, facts)
        self._known = self._found.setdefault(tuple(self._facts), {})
        yield
        self._known = known
        del self._facts[count:]
        for side in added:
            del side[0]
        while len(self.divided) > before:
            self.divided.popitem()  # whose bounds may be of these facts

    def quotient(
        self, a: Polynomial, b: Polynomial, lows: Sequence[Ways], highs: Sequence[Ways]
    ) -> Polynomial:
        """Return a new atom that is a / b, rounded down."""
        found = self.atom(lows, highs)
        self._quotients[_last(found)] = a, b
        return found

    def lesser(self, a: Polynomial, b: Polynomial) -> Polynomial:
        """Return a new atom that is the lesser of two."""
        found = self.atom([(a, b)], [(a,), (b,)])
        self._lesser.add(_last(found))
        return found

    def remainder(
        self, a: Polynomial, b: Polynomial, quotient: Polynomial
    ) -> Polynomial:
        """Return a new atom that is a - b * quotient."""
        found = self.between({}, plus(b, constant(1), -1), a)
        if _last(quotient) in self._quotients:
            self._remainders[_last(found)] = a, b, _last(quotient)
        return found

    def rest(self, exact: Polynomial, b: Polynomial) -> Polynomial:
        """Return what is left of a division by b, of which quotients leave as much."""
        self.rests = True
        most = plus(b, constant(1), -1)
        if not self.apart:
            return exact
        return self.atom([({},), (exact,)], [(most,), (exact,)])

    def _implied(
        self, atom: int, fact: Polynomial, bound: Polynomial
    ) -> Iterator[Polynomial]:
        """Yield what a bound of a quotient or remainder says of what was divided."""
        rest, by = plus(fact, {(atom,): fact[atom,]}, -1), fact[atom,]
        if atom in self._remainders:
            a, b, quotient = self._remainders[atom]
            for ways in self._bounds[quotient][by < 0]:
                yield plus(rest, plus(a, times(b, ways[0]), -1), by)
        if atom in self._quotients:
            a, b = self._quotients[atom]
            beyond = plus(times(b, plus(bound, constant(1))), constant(1), -1)
            yield plus(beyond, a, -1) if by < 0 else plus(a, times(b, bound), -1)
        if atom in self._quotients or (by > 0 and atom in self._lesser):
            for ways in self._bounds[atom][by > 0]:
                yield plus(rest, ways[0], by)

    def _divided(self, fact: Polynomial) -> Iterator[Polynomial]:
        """Yield what a number that is no more than another says of its quotients."""
        for atom, (a, b) in self._quotients.items():
            most = plus(fact, a)
            if b.keys() == {()} and most.keys() <= {()}:
                share = floor(Fraction(most.get((), 0)) / b[()])
                yield plus(constant(share), {(atom,): 1}, -1)

    def base(self) -> None:
        """Take the atoms so far for those that `uppers` are of."""
        self._base = len(self._bounds)

    def uppers(self, a: Polynomial) -> Iterator[Polynomial]:
        """Yield polynomials of the base that a is never above."""
        last = _last(a)
        if last < self._base:
            yield a
            return
        factor, rest = _parts(a, last)
        up = self.holds(factor)
        if up or self.holds(plus({}, factor, -1)):
            for ways in self._bounds[last][up]:
                if len(ways) == 1:
                    yield from self.uppers(plus(rest, times(factor, ways[0])))

    def least(self, a: Polynomial, enough: Number = inf) -> Number:
        """Return a number that a is never below; -inf if none is known."""
        self._steps = 0
        return self._least(a, enough)

    def most(self, a: Polynomial) -> Number:
        """Return a number that a is never above; inf if none is known."""
        return -self.least(plus({}, a, -1))

    def holds(self, a: Polynomial) -> bool:
        """Say whether a is known to be at least 0."""
        return self.least(a, 0) >= 0

    def _least(self, a: Polynomial, enough: Number) -> Number:
        last, first = _last(a), a.get((), 0)
        if last < 0:
            return first
        key = _key({monomial: n for monomial, n in a.items() if monomial})
        known, is_all = self._known.get(key, (-inf, False))
        if is_all or known + first >= enough:
            return known + first
        self._steps += 1
        factor, rest = _parts(a, last)
        found: Number = -inf
        falls = self._least(factor, 0) < 0
        if not falls or self._least(plus({}, factor, -1), 0) >= 0:
            for ways in self._bounds[last][falls]:
                every = [plus(rest, times(factor, way)) for way in ways]
                found = max(found, min([self._least(each, enough) for each in every]))
                if found >= enough or self._steps > STEPS:
                    self._known[key] = max(known, found - first), False
                    return found
        self._known[key] = found - first, True
        return found
