"""Whether the blocks of a case depend on those before them. Pure.

Student's t takes blocks for independent. Of a machine that is slow for many blocks and
then quick for many, few blocks in a row look alike, and their spread understates what
there is. A few blocks of one case do not show that; those of a whole suite do.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

LEAST: Final = 0.3
"""An autocorrelation from one block to the next below this is none."""

ERRORS: Final = 3.3
"""Standard errors that it must be above 0: of 2,000 suites without it one has so many."""

CASES: Final = 10
"""Cases that make a suite: of fewer what all share cannot be told from each one's own."""


def of(blocks: Mapping[str, Sequence[float]]) -> set[str]:
    """Return the cases whose blocks are autocorrelated: all, if the suite's are."""
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
    return above > LEAST * reach and above > ERRORS * math.sqrt(variance)


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
