"""Distributions of statistics, without SciPy, whose import takes 0.2 s."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from functools import lru_cache
from typing import Final

CONFIDENCE: Final = 0.95
"""Of every interval that is printed."""

NORMAL: Final = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2)

EXACT: Final = 10
"""Degrees of freedom above which the expansion of `student` is exact to 0.1 %."""


def cumulative(t: float, freedom: int) -> float:
    """Return Student's distribution function.

    By the finite sums for whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and
    26.7.4).
    """
    theta = math.atan2(t, math.sqrt(freedom))
    cosine = math.cos(theta)
    term = cosine if freedom % 2 else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(3 if freedom % 2 else 2, freedom - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    if freedom % 2:
        share = 2 / math.pi * (theta + math.sin(theta) * total)
    else:
        share = math.sin(theta) * total
    return (1 + share) / 2


@lru_cache(maxsize=1024)
def quantile(probability: float, freedom: int) -> float:
    """Return the t below which Student's distribution has a probability."""
    return solve(lambda t: cumulative(t, freedom), probability, -1e6, 1e6)


def student(count: int) -> float:
    """Return the two-sided `CONFIDENCE` quantile of Student's t for ``count`` values.

    Above `EXACT` degrees of freedom it is the expansion in 1/n around the normal
    quantile (Abramowitz and Stegun, 26.7.5).
    """
    freedom = count - 1
    if freedom <= EXACT:
        return quantile((1 + CONFIDENCE) / 2, freedom)
    z = NORMAL
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


def beta(p: float, a: int, b: int) -> float:
    """Return the probability of at least ``a`` hits of ``a + b - 1``.

    The regularised incomplete beta function, by its continued fraction (DLMF 8.17.22),
    evaluated from below where that converges fast.
    """
    if p <= 0 or p >= 1:
        return float(p >= 1)
    if p > (a + 1) / (a + b + 2):
        return 1 - beta(1 - p, b, a)
    whole = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(whole + a * math.log(p) + b * math.log1p(-p)) / a
    fraction = 1.0
    for m in range(_terms(a, b), 0, -1):
        even = m * (b - m) * p / ((a + 2 * m - 1) * (a + 2 * m))
        k = m - 1
        odd = -(a + k) * (a + b + k) * p / ((a + 2 * k) * (a + 2 * k + 1))
        fraction = 1 + odd / (1 + even / fraction)
    return front / fraction


def _terms(a: int, b: int) -> int:
    """Return enough terms of the fraction: they grow with the root of the counts."""
    return 30 + 2 * math.isqrt(max(a, b))


def solve(
    rising: Callable[[float], float], value: float, low: float = 0.0, high: float = 1.0
) -> float:
    """Return where a rising function takes a value between two ends; by bisection."""
    for _ in range(100):
        middle = (low + high) / 2
        if rising(middle) < value:
            low = middle
        else:
            high = middle
    return (low + high) / 2
