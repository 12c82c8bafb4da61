"""Scales of pictures: where values lie in pixels, and which round ones are marked. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

TICKS: Final = 5
"""Values on an axis, about."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Where values lie between two ends in pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the pixel of a value; one outside lies at the end."""
        inside = min(max(value, self.low), self.high)
        if self.log:
            share = math.log(inside / self.low) / math.log(self.high / self.low)
        else:
            share = (inside - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return round values."""
        return (_round_times if self.log else _ticks)(self.low, self.high)


def of(values: list[float], start: float, end: float, *, log: bool = False) -> Scale:
    """Return the scale that values fit in, with some air."""
    low, high = min(values), max(values)
    if log and low > 0:
        return Scale(low / 1.2, high * 1.2, start, end, log=True)
    air = 0.05 * (high - low) or abs(high) * 0.05 or 1.0
    return Scale(low - air, high + air, start, end)


@dataclass(frozen=True, slots=True)
class Frame:
    """Where points lie in a picture."""

    x: Scale
    y: Scale


def _ticks(low: float, high: float) -> list[float]:
    """Return about `TICKS` round values between two."""
    rough = (high - low) / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    size = next(n * power for n in (1, 2, 5, 10) if n * power >= rough)
    first = math.ceil(low / size)
    return [size * n for n in range(first, math.floor(high / size) + 1)]


def _round_times(low: float, high: float) -> list[float]:
    """Return powers of ten between two, and 2 and 5 times those where they are few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 2, 5)):
        found = [
            n * 10.0**p for p in powers for n in steps if low <= n * 10.0**p <= high
        ]
        if len(found) > 2:
            break
    return found
