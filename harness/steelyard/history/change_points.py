"""Where a noisy series of times stepped up or down. Pure.

A series is fitted by a function of few steps: of all such functions the one with the
least sum of absolute residuals plus a price a step (the L1 Potts functional; Friedrich,
Kempe, Liebscher and Winkler, "Complexity penalized M-estimation", 2008), found exactly
by dynamic programming. The price is chosen by an information criterion that lets
residuals hang together (AR(1)), since a machine's good and bad days do. Logarithms are
fitted: noise and steps of times are proportions.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist, median
from typing import Final

import numpy as np
from numpy.typing import NDArray

LONGEST: Final = 200
"""Points that are fitted, the latest: older ones do not move a step that is new, and the
fit takes time with their square."""

PRICES: Final = 24
"""Prices tried, in equal ratios between none that is ever paid and one that always is."""

FEWEST: Final = 3
"""Points before a step is told: two neighbours are off together too often."""

SMALLEST: Final = 0.01
"""Share of a step that nobody asked to hear of is smaller than this."""

FRESH: Final = 4
"""Newest points that are a step by themselves if all are off, and most are far off."""

KNOWN: Final = 20
"""Points before, at least."""

NEAR: Final = 2.0
FAR: Final = 3.5
"""Deviations of a point: what each of them, and their median, must be away. Bad days of
machines hang together and pass one of the two, not both."""

USUAL: Final = 0.98
"""Quantile of the points before that the newest must be beyond: of a case that takes one
of two times, the slower one is no step."""

CAUTION: Final = 5.0
"""Standard errors of the difference of two levels, of both segments' own residuals;
more where these are few (`_caution`)."""

ORDERS: Final = 1000
"""Ways to choose which runs are of one segment: with fewer, chance alone sorts a series
of good and bad days into such a step too often, and `CAUTION` is doubled."""

WITHIN: Final = 0.8
"""Share of a segment's residuals that its noise is read from: a tenth of bad days on
either side do not reach it, and it is nearly twice as sure as the median of as many."""

SELDOM: Final = 0.1
"""Share of a segment's points that may be beyond the other's level. A case that takes
one of two times is in the slower one for a few runs, and comes back to it."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Neighbouring points of one level: ``first`` to ``stop``, which is not of it."""

    first: int
    stop: int
    level: float
    """The median, as the series has it."""
    noise: float
    """Robust standard deviation of a point, as a share of the level."""

    def __len__(self) -> int:
        return self.stop - self.first


@dataclass(frozen=True, slots=True)
class Step:
    """The series changed its level at point ``at``."""

    at: int
    before: float
    after: float
    noise: float
    """Standard error of the change, as a share."""

    @property
    def change(self) -> float:
        """After over before, less 1."""
        return self.after / self.before - 1


def steps(values: Sequence[float]) -> list[Step]:
    """Return every step of a series of times above 0 that its own noise cannot be.

    Raises:
        ValueError: a value is not a finite number above 0.
    """
    found = segments(values)
    if found:
        found[-1:] = _divided(values, found[-1])
    return [
        Step(after.first, before.level, after.level, _error(before, after))
        for before, after in pairwise(found)
        if _clear(before, after) and _apart(values, before, after)
    ]


def segments(values: Sequence[float]) -> list[Segment]:
    """Cut a series of times above 0 into the segments of its best fit.

    Raises:
        ValueError: a value is not a finite number above 0.
    """
    if not all(0 < value < math.inf for value in values):
        raise ValueError("a series of times holds only finite numbers above 0")
    skipped = max(0, len(values) - LONGEST)
    logs = [math.log(value) for value in values[skipped:]]
    cuts = _cuts(logs)
    return [_segment(values, a + skipped, b + skipped) for a, b in pairwise(cuts)]


def _segment(values: Sequence[float], first: int, stop: int) -> Segment:
    level = median(values[first:stop])
    noise = _spread([math.log(x / level) for x in values[first:stop]])
    return Segment(first, stop, level, noise)


def _divided(values: Sequence[float], last: Segment) -> list[Segment]:
    """Cut the newest points off where all are far from the level before them.

    A criterion pays for a step once many points want it; a user wants to hear of it
    after a few.
    """
    at = last.stop - FRESH
    if at - last.first < KNOWN:
        return [last]
    before, after = _segment(values, last.first, at), _segment(values, at, last.stop)
    known = [math.log(x / before.level) for x in values[last.first : at]]
    away = [math.log(x / before.level) for x in values[at : last.stop]]
    if median(away) < 0:
        away = [-x for x in away]
        known = [-x for x in known]
    usual = sorted(known)[int(USUAL * (len(known) - 1))]
    far = median(away) > max(FAR * before.noise, usual)
    return [before, after] if far and min(away) > NEAR * before.noise else [last]


def _error(before: Segment, after: Segment) -> float:
    """Return the standard error of the difference of two medians.

    A median of n has pi/2 times the variance of a mean. The deviations are pooled: a
    short segment's own says little.
    """
    squares = len(before) * before.noise**2 + len(after) * after.noise**2
    noise = math.sqrt(squares / (len(before) + len(after)))
    return noise * math.sqrt(math.pi / 2 * (1 / len(before) + 1 / len(after)))


def _clear(before: Segment, after: Segment) -> bool:
    change = abs(math.log(after.level / before.level))
    enough = len(after) >= FEWEST and len(before) >= FEWEST
    return enough and change > max(SMALLEST, _caution(before, after))


def _caution(before: Segment, after: Segment) -> float:
    """Return what the noise of two segments could be taken for.

    The fit has put the cut where few points happen to agree, so that their noise reads
    too small: the factor is near that of Student's t at one in a thousand.
    """
    count = len(before) + len(after)
    few = 2 if math.comb(count, len(before)) < ORDERS else 1
    return few * CAUTION * (count - 2) / (count - 4.5) * _error(before, after)


def _apart(values: Sequence[float], before: Segment, after: Segment) -> bool:
    """Tell whether hardly a point of either segment reaches the other's level."""
    old = sorted(values[before.first : before.stop])
    new = sorted(values[after.first : after.stop])
    if after.level < before.level:
        old, new, before, after = new, old, after, before
    highest = old[len(old) - 1 - int(SELDOM * (len(old) - 1))]
    return highest < after.level and new[int(SELDOM * (len(new) - 1))] > before.level


def _spread(residuals: Sequence[float]) -> float:
    """Return the deviation of a normal distribution whose residuals are as large."""
    ordered = sorted(map(abs, residuals))
    place = WITHIN * (len(ordered) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    found = low + (place - math.floor(place)) * (high - low)
    return found / NormalDist().inv_cdf((1 + WITHIN) / 2)


def _cuts(logs: Sequence[float]) -> list[int]:
    """Return where segments begin, and the end, of the fit whose criterion is least."""
    count = len(logs)
    if count < 2 * FEWEST:
        return [0, count] if count else [0]
    costs = _costs(logs)
    best = [0, count]
    least = _criterion(logs, best)
    top = float(costs[0, count])
    seen = {tuple(best)}
    for price in np.geomspace(max(top, 1e-12), max(top, 1e-12) / 1e4, PRICES):
        cuts = _fit(costs, float(price))
        if tuple(cuts) in seen:
            continue
        seen.add(tuple(cuts))
        worth = _criterion(logs, cuts)
        if worth < least:
            best, least = cuts, worth
    return best


def _costs(logs: Sequence[float]) -> NDArray[np.float64]:
    """Return the sum of absolute deviations from the median of every stretch."""
    count = len(logs)
    costs = np.zeros((count + 1, count + 1))
    for first in range(count):
        ordered: list[float] = []
        for stop in range(first + 1, count + 1):
            insort(ordered, logs[stop - 1])
            half = len(ordered) // 2
            costs[first, stop] = (
                sum(ordered[-half:]) - sum(ordered[:half]) if half else 0
            )
    return costs


def _fit(costs: NDArray[np.float64], price: float) -> list[int]:
    """Return the cuts of the least cost plus price a segment of at least `FEWEST`.

    Of few points, segments of one each would leave nothing and win.
    """
    count = costs.shape[0] - 1
    least = np.full(count + 1, np.inf)
    least[0] = -price
    back = np.zeros(count + 1, np.intp)
    for stop in range(FEWEST, count + 1):
        last = stop - FEWEST + 1
        each = least[:last] + price + costs[:last, stop]
        back[stop] = each.argmin()
        least[stop] = each[back[stop]]
    cuts = [count]
    while cuts[-1]:
        cuts.append(int(back[cuts[-1]]))
    return cuts[::-1]


def _criterion(logs: Sequence[float], cuts: Sequence[int]) -> float:
    """Return what a fit costs: its steps, and the logarithm of what it leaves."""
    values = np.array(logs)
    rest = np.concatenate(
        [values[a:b] - np.median(values[a:b]) for a, b in pairwise(cuts)]
    )
    count = len(values)
    left = min(
        float(np.abs(rest[1:] - rho * rest[:-1]).sum() + abs(rest[0]))
        for rho in np.linspace(-0.9, 0.9, 19)
    )
    smallest = 1e-6
    return 4 * math.log(count) / count * (len(cuts) - 1) + math.log(
        smallest * count + left
    )
