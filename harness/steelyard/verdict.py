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
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Self

from steelyard.stats import Estimate


class Verdict(StrEnum):
    """What is said of a case."""

    SLOWER = "slower"
    FASTER = "faster"
    SAME = "same"
    UNRESOLVED = "unresolved"
    NOT_GATEABLE = "not-gateable"
    IDENTICAL_CODE = "identical-code"


@dataclass(frozen=True, slots=True)
class Policy:
    """When a case is decided; shares, such as 0.01 of a time."""

    margin: float = 0.01
    """A change below this is none."""
    tolerance: float = 0.05
    """Any change above this must have been seen for a case to be the same."""
    false_discoveries: float = 0.05
    """The share of told changes that may be none."""
    screen: int = 3
    """Blocks of every case."""
    confirm: int = 12
    """Fresh blocks of one that is suspect."""
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

    def lean(self, error: float) -> float:
        """Return the mean change of a screen that is still none; twice it is suspect.

        That is the margin, and of a noisy case whose tolerance is wider `ERRORS` of
        its mean, up to the same part of the tolerance: fresh blocks for less than its
        policy asks of it are no use.
        """
        return max(self.margin, min(ERRORS * error, self.tolerance / LEANING))


LEANING: Final = 5
"""What a tolerance is divided by for the most that `Policy.lean` may be: so of the usual
tolerance that is the margin."""

ERRORS: Final = 1.5
"""Twice so many standard errors of three blocks are beaten by accident once in ten."""

CONFIDENCE: Final = 0.95
POWER: Final = 0.9
"""Of finding the smallest detectable change."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with its evidence."""

    verdict: Verdict
    ratio: Estimate
    """New over base, with the interval of Student's t."""
    blocks: int
    detectable: float
    """The smallest slowdown that so many blocks of this noise find, as a share."""
    more: int = 0
    """Blocks that would decide it, of an unresolved one."""


def suspect(blocks: Sequence[float], policy: Policy) -> bool:
    """Say whether screened blocks call for fresh ones that decide."""
    lean = policy.lean(error(blocks))
    return abs(statistics.fmean(blocks)) > math.log1p(2 * lean)


def judge(
    screened: Mapping[str, Sequence[float]],
    confirmed: Mapping[str, Sequence[float]],
    policy: Policy,
) -> dict[str, Judgement]:
    """Judge every case by its logarithms of new over base, a block each.

    Each is judged by its own policy (`Policy.of`). Those with confirming blocks are
    judged by these alone: what made a case suspect does not count against it twice. Of the others none is slower or faster. A case with
    a block that is no number is unresolved, whatever its others are.
    """
    sound = {case: blocks for case, blocks in confirmed.items() if are_numbers(blocks)}
    slower = _rejected(sound, policy, 1)
    faster = _rejected(sound, policy, -1)
    found = {}
    for case, first in screened.items():
        blocks, own = confirmed.get(case, first), policy.of(case)
        if not are_numbers(blocks):
            nothing = Estimate(math.nan, 0.0, math.inf)
            found[case] = Judgement(
                Verdict.UNRESOLVED, nothing, len(blocks), math.inf, policy.screen
            )
            continue
        if case in slower:
            verdict = Verdict.SLOWER
        elif case in faster:
            verdict = Verdict.FASTER
        else:
            verdict = _undecided(blocks, own)
        found[case] = _judgement(verdict, blocks, own)
    return found


def are_numbers(blocks: Sequence[float]) -> bool:
    """Say whether no block is infinite or not a number."""
    return all(map(math.isfinite, blocks))


def _rejected(
    confirmed: Mapping[str, Sequence[float]], policy: Policy, sign: int
) -> set[str]:
    values = {
        case: exceeds(
            [sign * block for block in blocks], math.log1p(policy.of(case).margin)
        )
        for case, blocks in confirmed.items()
    }
    return benjamini_hochberg(values, policy.false_discoveries)


def _undecided(blocks: Sequence[float], policy: Policy) -> Verdict:
    if equivalent(blocks, math.log1p(policy.tolerance)):
        return Verdict.SAME
    if detectable(blocks, policy, policy.most) > policy.tolerance:
        return Verdict.NOT_GATEABLE
    return Verdict.UNRESOLVED


def _judgement(verdict: Verdict, blocks: Sequence[float], policy: Policy) -> Judgement:
    more = 0
    if verdict is Verdict.UNRESOLVED:
        more = needed(blocks, policy) - len(blocks)
    return Judgement(
        verdict,
        interval(blocks),
        len(blocks),
        detectable(blocks, policy, len(blocks)),
        max(more, 1) if verdict is Verdict.UNRESOLVED else 0,
    )


def interval(blocks: Sequence[float]) -> Estimate:
    """Return the ratio with Student's interval; infinitely wide of one block."""
    mean = statistics.fmean(blocks)
    if len(blocks) < 2:
        return Estimate(math.exp(mean), 0.0, math.inf)
    half = quantile((1 + CONFIDENCE) / 2, len(blocks) - 1) * error(blocks)
    return Estimate(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def exceeds(blocks: Sequence[float], margin: float) -> float:
    """Return the p-value of a mean of at most ``margin``: one-sided Student's t."""
    if len(blocks) < 2:
        return 1.0
    above = statistics.fmean(blocks) - margin
    spread = error(blocks)
    if not spread:
        return 0.0 if above > 0 else 1.0
    return 1 - cumulative(above / spread, len(blocks) - 1)


def equivalent(blocks: Sequence[float], tolerance: float) -> bool:
    """Say whether the mean is surely within ``tolerance`` of none, to both sides.

    Two one-sided tests (Schuirmann 1987), each at 5 %.
    """
    below = exceeds([block + 2 * tolerance for block in blocks], tolerance)
    above = exceeds([2 * tolerance - block for block in blocks], tolerance)
    return max(below, above) <= 1 - CONFIDENCE


def detectable(blocks: Sequence[float], policy: Policy, count: int) -> float:
    """Return the slowdown that ``count`` blocks of this noise find in `POWER` of cases.

    Infinite where fewer than two blocks tell nothing of the noise.
    """
    if len(blocks) < 2 or count < 2:
        return math.inf
    spread = statistics.stdev(blocks) / math.sqrt(count)
    reach = quantile(CONFIDENCE, count - 1) + quantile(POWER, count - 1)
    return math.expm1(math.log1p(policy.margin) + reach * spread)


def needed(blocks: Sequence[float], policy: Policy) -> int:
    """Return how many blocks of this noise make a detectable change the tolerance."""
    counts = range(len(blocks), policy.most + 1)
    enough = (n for n in counts if detectable(blocks, policy, n) <= policy.tolerance)
    return next(enough, policy.most)


def benjamini_hochberg(values: Mapping[str, float], rate: float) -> set[str]:
    """Return the cases whose p-values are discoveries at a false discovery rate."""
    ordered = sorted(values.items(), key=lambda item: item[1])
    most = 0
    for rank, (_, value) in enumerate(ordered, 1):
        if value <= rate * rank / len(ordered):
            most = rank
    return {case for case, _ in ordered[:most]}


def error(blocks: Sequence[float]) -> float:
    """Return the standard error of the mean of at least two blocks."""
    return statistics.stdev(blocks) / math.sqrt(len(blocks))


def cumulative(t: float, freedom: int) -> float:
    """Return Student's distribution function.

    By the finite sums for whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and
    26.7.4); importing SciPy for it would cost each gate 0.2 s.
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


def quantile(probability: float, freedom: int) -> float:
    """Return the t below which Student's distribution has a probability; by bisection."""
    low, high = -1e6, 1e6
    for _ in range(100):
        middle = (low + high) / 2
        if cumulative(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2
