"""Which cases get another block: screened, confirmed on fresh blocks, or decided. Pure.

Stopping early never makes an alarm likelier: before the last look a case leaves the
confirming blocks as unchanged, or with a p-value far below what is asked for.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from steelyard import verdict
from steelyard.verdict import Judgement, Policy, Verdict

POLICY: Final = Policy(false_discoveries=0.02)
"""What a gate goes by: of fifty changes that it tells one may be none."""

DECISIVE: Final = 0.0001
"""The p-value at which a change is told before all confirming blocks are there, or of a
case that is too noisy to be told anything less of: it is looked at after each block."""

EARLIEST: Final = 5
"""Confirming blocks before which no p-value is looked at: an accidentally small spread
of few blocks makes it tiny."""

HOPELESS: Final = 6
"""Blocks that tell how noisy a case is; three of one that is known to be."""


class Stage(StrEnum):
    """What a case's next block is for."""

    SCREEN = "screen"
    CONFIRM = "confirm"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Evidence:
    """The blocks of one case in one mode, each the logarithm of new over base."""

    screened: tuple[float, ...] = ()
    confirmed: tuple[float, ...] = ()
    noisy: bool = False
    """Whether it is known that no affordable number of blocks tells its changes."""

    def add(self, block: float, stage: Stage) -> Evidence:
        """Return the evidence with one more block of a stage."""
        if not math.isfinite(block):
            raise ValueError(f"a block is {block}, which is no number")
        if stage is Stage.CONFIRM:
            return replace(self, confirmed=(*self.confirmed, block))
        return replace(self, screened=(*self.screened, block))


def stage(evidence: Evidence, policy: Policy) -> Stage:
    """Say what the next block of a case is for; one that is no number ends it.

    The policy is the case's own (`Policy.of`).
    """
    if not verdict.are_numbers((*evidence.screened, *evidence.confirmed)):
        return Stage.DONE
    if suspicious(evidence.screened, policy):
        done = _confirmed(evidence.confirmed, policy)
        return Stage.DONE if done else Stage.CONFIRM
    return Stage.DONE if _screened(evidence, policy) else Stage.SCREEN


def suspicious(blocks: tuple[float, ...], policy: Policy) -> bool:
    """Say whether the screen has seen a change that its own spread does not explain."""
    if len(blocks) < policy.screen or not verdict.suspect(blocks, policy):
        return False
    return abs(statistics.fmean(blocks)) > verdict.error(blocks)


def _screened(evidence: Evidence, policy: Policy) -> bool:
    """Say whether a case that is not suspect needs no more blocks."""
    blocks = evidence.screened
    if _unchanged(blocks, policy) or len(blocks) >= policy.most:
        return True
    if len(blocks) >= 2 * policy.screen and _same(blocks, policy):
        return True
    enough = policy.screen if evidence.noisy else HOPELESS
    return len(blocks) >= enough and _is_hopeless(blocks, policy)


def _confirmed(blocks: tuple[float, ...], policy: Policy) -> bool:
    """Say whether the fresh blocks of a suspect are enough."""
    if len(blocks) >= policy.screen and _unchanged(blocks, policy):
        return True
    if len(blocks) < EARLIEST:
        return False
    chance = _chance(blocks, policy)
    if chance <= DECISIVE or len(blocks) >= policy.most:
        return True
    if len(blocks) < policy.confirm:
        return False
    told = chance <= policy.false_discoveries / 2
    return told or _same(blocks, policy) or _is_hopeless(blocks, policy)


def _chance(blocks: tuple[float, ...], policy: Policy) -> float:
    """Return the p-value of a change to either side."""
    both = (blocks, tuple(-block for block in blocks))
    return min(verdict.exceeds(side, _log(policy.margin)) for side in both)


def _unchanged(blocks: tuple[float, ...], policy: Policy) -> bool:
    """Say whether a case is the same and does not even lean to a side."""
    if len(blocks) < 2:
        return False
    leans = abs(statistics.fmean(blocks)) > _log(policy.lean(verdict.error(blocks)))
    return not leans and _same(blocks, policy)


def _same(blocks: tuple[float, ...], policy: Policy) -> bool:
    return verdict.equivalent(blocks, _log(policy.tolerance))


def _is_hopeless(blocks: tuple[float, ...], policy: Policy) -> bool:
    return verdict.detectable(blocks, policy, policy.most) > policy.tolerance


def _log(share: float) -> float:
    return math.log1p(share)


MOVED: Final = (Verdict.SLOWER, Verdict.FASTER)
CLOCK: Final = "clock, not code: it takes as many cycles as before"


def judge(
    times: Mapping[str, Evidence], cycles: Mapping[str, Evidence], policy: Policy
) -> dict[str, tuple[Judgement, str]]:
    """Judge every case, with a note where its clock explains what its time does.

    ``cycles`` has the same blocks of those cases whose clock was read beside.
    """
    judged = _judged(times, policy)
    beside = _judged(cycles, policy)
    found = {}
    for case, one in judged.items():
        if (
            one.verdict in MOVED
            and case in beside
            and beside[case].verdict is not one.verdict
        ):
            need = verdict.needed(times[case].confirmed, policy.of(case))
            more = max(need - one.blocks, 1)
            one = replace(one, verdict=Verdict.UNRESOLVED, more=more)  # noqa: PLW2901
            found[case] = one, CLOCK
        else:
            found[case] = one, ""
    return found


def _judged(seen: Mapping[str, Evidence], policy: Policy) -> dict[str, Judgement]:
    """Judge those with a block at all; too few say nothing of the noise either."""
    screened = {case: one.screened for case, one in seen.items() if one.screened}
    confirmed = {case: one.confirmed for case, one in seen.items() if one.confirmed}
    found = verdict.judge(screened, confirmed, policy)
    for case, one in found.items():
        own = policy.of(case)
        if one.blocks < 2 or _is_cut_short(one, seen[case], own):
            more = max(policy.screen - one.blocks, one.more, 1)
            found[case] = replace(one, verdict=Verdict.UNRESOLVED, more=more)
        elif one.verdict in MOVED and _is_unlikely(confirmed[case], own):
            found[case] = replace(one, verdict=Verdict.NOT_GATEABLE)
    return found


def _is_cut_short(one: Judgement, seen: Evidence, policy: Policy) -> bool:
    """Say whether a case without a change was to have more blocks."""
    return one.verdict not in MOVED and stage(seen, policy) is not Stage.DONE


def _is_unlikely(blocks: tuple[float, ...], policy: Policy) -> bool:
    """Say whether a change of a case this noisy may be none after all."""
    return _is_hopeless(blocks, policy) and _chance(blocks, policy) > DECISIVE
