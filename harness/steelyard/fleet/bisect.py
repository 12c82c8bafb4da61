"""The commit that made a case slower or faster: each step decided as a gate decides.

The search is in halves, or in more parts.

Both ends are measured against each other first, on every machine: where they do not
differ any more nothing else is measured. Every other commit is then measured beside the
good end until the gate's test says whether it has the change, several at once where there
are several machines; and the commit that is found beside the one before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from steelyard.analyse.verdict import MOVED, Judgement, Policy, Verdict, mean
from steelyard.errors import FAILED, FINE, UNRESOLVED, UnjudgedError
from steelyard.fleet.pairs import Compare, Comparison, Pair
from steelyard.gate.blocks import same_code
from steelyard.gate.decide import POLICY, Evidence

MOST: Final = 60
"""Blocks after which a commit is skipped as not decided: a wrong step loses the search."""

LIMITS: Final = (1 / 3, 2 / 3)
"""Of the change between both ends, as logarithms: what is certainly above the first has
the change, and what is certainly within the second has not."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that a bisection came to."""

    case: str
    ends: Judgement | None = None
    """The bad end against the good one."""
    found: Found | None = None
    step: Comparison | None = None
    """The commit that was found against the one before it."""
    problem: str = ""
    """Why nothing was found."""
    failed: bool = False
    """Whether that is the benchmark's doing."""

    @property
    def confirmed(self) -> bool:
        """Whether one commit was found, and its own measurement shows the change."""
        return (
            self.step is not None
            and self.step.judgement is not None
            and self.ends is not None
            and self.step.judgement.verdict is self.ends.verdict
        )

    @property
    def exit_code(self) -> int:
        """What the command ends with."""
        if self.failed:
            return FAILED
        return FINE if self.confirmed else UNRESOLVED


def bisect(
    case: str,
    good: str,
    commits: Sequence[str],
    compare: Compare,
    say: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Return the commit after ``good`` that changed a case; ``commits`` end with the bad one.

    Raises:
        UnjudgedError: an end does not build.
    """
    bad = commits[-1]
    say(f"both ends: {good[:10]} and {bad[:10]}")
    found = compare([Pair(good, bad, machine=one) for one in compare.machines])
    every = dict(zip(compare.machines, found, strict=True))
    ends = _moved(every)
    for name, one in every.items():
        if name not in ends and ends:
            say(f"{name}: {_problem(one)}")
    if not ends:
        first = found[0]
        if first.unbuilt:
            raise UnjudgedError(first.failed)
        failed = bool(first.failed)
        return Outcome(case, first.judgement, problem=_problem(first), failed=failed)
    steps = _Steps(good, bad, ends, compare, say)
    made = Outcome(case, steps.both.judgement)
    where = search(good, commits, steps.decide, len(ends))
    made = replace(made, found=where)
    if len(where.commits) > 1:
        skipped = len(where.commits) - 1
        return replace(made, problem=f"{skipped} commits before it were skipped")
    commit = next(iter(where.commits))
    say(f"{commit[:10]} beside {where.before[:10]}, the commit before it")
    (step,) = compare([steps.pair(next(iter(ends)), where.before, commit)])
    made = replace(made, step=step)
    if made.confirmed:
        return made
    return replace(
        made, problem="measured beside the commit before it, it shows no change"
    )


def _moved(every: Mapping[str, Comparison]) -> dict[str, Comparison]:
    """Return the machines whose ends differ, the way that they do on most of them."""
    said = {name: one.judgement.verdict for name, one in every.items() if one.judgement}
    ways = [*said.values()]
    most = max(MOVED, key=ways.count)
    return {name: every[name] for name, verdict in said.items() if verdict is most}


def _problem(ends: Comparison) -> str:
    """Say why nothing can be searched where both ends measured so."""
    if ends.failed:
        return ends.failed
    if ends.identical:
        return "both ends launch the same instructions"
    one = ends.judgement
    said = f"{one.verdict}, {one.ratio.value:.4g} times" if one else ""
    return (
        f"the machine changed, or there never was a difference: the ends do not differ "
        f"any more ({said or 'nothing was measured'})"
    )


class _Steps:
    """Decides commits by the good end."""

    def __init__(
        self,
        good: str,
        bad: str,
        ends: Mapping[str, Comparison],
        compare: Compare,
        say: Callable[[str], None],
    ) -> None:
        self.both = next(iter(ends.values()))
        assert self.both.judgement is not None
        self._good, self._compare, self._say = good, compare, say
        self._verdict = self.both.judgement.verdict
        self._policies = {name: _policy(one) for name, one in ends.items()}
        self._known = [
            (one.facts, Decision(bad, Side.BAD, "")) for one in ends.values()
        ]

    def pair(self, machine: str, base: str, other: str) -> Pair:
        """Return two commits as a machine is to compare them, by its own ends."""
        known = tuple(facts for facts, _ in self._known) if base == self._good else ()
        return Pair(base, other, self._policies[machine], known, machine)

    def decide(self, commits: Sequence[str]) -> list[Decision]:
        """Decide some commits, by their code where that is known, each on one machine."""
        pairs = [
            self.pair(machine, self._good, commit)
            for machine, commit in zip(self._policies, commits, strict=False)
        ]
        made = []
        for pair, found in zip(pairs, self._compare(pairs), strict=True):
            decision = self._of(pair, found)
            made.append(decision)
            where = f"{pair.machine}: " if pair.machine else ""
            said = f"{where}{pair.other[:10]} {decision.side}: {decision.why}"
            self._say(said.splitlines()[0])
            if decision.side is not Side.SKIPPED:
                self._known.append((found.facts, decision))
        return made

    def _of(self, pair: Pair, found: Comparison) -> Decision:
        commit = pair.other
        if found.failed:
            what = "does not build" if found.unbuilt else "fails"
            return Decision(commit, Side.SKIPPED, f"{what}: {found.failed}")
        if found.identical:
            return Decision(commit, Side.GOOD, "the instructions of the good end")
        for facts, decided in self._known:
            if found.judgement is None and same_code(facts, found.facts):
                same = f"the instructions of {decided.commit[:10]}"
                return Decision(commit, decided.side, same)
        if found.judgement is None:
            return Decision(commit, Side.SKIPPED, "nothing could be measured")
        return self._judged(pair, found.judgement, found.evidence)

    def _judged(self, pair: Pair, one: Judgement, evidence: Evidence) -> Decision:
        commit, policy = pair.other, pair.policy
        why = f"{one.ratio.value:.4g} times the good end in {one.blocks} blocks"
        sign = 1.0 if self._verdict is Verdict.SLOWER else -1.0
        centre = mean(evidence.blocks, evidence.grain)
        towards = replace(centre, value=sign * centre.value)
        if one.verdict is self._verdict:
            wrong = towards.exceeds(math.log1p(policy.margin))
            return Decision(commit, Side.BAD, why, measured=True, wrong=wrong)
        if one.verdict is Verdict.SAME or one.verdict in MOVED:
            away = replace(towards, value=-towards.value)
            wrong = away.exceeds(-math.log1p(policy.tolerance))
            return Decision(commit, Side.GOOD, why, measured=True, wrong=wrong)
        return Decision(commit, Side.SKIPPED, f"{one.verdict}, {why}", measured=True)


def _policy(ends: Comparison) -> Policy:
    """Return what decides whether a commit has the change that both ends show."""
    assert ends.judgement is not None
    change = abs(math.log(ends.judgement.ratio.value))
    margin, tolerance = (math.expm1(part * change) for part in LIMITS)
    return replace(POLICY, margin=margin, tolerance=tolerance, tolerances={}, most=MOST)


class Side(StrEnum):
    """Which end of the range a commit is like."""

    GOOD = "good"
    BAD = "bad"
    SKIPPED = "skipped"
    """It does not build, or was not decided: the search goes around it."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What is said of one commit."""

    commit: str
    side: Side
    why: str
    """Measured and how, or why not."""
    measured: bool = False
    wrong: float = 0.0
    """The chance of a measurement like this one if the commit is of the other side."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a search came to."""

    commits: tuple[str, ...]
    """One of them changed the case, the oldest first; one alone where nothing between
    was skipped."""
    before: str
    """The last commit before these."""
    decisions: tuple[Decision, ...]
    """In the order they were made."""

    @property
    def wrong(self) -> float:
        """The chance, at most, that one of the decisions was wrong."""
        return min(1.0, sum(one.wrong for one in self.decisions))


def search(
    good: str,
    commits: Sequence[str],
    decide: Callable[[Sequence[str]], Sequence[Decision]],
    width: int = 1,
) -> Found:
    """Return the first of ``commits`` that is like the last of them, and not like ``good``.

    They stand from the oldest to the newest. Of those that are left so many are decided
    at once as ``width`` says, which part them evenly. Where they contradict each other
    the oldest bad one counts.
    """
    low, high = -1, len(commits) - 1
    made: list[Decision] = []
    skipped: set[int] = set()
    while left := [at for at in range(low + 1, high) if at not in skipped]:
        chosen = _parting(left, low, high, width)
        found = decide([commits[at] for at in chosen])
        made += found
        sides = {at: one.side for at, one in zip(chosen, found, strict=True)}
        high = min([high, *(at for at, side in sides.items() if side is Side.BAD)])
        below = [at for at, side in sides.items() if side is Side.GOOD and at < high]
        low = max([low, *below])
        skipped |= {at for at, side in sides.items() if side is Side.SKIPPED}
    before = commits[low] if low >= 0 else good
    return Found(tuple(commits[low + 1 : high + 1]), before, tuple(made))


def _parting(left: Sequence[int], low: int, high: int, width: int) -> list[int]:
    """Return those that are nearest to parting what lies between two ends evenly."""
    free, chosen = list(left), []
    for part in range(1, min(width, len(left)) + 1):
        aim = low + part * (high - low) / (width + 1)
        nearest = min(
            range(len(free)), key=[abs(one - aim) for one in free].__getitem__
        )
        chosen.append(free.pop(nearest))
    return sorted(chosen)
