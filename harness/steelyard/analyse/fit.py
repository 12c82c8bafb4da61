"""Fit a noisy series by few constant levels. Pure.

Of all functions of few steps, a fit has the least sum of absolute residuals, each up to
a bound (Fearnhead and Rigaill, "Changepoint detection in the presence of outliers", 2019:
an outlier must not pull a step to it), plus a price a step (the L1 Potts functional; Friedrich, Kempe, Liebscher and Winkler, "Complexity
penalized M-estimation", 2008). Dynamic programming over times and levels finds it in time
linear in both (Storath, Weinmann and Unser, "Jump-penalized least absolute values
estimation of scalar or circle-valued signals", 2017).

Schwarz's information criterion chooses among the prices. Residuals hang together (AR(1)), since
a machine's good and bad days do. The autocorrelation is estimated once and is the same
for every candidate (Chakar, Lebarbier, Levy-Leduc and Robin, "A robust approach for
estimating change-points in the mean of an AR(1) process", 2017). Estimated for each
candidate, it explains any number of steps as noise that hangs together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Final

import numpy as np
from numpy.typing import NDArray

PRICES: Final = 16
"""Prices tried, in equal ratios from one that is never paid."""

CHEAPEST: Final = 4.0
"""Standard deviations of the noise that the least price is."""

FEWEST: Final = 3
"""Points of a segment: two neighbours are off together too often."""

TYPICAL: Final = 10
"""Points a segment, on average, of the fit whose residuals say what the noise is. Fits
of more segments follow the noise."""

HANGING: Final = 0.9
"""The greatest autocorrelation assumed."""

GRAIN: Final = 0.5
"""Distance of the levels tried, in standard deviations of the noise."""

LEVELS: Final = 160
"""Levels tried, at most."""

OUTLIER: Final = 8.0
"""Standard deviations to which a residual counts."""

MAD: Final = 1.4826
"""Normal standard deviation over median absolute deviation."""


def cuts(logs: NDArray[np.float64]) -> tuple[list[int], float]:
    """Return where segments begin, with the end, and the residuals' autocorrelation.

    ``logs`` are logarithms of times: noise and steps of times are proportions.
    """
    count = len(logs)
    if count < 2 * FEWEST:
        return ([0, count] if count else [0]), 0.0
    candidates = _candidates(logs)
    liberal = [c for c in candidates if len(c) - 1 <= max(2, count / TYPICAL)][-1]
    scale, rho = _noise(logs, liberal)
    far = OUTLIER * scale or math.inf
    best = min(candidates, key=lambda one: _criterion(logs, one, rho, far))
    return best, max(rho, _noise(logs, best)[1])


def _noise(logs: NDArray[np.float64], cuts: Sequence[int]) -> tuple[float, float]:
    """Return the standard deviation and the autocorrelation of what a fit leaves."""
    rest = residuals(logs, cuts)
    scale = MAD * float(np.median(np.abs(rest)))
    return scale, autocorrelation(rest, scale, len(cuts) - 2)


def autocorrelation(rest: NDArray[np.float64], scale: float, steps: int) -> float:
    """Return the lag-1 autocorrelation of residuals, between 0 and `HANGING`.

    They count to three robust standard deviations. Medians of short segments follow the
    noise, which takes about one segment's share of the autocorrelation away.
    """
    near = np.clip(rest, -3 * scale, 3 * scale)
    squares = float(near @ near)
    if not squares:
        return 0.0
    found = float(near[1:] @ near[:-1]) / squares + steps / len(rest)
    return min(max(found, 0.0), HANGING)


def residuals(logs: NDArray[np.float64], cuts: Sequence[int]) -> NDArray[np.float64]:
    """Return how far each point is from the median of its segment."""
    levels = [median(logs[a:b].tolist()) for a, b in pairwise(cuts)]
    rest: NDArray[np.float64] = logs - np.repeat(levels, np.diff(cuts))
    return rest


def _criterion(
    logs: NDArray[np.float64], cuts: Sequence[int], rho: float, far: float
) -> float:
    """Return what a fit costs: its steps, and the logarithm of what it leaves.

    That is Schwarz's criterion over twice the points, of residuals of Laplace's
    distribution; a step is two parameters, its place and its level. Residuals count to
    ``far``: a few outliers must not outweigh every other point.
    """
    count, rest = len(logs), np.clip(residuals(logs, cuts), -far, far)
    left = float(np.abs(rest[1:] - rho * rest[:-1]).sum() + abs(rest[0]))
    smallest = 1e-6
    steps = len(cuts) - 2
    return math.log(count) / count * steps + math.log(smallest * count + left)


def _candidates(logs: NDArray[np.float64]) -> list[list[int]]:
    """Return the different fits of all prices, the one of fewest steps first."""
    count = len(logs)
    top = max(float(_away(logs, np.median(logs)).sum()), 1e-12)
    least = min(max(CHEAPEST * _jitter(logs), top / (20 * count)), top)
    prices = np.geomspace(top, least, PRICES)
    found = {(0, count), *map(tuple, _fits(logs, prices))}
    return sorted(map(list, found), key=len)


def _away(
    logs: NDArray[np.float64], levels: NDArray[np.float64] | np.float64
) -> NDArray[np.float64]:
    """Return how far points are from levels, at most `OUTLIER`."""
    far = OUTLIER * _jitter(logs.ravel()) or math.inf
    return np.minimum(np.abs(logs - levels), far)


def _jitter(logs: NDArray[np.float64]) -> float:
    """Return the noise as differences of neighbours have it, which steps hardly change."""
    return MAD * float(np.median(np.abs(np.diff(logs)))) / math.sqrt(2)


def _fits(logs: NDArray[np.float64], prices: NDArray[np.float64]) -> list[list[int]]:
    """Return the best cuts at each price, of segments of at least `FEWEST` points.

    ``cost[p, l]`` is the least cost at price p of the points so far, the last of them at
    level l, and ``start[p, l]`` where the segment at that level began.
    """
    count, levels = len(logs), _levels(logs)
    away = _away(logs[:, None], levels)
    cost = np.tile(away[:FEWEST].sum(0), (len(prices), 1))
    start = np.zeros(cost.shape, np.intp)
    least = np.full((count + 1, len(prices)), np.inf)
    began = np.zeros((count + 1, len(prices)), np.intp)
    rows = np.arange(len(prices))
    least[FEWEST] = cost.min(1)
    recent = away[1:FEWEST].sum(0)  # of the last FEWEST - 1 points
    for stop in range(FEWEST + 1, count + 1):
        recent = recent + away[stop - 1]
        fresh = (least[stop - FEWEST] + prices)[:, None] + recent
        cost += away[stop - 1]
        better = fresh < cost
        np.copyto(cost, fresh, where=better)
        start[better] = stop - FEWEST
        recent = recent - away[stop - FEWEST]
        at = cost.argmin(1)
        least[stop], began[stop] = cost[rows, at], start[rows, at]
    return [_back(began[:, p]) for p in range(len(prices))]


def _back(began: NDArray[np.intp]) -> list[int]:
    """Return the cuts of the best path, from its end to its beginning."""
    found = [len(began) - 1]
    while found[-1]:
        found.append(int(began[found[-1]]))
    return found[::-1]


def _levels(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the levels tried: medians of neighbours, `GRAIN` apart.

    The median of a segment is near the median of some of its neighbours.
    """
    near = np.stack([logs[i : len(logs) - FEWEST + 1 + i] for i in range(FEWEST)])
    middle = np.unique(np.median(near, axis=0))
    noise = _jitter(logs)
    cells = np.floor(middle / (GRAIN * noise)) if noise > 0 else middle
    _, first, sizes = np.unique(cells, return_index=True, return_counts=True)
    taken = first + sizes // 2
    if len(taken) > LEVELS:
        taken = taken[np.linspace(0, len(taken) - 1, LEVELS).round().astype(int)]
    return np.asarray(middle[taken], float)
