"""Which cases need another block, and what all of them come to. Pure.

After each round of blocks every case is looked at again. It is slower or faster once
Benjamini and Hochberg's procedure over the whole suite says so, at the level that counts
in the end: a case never stops at a p-value that is refused later. That each look gives
chance another try is in the levels, which simulation holds (``tests/nulls.py``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from steelyard.analyse import sizes, verdict
from steelyard.analyse.stats import Estimate
from steelyard.analyse.verdict import (
    ERRORS,
    MOVED,
    SETTLED,
    Centre,
    Judgement,
    Policy,
    Verdict,
)

POLICY: Final = Policy(false_discoveries=0.009)
"""What a gate goes by: at this level of each look fewer than one of ten thousand
unchanged cases is slower."""

RAREST: Final = 0.001
"""The largest p-value of a change, however few the cases of a suite are."""

CAUTION: Final = 20
"""What a p-value is multiplied by while the blocks are fewer than the noise asks for:
of a case that looks quiet by accident the first p-values are the smallest."""

SURE: Final = 0.8
"""The share of the tolerance that so many blocks must be able to find."""

EARLIEST: Final = 10
"""Blocks before which nothing is slower or faster: an accidentally small spread of few
blocks makes a p-value tiny, and two modes of a process pass for a change."""

ROBUST: Final = 12
"""The same for a trimmed mean, which stands for the mean where outliers hide a change."""

HOPELESS: Final = 6
"""Blocks that show how noisy a case is."""

USUAL: Final = 3
"""Blocks more of a case that has one: those that did not change have four on average."""

KNOWN: Final = 3
"""The same of one that is known to be."""

MEAN: Final = 0.05
"""A change of the mean of all windows below this is none: neighbours are in it."""

UNKNOWN: Final = 2 * MEAN
"""Half an interval of that mean beyond which it says little of a case that is the same:
work that is a fifth slower in every other call changes it by as much."""

DEPENDENT: Final = 3
"""By how much blocks that depend on each other understate the error of their mean: of
an autocorrelation of 0.8 the root of (1 + 0.8) / (1 - 0.8)."""

CLOCK: Final = "clock, not code: it takes as many cycles as before"


@dataclass(frozen=True, slots=True)
class Evidence:
    """The blocks of one case in one mode, each the logarithm of new over base."""

    blocks: tuple[float, ...] = ()
    means: tuple[float, ...] = ()
    """The same of the mean of all windows; nothing where it is not known of each."""
    noisy: bool = False
    """Whether it is known that no affordable number of blocks shows its changes."""
    grain: float = 0.0
    """The share of a time that its clock cannot tell."""

    def add(
        self, block: float, mean: float | None = None, grain: float = 0.0
    ) -> Evidence:
        """Return the evidence with one more block.

        Raises:
            ValueError: it is not a number.
        """
        if not math.isfinite(block):
            raise ValueError(f"a block is {block}, which is no number")
        means = self.means if mean is None else (*self.means, mean)
        widest = max(self.grain, grain)
        return replace(self, blocks=(*self.blocks, block), means=means, grain=widest)


@dataclass(frozen=True, slots=True)
class Look:
    """What the blocks of one case, two at least, say by themselves."""

    centre: Centre
    spread: float
    """The standard deviation of a block, as the centre's error has it."""
    chances: tuple[float, float]
    """The p-values of slower and of faster; 1 while the blocks are too few."""
    same: bool
    hopeless: bool
    """Whether no affordable number of blocks shows a change of the tolerance."""
    evident: bool
    """Whether the interval lies beyond the margin."""


def undecided(seen: Mapping[str, Evidence], policy: Policy) -> set[str]:
    """Return the cases that need another block; one that is no number needs none."""
    sound = _sound(seen)
    moved, by_mean = _moved(sound, policy), _means_moved(sound, policy)
    return {
        case
        for case, one in sound.items()
        if len(one.blocks) < policy.most
        and (
            not (case in moved or _settled(one, policy.of(case)))
            or (
                moved.get(case) is not Verdict.SLOWER  # which no mean makes better
                and case not in by_mean
                and _mean_may_move(one, policy)
            )
        )
    }


def judge(
    times: Mapping[str, Evidence], cycles: Mapping[str, Evidence], policy: Policy
) -> dict[str, tuple[Judgement, str]]:
    """Judge every case with a block, with a note where its verdict needs one.

    ``cycles`` has the same blocks of those cases whose clock was read beside: where it
    explains what a time does, the case is unresolved. A change of the mean of all
    windows that the quickest do not have is a verdict of its own, with that ratio.
    """
    seen = {case: one for case, one in times.items() if one.blocks}
    by_mean = _means_moved(_sound(seen), policy)
    judged, beside = _judged(seen, policy), _judged(cycles, policy)
    found = {}
    for case, one in judged.items():
        clock = beside.get(case, one).verdict
        if one.verdict in MOVED and clock is not one.verdict:
            more = max(one.more, 1)
            found[case] = replace(one, verdict=Verdict.UNRESOLVED, more=more), CLOCK
        elif case in by_mean and one.verdict not in {by_mean[case], Verdict.SLOWER}:
            found[case] = _spread(one, verdict.mean(seen[case].means))
        else:
            found[case] = one, ""
    return found


def dependent(seen: Mapping[str, Evidence]) -> set[str]:
    """Return the cases whose blocks depend on those before them (`sizes.dependent`)."""
    return sizes.dependent({case: one.blocks for case, one in _sound(seen).items()})


def noisy_means(seen: Mapping[str, Evidence], policy: Policy) -> set[str]:
    """Return the cases of whose mean of all windows too little is known."""
    means = {case: _of_means(one) for case, one in _sound(seen).items()}
    return {
        case
        for case, one in means.items()
        if one and look(one, _wide(policy)).centre.half() > math.log1p(UNKNOWN)
    }


def expected(seen: Mapping[str, Evidence], policy: Policy) -> int:
    """Return how many blocks open cases may still take, by how theirs lie apart."""
    rest = 0
    for case, one in seen.items():
        own, count = policy.of(case), len(one.blocks)
        known = count > 1
        rest += verdict.needed(look(one, own).spread, own, count) if known else USUAL
    return rest


def look(evidence: Evidence, policy: Policy) -> Look:
    """Return what two blocks or more of one case say by themselves."""
    numbers = policy.margin, policy.tolerance, policy.most
    return _look(evidence.blocks, evidence.grain, *numbers)


@lru_cache(maxsize=4096)
def _look(
    blocks: tuple[float, ...], grain: float, margin_: float, tolerance: float, most: int
) -> Look:
    """Look at blocks by their mean, or by a trimmed one where outliers hide it."""
    policy = Policy(margin_, tolerance, most=most)
    count, earliest = len(blocks), EARLIEST
    centre = verdict.mean(blocks, grain)
    spread = centre.error * math.sqrt(count)
    hopeless = verdict.planned(spread, policy, policy.most) > policy.tolerance
    if hopeless and count >= HOPELESS:
        earliest = ROBUST
        centre = verdict.trimmed(blocks, grain)
        spread = centre.error * math.sqrt(count)
        hopeless = verdict.planned(spread, policy, policy.most) > policy.tolerance
    margin, away = math.log1p(policy.margin), abs(centre.value)
    chances = 1.0, 1.0
    if count >= earliest:
        enough = verdict.planned(spread, policy, count) <= SURE * policy.tolerance
        sides = centre, replace(centre, value=-centre.value)
        slower, faster = (
            (1 if enough else CAUTION) * side.exceeds(margin) for side in sides
        )
        chances = slower, faster
    lean = policy.screening_threshold(centre.error)
    settled = away <= math.log1p(2 * lean if count >= SETTLED else lean)
    evident = away - centre.half() > margin
    within = away + centre.half() <= math.log1p(policy.tolerance)
    same = within and not evident and (settled or count >= policy.most)
    return Look(centre, spread, chances, same, hopeless, evident)


def _sound(seen: Mapping[str, Evidence]) -> dict[str, Evidence]:
    """Return the cases without a block that is no number."""
    return {case: one for case, one in seen.items() if verdict.are_numbers(one.blocks)}


def _moved(seen: Mapping[str, Evidence], policy: Policy) -> dict[str, Verdict]:
    """Return the cases that are slower or faster, of all that are measured."""
    chances = {
        case: look(one, policy.of(case)).chances
        for case, one in seen.items()
        if len(one.blocks) >= EARLIEST
    }
    rate = policy.false_discoveries
    found: dict[str, Verdict] = {}
    for side, said in enumerate(MOVED):
        values = {case: both[side] for case, both in chances.items()}
        rare = verdict.benjamini_hochberg(values, len(seen), rate, RAREST)
        found |= dict.fromkeys(rare, said)
    return found


def _settled(one: Evidence, policy: Policy) -> bool:
    """Say whether a case that is not slower or faster needs no more blocks."""
    if len(one.blocks) < 2:
        return False
    found = look(one, policy)
    enough = len(one.blocks) >= (KNOWN if one.noisy else HOPELESS)
    return found.same or (enough and found.hopeless and not found.evident)


def _of_means(one: Evidence) -> Evidence | None:
    """Return the means of all windows as blocks, where each block has one."""
    known = len(one.means) == len(one.blocks) > 1 and verdict.are_numbers(one.means)
    return Evidence(one.means) if known else None


def _means_moved(seen: Mapping[str, Evidence], policy: Policy) -> dict[str, Verdict]:
    """Return the cases whose mean of all windows is slower or faster."""
    means = {case: found for case, one in seen.items() if (found := _of_means(one))}
    return _moved(means, _wide(policy))


def _mean_may_move(one: Evidence, policy: Policy) -> bool:
    """Say whether the mean of all windows may have changed.

    While there can be more blocks a hint of it is enough: of a busy machine few of them
    do not show a change of a half.
    """
    means = _of_means(one)
    if means is None:
        return False
    centre = look(means, _wide(policy)).centre
    away, count = abs(centre.value), len(one.means)
    reach = ERRORS * centre.error if count < policy.most else centre.half()
    return away > math.log1p(MEAN) and (count < HOPELESS or away > reach)


def _wide(policy: Policy) -> Policy:
    """Return the policy that means of all windows are judged by."""
    return replace(policy, margin=MEAN, tolerance=5 * MEAN, tolerances={})


def _spread(one: Judgement, means: Centre) -> tuple[Judgement, str]:
    low, high = (100 * (end - 1) for end in (one.ratio.low, one.ratio.high))
    note = (
        "the change is that of the mean of all windows; that of the quickest fifth "
        f"is {low:+.1f} to {high:+.1f} %"
    )
    return replace(one, verdict=Verdict.SPREAD, ratio=means.ratio(), more=0), note


def _judged(seen: Mapping[str, Evidence], policy: Policy) -> dict[str, Judgement]:
    sound = _sound(seen)
    moved, open_ = _moved(sound, policy), undecided(seen, policy)
    by_mean, doubtful = _means_moved(sound, policy), dependent(seen)
    known = {case: one for case, one in sound.items() if len(one.blocks) > 1}
    looks = {case: look(one, policy.of(case)) for case, one in known.items()}
    spreads = sizes.shrunken(
        {case: (one.spread, one.centre.freedom) for case, one in looks.items()}
    )
    found = {}
    for case, one in seen.items():
        own, count = policy.of(case), len(one.blocks)
        if case not in looks:
            more = max(HOPELESS - count, 1)
            nothing = Estimate(math.nan, 0.0, math.inf)
            ratio = verdict.interval(one.blocks) if case in sound else nothing
            found[case] = Judgement(Verdict.UNRESOLVED, ratio, count, math.inf, more)
            continue
        seen_now = looks[case]
        waits = case in open_ or (case not in by_mean and _mean_may_move(one, policy))
        said = moved.get(case) or _unmoved(seen_now, waits=waits)
        if case in doubtful and said in MOVED and not _withstands(seen_now, own):
            said = Verdict.UNRESOLVED
        more = verdict.needed(seen_now.spread, own, count)
        found[case] = Judgement(
            said,
            seen_now.centre.ratio(),
            count,
            sizes.smallest(spreads[case], own),
            more if said is Verdict.UNRESOLVED else 0,
        )
    return found


def _unmoved(found: Look, *, waits: bool) -> Verdict:
    if waits:
        return Verdict.UNRESOLVED
    if found.same:
        return Verdict.SAME
    return Verdict.NOT_GATEABLE if found.hopeless else Verdict.UNRESOLVED


def _withstands(found: Look, policy: Policy) -> bool:
    """Say whether a change is one even if its blocks depend on each other."""
    wide = found.centre.widened(DEPENDENT)
    sides = wide, replace(wide, value=-wide.value)
    return min(side.exceeds(math.log1p(policy.margin)) for side in sides) <= RAREST
