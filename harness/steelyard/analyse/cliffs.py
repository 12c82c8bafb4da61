"""Sizes of a sweep that are slower than the others predict. Pure.

The prediction is a launch's fixed cost and, beyond it, a constant rate: how a copy's time
grows with its bytes. Of all such lines the one is taken that most sizes lie near, and few
below: a kernel that reaches a rate at one size should reach it at the next. A size that is
surely slower than that line is a cliff.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from steelyard.analyse.stats import Estimate

SLOWER: Final = 1.25
"""Times the prediction from which a size is a cliff. Sizes that suit a kernel's tiles and
those that do not differ by a fifth."""

FEWEST: Final = 5
"""Sizes that a sweep has: a line goes through any two."""

JUMP: Final = 1.1
"""Times what the trend of the sizes before says: n log n leaves a line too, slowly."""

FARTHEST: Final = 2.0
"""Steps between two sizes that their trend is extended by, at most."""

NEAR: Final = 0.5
"""Share of the sizes that must follow a line for it to predict the others."""

BELOW: Final = 3.0
"""How much more a size counts that is faster than a line: no copy is."""

POWERS: Final = (1.0, 1.1, 1.5, 2.0)
"""Of the work that a time may grow with: 1.1 is about n log n, and a product of matrices
moves n^2 and does n^3."""

PLAIN: Final = 0.3
"""What a line must be nearer by, in logarithms over all sizes, to have another power."""

COPY: Final = "copy"
"""The measure of work that is a time itself: what a copy of as many bytes takes."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Size:
    """One size of a sweep."""

    at: float
    """Its place on the axis."""
    time: Estimate
    work: Mapping[str, float]
    """What a launch does, by measure: `COPY`, bytes, operations."""


@dataclass(frozen=True, slots=True)
class Cliff:
    """A size that is slower than the others predict."""

    at: float
    time: float
    predicted: float

    @property
    def slower(self) -> float:
        """Its time over the predicted one."""
        return self.time / self.predicted


def cliffs(sizes: Sequence[Size]) -> list[Cliff]:
    """Return the sizes that are surely slower than the others predict, by size.

    Where a copy's times are known they are the measure of work, else bytes or
    operations, whichever explains more of the times. Of sizes in different caches only
    the first will do.
    """
    known = sorted((one for one in sizes if one.time.value > 0), key=lambda one: one.at)
    if len(known) < FEWEST:
        return []
    names = set.intersection(*(set(one.work) for one in known))
    measures = [COPY] if COPY in names else sorted(names)
    times = np.array([one.time.value for one in known])
    best: tuple[float, Floats] | None = None
    for name in measures:
        work = np.array([one.work[name] for one in known], float)
        if not (work > 0).all():
            continue
        for power in POWERS[: 1 if name == COPY else None]:
            price, line = _line(times, (work / work.max()) ** power)
            price += PLAIN * (power != 1)
            if best is None or price < best[0]:
                best = price, line
    return [] if best is None else _beyond(known, best[1])


def _beyond(known: Sequence[Size], predicted: Floats) -> list[Cliff]:
    """Return the sizes beyond a line that go on no trend of the sizes before them."""
    ratios = [one.time.value / line for one, line in zip(known, predicted, strict=True)]
    near = sum(ratio < SLOWER for ratio in ratios)
    if near < max(NEAR * len(known), FEWEST - 1):
        return []
    # The line was drawn by sizes that are as uncertain.
    sure = SLOWER * (1 + statistics.median(one.time.half_width for one in known))
    found, before = [], [(1.0, 1.0)]
    for one, line, ratio in zip(known, predicted.tolist(), ratios, strict=True):
        if one.time.low > sure * line and ratio > JUMP * _trend(before, one.at):
            found.append(Cliff(one.at, one.time.value, line))
        else:
            before = [*before[-1:], (one.at, ratio)]
    return found


def _trend(before: Sequence[tuple[float, float]], at: float) -> float:
    """Return the ratio to a line that the last two sizes lead to expect, if it grows."""
    (first, low), (last, high) = before[0], before[-1]
    if high <= low or not 0 < first < last:
        return high
    reach = min(math.log(at / last) / math.log(last / first), FARTHEST)
    return float(high * (high / low) ** reach)


def _line(times: Floats, work: Floats) -> tuple[float, Floats]:
    """Return the price of the best line over work, and what it predicts.

    Lines through any two sizes with a fixed cost of 0 or more, and those through the
    origin and one. A size costs the logarithm of its ratio to the line, up to `SLOWER`
    above it: cliffs do not draw the line towards them.
    """
    first, second = np.triu_indices(len(times), 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = (times[second] - times[first]) / (work[second] - work[first])
    fixed = times[first] - slope * work[first]
    fits = np.isfinite(slope) & (slope > 0) & (fixed >= 0)
    slopes = np.concatenate([slope[fits], times / work])
    fixes = np.concatenate([fixed[fits], np.zeros_like(times)])
    lines = fixes[:, None] + slopes[:, None] * work
    off = np.log(times / lines)
    prices = np.where(off < 0, -BELOW * off, np.minimum(off, math.log(SLOWER))).sum(1)
    best = int(prices.argmin())
    return float(prices[best]), lines[best]
