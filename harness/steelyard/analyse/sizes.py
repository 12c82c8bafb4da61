"""The smallest detectable change of a case, from how much its blocks differ. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist, fmean, median, variance
from typing import Final

from steelyard.analyse.distributions import CONFIDENCE, quantile
from steelyard.analyse.verdict import SETTLED, Policy

POWER: Final = 0.95
"""Share of slowdowns of the smallest detectable size that are found."""

NORMAL: Final = NormalDist()

LEAST: Final = 1e-9
"""A standard deviation below this is this: a logarithm is taken of it."""


def smallest(spread: float, policy: Policy) -> float:
    """Return the smallest slowdown that a gate finds in `POWER` of cases, as a share.

    ``spread`` is the standard deviation of one block's logarithm. What a gate does not
    find it has called the same by the first blocks that it may (`SETTLED`): they must
    together lie beyond what may be called so, or, of a quiet case, their interval must
    lie beyond the margin. Simulation holds it within a fifth (``tests/nulls.py``).
    """
    error, freedom = spread / math.sqrt(SETTLED), SETTLED - 1
    reach = quantile((1 + CONFIDENCE) / 2, freedom) + quantile(POWER, freedom)
    quiet = math.log1p(policy.margin) + reach * error
    lean = math.log1p(2 * policy.screening_threshold(error))
    return math.expm1(min(quiet, lean + NORMAL.inv_cdf(POWER) * error))


def shrunken(spreads: Mapping[str, tuple[float, int]]) -> dict[str, float]:
    """Return standard deviations drawn towards what is common in a suite.

    Each comes with its degrees of freedom. Two blocks hardly know how much a case's
    differ, 200 cases know it well: the empirical Bayes estimate of Smyth ("Linear
    models and empirical Bayes methods for assessing differential expression",
    Statistical Applications in Genetics and Molecular Biology, 2004).
    """
    if len(spreads) < 3:
        return {case: spread for case, (spread, _) in spreads.items()}
    logs = [
        2 * math.log(max(spread, LEAST)) - digamma(freedom / 2) + math.log(freedom / 2)
        for spread, freedom in spreads.values()
    ]
    chance = fmean(trigamma(freedom / 2) for _, freedom in spreads.values())
    excess = variance(logs) - chance
    centre = fmean(logs)
    if excess <= 0:
        common = math.exp(centre / 2)
        return dict.fromkeys(spreads, common)
    prior = 2 * _trigamma_inverse(excess)
    common = math.exp(centre + digamma(prior / 2) - math.log(prior / 2))
    return {
        case: math.sqrt(
            (prior * common + freedom * spread * spread) / (prior + freedom)
        )
        for case, (spread, freedom) in spreads.items()
    }


def digamma(x: float) -> float:
    """Return the logarithmic derivative of gamma at ``x`` above 0.

    By its recurrence and its asymptotic series (DLMF 5.5.2 and 5.11.2), to 1e-10.
    """
    below = 0.0
    while x < 10:
        below += 1 / x
        x += 1
    square = 1 / (x * x)
    series = square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square / 240)))
    return math.log(x) - 0.5 / x - series - below


def trigamma(x: float) -> float:
    """Return the derivative of `digamma` (DLMF 5.15.5 and 5.15.8), to 1e-9."""
    below = 0.0
    while x < 10:
        below += 1 / (x * x)
        x += 1
    square = 1 / (x * x)
    series = square * (1 / 6 - square * (1 / 30 - square * (1 / 42 - square / 30)))
    return 1 / x + 0.5 * square + series / x + below


def _trigamma_inverse(value: float) -> float:
    """Return where `trigamma`, which falls, has a value; by bisection of logarithms."""
    low, high = 1e-6, 1e9
    for _ in range(100):
        middle = math.sqrt(low * high)
        if trigamma(middle) > value:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)


LEAST_SHARE: Final = 0.3
"""An autocorrelation from one block to the next below this is none."""

ERRORS: Final = 3.3
"""Standard errors that it must be above 0: of 2,000 suites without it one has so many."""

CASES: Final = 10
"""Cases that make a suite: of fewer what all share cannot be told from each one's own."""


def dependent(blocks: Mapping[str, Sequence[float]]) -> set[str]:
    """Return the cases whose blocks are autocorrelated: all, if the suite's are.

    Student's t takes blocks for independent. Of a machine that is slow for many blocks
    and then quick for many, few blocks in a row look alike, and their spread understates
    what there is. A few blocks of one case do not show that; those of a whole suite do.
    """
    long = {case: found for case, one in blocks.items() if (found := _standard(one))}
    if len(long) >= CASES and _dependent(_apart([blocks[case] for case in long])):
        return set(blocks)
    return {case for case, one in long.items() if _dependent([one])}


def _dependent(series: Sequence[Sequence[float]]) -> bool:
    """Test the mean autocorrelation of residuals that each sum to 0.

    Of n independent ones it is -1/n on average, with the variance (n-2)^2/(n^2 (n-1))
    of normal ones (Moran, "Some theorems on time series: II", Biometrika, 1948). Of
    dependent ones it is smaller than the blocks' own by about (n-2)/(n+4).
    """
    above = reach = variance = 0.0
    for one in series:
        count = len(one)
        pairs = itertools.pairwise(one)
        total = math.fsum(value * value for value in one)
        above += math.fsum(a * b for a, b in pairs) / total + 1 / count
        reach += (count - 2) / (count + 4)
        variance += (count - 2) ** 2 / (count * count * (count - 1))
    return above > LEAST_SHARE * reach and above > ERRORS * math.sqrt(variance)


def _standard(blocks: Sequence[float]) -> list[float]:
    """Return the residuals of three blocks or more over their spread; none of fewer."""
    if len(blocks) < 3:
        return []
    mean = math.fsum(blocks) / len(blocks)
    away = [block - mean for block in blocks]
    spread = math.sqrt(math.fsum(one * one for one in away))
    return [one / spread for one in away] if spread else []


def _apart(series: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return what each case has for itself, without what all share of a round.

    That is followed from round to round by the median step of the cases that are in
    both: those that need more rounds than others are no sample of all.
    """
    path = [0.0]
    for n in range(1, max(map(len, series))):
        steps = [one[n] - one[n - 1] for one in series if len(one) > n]
        path.append(path[-1] + median(steps))
    own = [[a - b for a, b in zip(one, path, strict=False)] for one in series]
    return [found for one in own if (found := _standard(one))]
