"""Bounds of a claim: a sign, a number and a unit. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from steelyard.errors import SteelyardError

UNITS: Final[Mapping[str, tuple[str, float]]] = {
    **{name: ("", scale) for name, scale in (("", 1.0), ("x", 1.0), ("%", 0.01))},
    **{n: ("time", s) for n, s in (("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9))},
    **{
        f"{prefix}{unit}/s": (quantity, scale)
        for unit, quantity in (("B", "bytes"), ("op", "operations"), ("item", "items"))
        for prefix, scale in (
            ("", 1.0),
            ("k", 1e3),
            ("M", 1e6),
            ("G", 1e9),
            ("T", 1e12),
        )
    },
}
"""Each unit of a bound: what of a row it bounds (nothing: a plain number), and how much it
is in nanoseconds, or in units a second."""

_BOUND: Final = re.compile(r"(<=|>=|<|>)\s*([\d.]+(?:e[+-]?\d+)?)\s*(\S*)")


@dataclass(frozen=True, slots=True)
class Bound:
    """``<= 1.05``, ``>= 95 %``, ``< 2 ms``, ``>= 30 GB/s``."""

    sign: str
    limit: float
    """In nanoseconds, units a second, or plain."""
    quantity: str
    unit: str

    def __str__(self) -> str:
        return f"{self.sign} {self.limit / UNITS[self.unit][1]:g} {self.unit}".rstrip()

    def judge(self, low: float, high: float) -> bool | None:
        """Return whether all of an interval is within the bound; None if only a part."""
        nearer, farther = (high, low) if self.sign[0] == "<" else (low, high)
        if self._holds(nearer):
            return True
        return None if self._holds(farther) else False

    def _holds(self, value: float) -> bool:
        if value == self.limit:
            return "=" in self.sign
        return (value < self.limit) == (self.sign[0] == "<")


def bound(text: str) -> Bound:
    """Read a bound.

    Raises:
        SteelyardError: it is none.
    """
    found = _BOUND.fullmatch(text.strip())
    if found is None or found[3] not in UNITS or found[2].count(".") > 1:
        raise SteelyardError(
            f"the bound is {text!r}, expected a sign, a number and a unit: '<= 1.05', "
            f"'>= 95 %', '< 2 ms'. Units: {', '.join(filter(None, UNITS))}."
        )
    quantity, scale = UNITS[found[3]]
    limit = float(Fraction(found[2]) * Fraction(str(scale)))  # 95 % is 0.95
    return Bound(found[1], limit, quantity, found[3])
