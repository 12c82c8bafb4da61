"""Find where a noisy series of times stepped up or down. Pure.

`fit` proposes where the series may be cut. Here each boundary is judged against the noise
of the segments beside it. The weakest boundary goes first; its neighbours are merged and
all are judged again. A few points that leave their level and come back are an episode,
not two steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from steelyard.analyse import fit
from steelyard.analyse.fit import FEWEST

SMALLEST: Final = 0.01
"""Smallest step that is reported, as a share."""

EPISODE: Final = 6
"""Points from which a level between two others is one of its own."""

CAUTION: Final = 5.2
"""Standard errors by which two segments differ, at least. Of 30 simulated histories of 240
commits in normal noise none has a false alarm as it grows, and one has at 5.0."""

ORDERS: Final = 50_000
"""Ways to choose which runs are of one segment: with fewer, chance alone sorts a series
of good and bad days into such a step too often, and `CAUTION` is doubled."""

FRESH: Final = 4
"""Newest points that `Segment.smallest` tells of."""

KNOWN: Final = 31
"""Points before, at least: `FRESH` more can stand in `ORDERS` ways among them."""

FOUND: Final = 6.0
"""Deviations of a point by which `FRESH` runs must change for 95 % of such steps to be
found at once; simulated over levels of 31 to 100 points (``tests/test_change_points.py``)."""

WITHIN: Final = 0.8
"""Share of a segment's residuals that its noise is read from: a tenth of bad days on
either side do not reach it, and it is nearly twice as sure as the median of as many."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Neighbouring points of one level: ``first`` to ``stop``, which is not of it."""

    first: int
    stop: int
    level: float
    """The median, in the unit of the series; points of episodes do not count."""
    noise: float
    """Robust standard deviation of a point, as a share of the level."""

    def __len__(self) -> int:
        return self.stop - self.first

    @property
    def smallest(self) -> float:
        """The smallest step after it that `FRESH` runs show, as a share; inf of too few."""
        return max(SMALLEST, FOUND * self.noise) if len(self) >= KNOWN else math.inf


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


@dataclass(frozen=True, slots=True)
class Episode:
    """Points ``first`` to ``stop`` left the level around them and came back."""

    first: int
    stop: int
    before: float
    """The level before, in the unit of the series."""
    level: float
    """Their median."""

    @property
    def change(self) -> float:
        """Their level over that before, less 1."""
        return self.level / self.before - 1


@dataclass(frozen=True, slots=True)
class Division:
    """A series cut into segments, each clearly apart from its neighbours."""

    segments: tuple[Segment, ...]
    steps: tuple[Step, ...]
    """One between any two neighbouring segments."""
    episodes: tuple[Episode, ...]


def divide(values: Sequence[float]) -> Division:
    """Cut a series of times above 0 where its own noise does not explain a change.

    Raises:
        ValueError: a value is not a finite number above 0.
    """
    if not all(0 < value < math.inf for value in values):
        raise ValueError("a series of times holds only finite numbers above 0")
    if not len(values):
        return Division((), (), ())
    logs = np.log(np.asarray(values, float))
    cuts, rho = fit.cuts(logs)
    judged = _Judged(logs, math.sqrt((1 + rho) / (1 - rho)), cuts)
    judged.settle()
    return judged.division()


@dataclass(slots=True)
class _LogSegment:
    """A segment in logarithms; ``points`` are sorted, without those of episodes."""

    first: int
    stop: int
    points: NDArray[np.float64]
    level: float = field(init=False)
    noise: float = field(init=False)

    def __post_init__(self) -> None:
        self.level = _quantile(self.points, 0.5)
        self.noise = _spread(self.points - self.level)


@dataclass(slots=True)
class _Judged:
    """The cuts of a series while they are judged."""

    logs: NDArray[np.float64]
    inflation: float
    """Standard error of a level over that of independent points."""
    cuts: list[int]
    excursions: list[tuple[int, int]] = field(default_factory=list)

    def settle(self) -> None:
        """Remove unclear boundaries and episodes until none is left."""
        while self._drop_weakest() or self._drop_shortest():
            pass

    def division(self) -> Division:
        """Return the result, in the unit of the series."""
        segments = self._segments()
        found = tuple(
            Segment(one.first, one.stop, math.exp(one.level), one.noise)
            for one in segments
        )
        steps = tuple(
            Step(b.first, math.exp(a.level), math.exp(b.level), self._error(a, b))
            for a, b in pairwise(segments)
        )
        episodes = tuple(
            Episode(
                first,
                stop,
                next(one.level for one in found if one.first <= first < one.stop),
                math.exp(np.median(self.logs[first:stop])),
            )
            for first, stop in sorted(self.excursions)
        )
        return Division(found, steps, episodes)

    def _segment(self, first: int, stop: int) -> _LogSegment:
        usual = np.ones(stop - first, bool)
        for begin, end in self.excursions:
            usual[max(begin - first, 0) : max(end - first, 0)] = False
        return _LogSegment(first, stop, np.sort(self.logs[first:stop][usual]))

    def _segments(self) -> list[_LogSegment]:
        return [self._segment(a, b) for a, b in pairwise(self.cuts)]

    def _drop_weakest(self) -> bool:
        strengths = [self._strength(a, b) for a, b in pairwise(self._segments())]
        if not strengths or min(strengths) >= 1:
            return False
        del self.cuts[1 + strengths.index(min(strengths))]
        return True

    def _drop_shortest(self) -> bool:
        """Take the level from the shortest segment between two others.

        An excursion is set aside as an episode. A step in between joins its neighbour.
        """
        segments = self._segments()
        short = [
            (len(one.points), at)
            for at, one in enumerate(segments)
            if 0 < at < len(segments) - 1 and one.stop - one.first < EPISODE
        ]
        if not short:
            return False
        at = min(short)[1]
        before, segment, after = segments[at - 1 : at + 2]
        rise, rest = segment.level - before.level, after.level - segment.level
        if rise * rest > 0:
            self.cuts.remove(segment.first if abs(rise) < abs(rest) else segment.stop)
        else:
            self.excursions.append((segment.first, segment.stop))
            self.cuts.remove(segment.first)
        return True

    def _strength(self, before: _LogSegment, after: _LogSegment) -> float:
        """Return the change over the least that is clear.

        Either the order of the points says so, whatever their noise is like; or all
        points of one side are beyond all of the other and, as few can be in this order
        by chance, far beyond.
        """
        if min(len(before.points), len(after.points)) < FEWEST:
            return 0.0
        change = abs(after.level - before.level)
        clear = _ordered(before, after) / (CAUTION * self.inflation)
        if _disjoint(before, after):
            clear = max(clear, change / max(SMALLEST, self._caution(before, after)))
        return min(clear, change / SMALLEST)

    def _caution(self, before: _LogSegment, after: _LogSegment) -> float:
        """Return the change that the noise of two segments explains.

        The fit has put the cut where few points happen to agree, so that their noise
        reads too small: the factor is near that of Student's t at one in a thousand.
        """
        count = len(before.points) + len(after.points)
        few = 2 if math.comb(count, len(before.points)) < ORDERS else 1
        return few * CAUTION * (count - 2) / (count - 4.5) * self._error(before, after)

    def _error(self, before: _LogSegment, after: _LogSegment) -> float:
        """Return the standard error of the difference of two medians.

        A median of n has pi/2 times the variance of a mean. The deviations are pooled: a
        short segment's own says little.
        """
        old, new = len(before.points), len(after.points)
        squares = old * before.noise**2 + new * after.noise**2
        noise = self.inflation * math.sqrt(squares / (old + new))
        return noise * math.sqrt(math.pi / 2 * (1 / old + 1 / new))


def _disjoint(before: _LogSegment, after: _LogSegment) -> bool:
    """Tell whether every point of one side is above every point of the other."""
    low, high = (before, after) if before.level < after.level else (after, before)
    return bool(low.points[-1] < high.points[0])


def _ordered(before: _LogSegment, after: _LogSegment) -> float:
    """Return standard errors by which the shares of points below a limit differ.

    They are the root of the likelihood ratio statistic of a table of two by two (Wilks,
    1938), at the limit between both levels where it is greatest (Berk and Jones, 1979).
    A mode that moves under outliers of one side is as clear as one without them.
    """
    low, high = sorted((before.level, after.level))
    joined = np.concatenate([before.points, after.points])
    limits = joined[(joined >= low) & (joined < high)]
    if not len(limits):
        return 0.0
    old = np.searchsorted(before.points, limits, "right")
    new = np.searchsorted(after.points, limits, "right")
    apart = _entropy(old, len(before.points)) + _entropy(new, len(after.points))
    gain = float((_entropy(old + new, len(joined)) - apart).max())
    return math.sqrt(max(0.0, 2 * gain))


def _entropy(below: NDArray[np.intp], count: int) -> NDArray[np.float64]:
    """Return the least negative log-likelihood of so many of ``count`` below a limit."""
    share = np.clip(below / count, 1e-12, 1 - 1e-12)
    found: NDArray[np.float64] = -count * (
        share * np.log(share) + (1 - share) * np.log1p(-share)
    )
    return found


def _spread(residuals: NDArray[np.float64]) -> float:
    """Return the deviation of a normal distribution whose residuals are as large."""
    found = _quantile(np.sort(np.abs(residuals)), WITHIN)
    return found / NormalDist().inv_cdf((1 + WITHIN) / 2)


def _quantile(ordered: NDArray[np.float64], share: float) -> float:
    """Return a quantile of sorted numbers, between its two neighbours."""
    place = share * (len(ordered) - 1)
    low, high = float(ordered[math.floor(place)]), float(ordered[math.ceil(place)])
    return low + (place - math.floor(place)) * (high - low)
