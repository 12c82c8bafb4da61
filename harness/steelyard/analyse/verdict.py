"""What paired blocks say of a change: slower, faster, the same, or not known. Pure.

A block gives one number, the logarithm of new over base, from launches of both sides in
turn (ABBA) in fresh processes; samples within a process are no replicates. Its times
and the machine's moods are in that number, and Student's t over blocks tells a change
from them.

A change counts from `Policy.margin` on: the hypothesis that is tested is not "exactly
equal" but "no slower than the margin", so that a hundredth of a per cent that is real
does not fail anybody. Of many cases tested at once the false ones are held down by
Benjamini and Hochberg's procedure ("Controlling the false discovery rate", JRSS B, 1995).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Self

from steelyard.analyse.distributions import CONFIDENCE, cumulative, quantile
from steelyard.analyse.stats import Estimate


class Verdict(StrEnum):
    """What is said of a case."""

    SLOWER = "slower"
    FASTER = "faster"
    SPREAD = "spread"
    """The quickest windows did not become so much slower, or faster, as the mean."""
    SAME = "same"
    UNRESOLVED = "unresolved"
    NOT_GATEABLE = "not-gateable"
    IDENTICAL_CODE = "identical-code"


MOVED: Final = (Verdict.SLOWER, Verdict.FASTER)
CHANGED: Final = (*MOVED, Verdict.SPREAD)
"""What a change may be accepted as."""


@dataclass(frozen=True, slots=True)
class Policy:
    """When a case is decided; shares, such as 0.01 of a time."""

    margin: float = 0.01
    """A change below this is none."""
    tolerance: float = 0.05
    """A case is the same when its interval is within this, to both sides."""
    false_discoveries: float = 0.05
    """The share of reported changes that may be none."""
    most: int = 30
    """Blocks after which a case is given up."""
    tolerances: Mapping[str, float] = field(default_factory=dict)
    """Of cases that may move by more, as a share."""

    def of(self, case: str) -> Self:
        """Return the policy that one case is judged by, with its own tolerance.

        The margin is everybody's, for slower is slower; a tolerance below the policy's
        own makes nothing finer.
        """
        own = self.tolerances.get(case, 0.0)
        return self if own <= self.tolerance else replace(self, tolerance=own)

    def screening_threshold(self, error: float) -> float:
        """Return the mean change of a few blocks that is still none, as a share.

        That is the margin, and of a noisy case whose tolerance is wider `ERRORS` of
        its mean, up to the same part of the tolerance: more blocks for less than its
        policy asks of it are no use.
        """
        return max(self.margin, min(ERRORS * error, self.tolerance / LEANING))


LEANING: Final = 5
"""What a tolerance is divided by for the most that `Policy.screening_threshold` may be: so of the usual
tolerance that is the margin."""

ERRORS: Final = 1.5
"""Twice so many standard errors of three blocks are beaten by accident once in ten."""

SETTLED: Final = 4
"""Blocks from which on a case that leans up to twice as much may be the same."""

POWER: Final = 0.9
"""Of finding a change of the tolerance, where blocks are planned."""

TRIMMED: Final = 0.2
"""The share of blocks that a trimmed mean leaves out at each end."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with its evidence."""

    verdict: Verdict
    ratio: Estimate
    """New over base, with its 95 % interval: the one that says `Verdict.SAME`."""
    blocks: int
    smallest: float
    """The smallest slowdown that the gate finds of a case this noisy, as a share."""
    more: int = 0
    """Blocks that would decide it, of an unresolved one."""


@dataclass(frozen=True, slots=True)
class Centre:
    """Where the blocks of a case lie: an estimate with Student's t."""

    value: float
    error: float
    """Its standard error."""
    freedom: int

    def half(self, probability: float = (1 + CONFIDENCE) / 2) -> float:
        """Return how far a one-sided bound lies from the value."""
        return quantile(probability, self.freedom) * self.error

    def exceeds(self, margin: float) -> float:
        """Return the p-value of at most ``margin``, one-sided."""
        above = self.value - margin
        if not self.error:
            return 0.0 if above > 0 else 1.0
        return 1 - cumulative(above / self.error, self.freedom)

    def widened(self, errors: float) -> Centre:
        """Return the same with an error so many times as large."""
        return replace(self, error=errors * self.error)

    def ratio(self) -> Estimate:
        """Return new over base with its 95 % interval."""
        ends = (self.value - self.half(), self.value + self.half())
        return Estimate(math.exp(self.value), *map(math.exp, ends))


def mean(blocks: Sequence[float], grain: float = 0.0) -> Centre:
    """Return the mean of at least two blocks.

    ``grain`` is the share of a time that its clock cannot tell: the least that blocks
    are taken to differ by, however equal they are.
    """
    count = len(blocks)
    value = math.fsum(blocks) / count
    squares = math.fsum((block - value) ** 2 for block in blocks)
    spread = max(math.sqrt(squares / (count - 1)), grain)
    return Centre(value, spread / math.sqrt(count), count - 1)


def trimmed(blocks: Sequence[float], grain: float = 0.0) -> Centre:
    """Return the trimmed mean of blocks with the error of Winsorized ones.

    (Yuen, "The two-sample trimmed t for unequal population variances", Biometrika,
    1974.) A few blocks that a neighbour spoilt move neither.
    """
    count, ordered = len(blocks), sorted(blocks)
    cut = int(TRIMMED * count)
    inner = ordered[cut : count - cut]
    kept = len(inner)
    wins = mean(cut * [inner[0]] + inner + cut * [inner[-1]], grain)
    value = math.fsum(inner) / kept
    squares = wins.error**2 * count * (count - 1)
    return Centre(value, math.sqrt(squares / (kept * (kept - 1))), kept - 1)


def are_numbers(blocks: Sequence[float]) -> bool:
    """Say whether no block is infinite or not a number."""
    return all(map(math.isfinite, blocks))


def interval(blocks: Sequence[float]) -> Estimate:
    """Return the ratio with Student's interval; infinitely wide of one block."""
    if len(blocks) < 2:
        return Estimate(math.exp(math.fsum(blocks)), 0.0, math.inf)
    return mean(blocks).ratio()


def planned(spread: float, policy: Policy, count: int) -> float:
    """Return the change that a single test of ``count`` blocks finds in `POWER` of cases.

    ``spread`` is the standard deviation of a block.
    """
    reach = quantile(CONFIDENCE, count - 1) + quantile(POWER, count - 1)
    return math.expm1(math.log1p(policy.margin) + reach * spread / math.sqrt(count))


def needed(spread: float, policy: Policy, count: int) -> int:
    """Return how many blocks more than ``count`` such a test of the tolerance takes."""
    counts = range(max(count, 2), policy.most + 1)
    enough = (n for n in counts if planned(spread, policy, n) <= policy.tolerance)
    return max(next(enough, policy.most) - count, 1)


def benjamini_hochberg(
    values: Mapping[str, float], of: int, rate: float, most: float = 1.0
) -> set[str]:
    """Return the cases whose p-values are discoveries at a false discovery rate.

    They are some ``of`` so many; none of them has one above ``most``.
    """
    ordered = sorted((v, case) for case, v in values.items() if v <= most)
    last = 0
    for rank, (value, _) in enumerate(ordered, 1):
        if value <= rate * rank / of:
            last = rank
    return {case for _, case in ordered[:last]}
