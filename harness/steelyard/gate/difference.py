"""One thing that two sides do not share, and how numbers of both are put."""

from __future__ import annotations

import math
from dataclasses import dataclass

from steelyard.analyse.trial import Trial


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that two sides do not share."""

    kind: str
    """One of the words of plausibility: see `explain`."""
    words: str
    predicted: float = 1.0
    """The most that it can multiply the time by; 1: it predicts nothing."""


def usable(value: float) -> bool:
    """Whether a number is one that a ratio can be made of."""
    return math.isfinite(value) and value > 0


def pair_of(old: Trial, new: Trial, name: str) -> tuple[float, float] | None:
    """Return a numeric fact of both sides; None where one does not have it."""
    was, now = (side.facts.get(name) for side in (old, new))
    if isinstance(was, (int, float)) and isinstance(now, (int, float)):
        return float(was), float(now)
    return None


def over(pair: tuple[float, float]) -> float:
    """Return the second over the first; 1 where that says nothing."""
    return pair[1] / pair[0] if all(map(usable, pair)) else 1.0


def count(value: float) -> str:
    """Write a number of things."""
    return f"{value:.0f}"


def more_or_fewer(pair: tuple[float, float], words: str) -> str:
    """Write ``3 more registers, 40 -> 43``."""
    less, more = sorted(pair)
    word = "more" if pair[1] > pair[0] else "fewer"
    return f"{count(more - less)} {word} {words}, {count(pair[0])} -> {count(pair[1])}"
