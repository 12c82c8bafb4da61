"""The commit that made a case slower or faster: each step decided as a gate decides.

Both ends are measured against each other first. Every other commit is then measured
beside the good end until the gate's test says whether it has the change; and the commit
that is found is measured beside the one before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from steelyard.analyse.verdict import MOVED, Judgement, Policy, Verdict, mean
from steelyard.errors import FAILED, FINE, UNRESOLVED, UnjudgedError
from steelyard.fleet.search import Decision, Found, Side, search
from steelyard.gate.blocks import same_code
from steelyard.gate.decide import POLICY, Evidence

MOST: Final = 60
"""Blocks after which a commit is skipped as not decided: a wrong step loses the search."""

LIMITS: Final = (1 / 3, 2 / 3)
"""Of the change between both ends, as logarithms: what is certainly above the first has
the change, and what is certainly within the second has not."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two commits beside each other."""

    judgement: Judgement | None = None
    evidence: Evidence = field(default_factory=Evidence)
    identical: bool = False
    """Whether they launch the same instructions; then nothing was measured."""
    failed: str = ""
    """Why there is no number."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the work of the second commit says of itself."""
    changes: tuple[str, ...] = ()
    """What differs between the two, the likeliest cause first."""


class Compare(Protocol):
    """Measures two commits beside each other."""

    def __call__(
        self,
        base: str,
        other: str,
        policy: Policy,
        known: Sequence[Mapping[str, Any]] = (),
    ) -> Comparison:
        """Return what a gate says; nothing is measured of code that is ``known``.

        Raises:
            UnjudgedError: one of them does not build.
        """
        ...


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
    both = compare(good, bad, POLICY)
    if both.failed:
        return Outcome(case, problem=both.failed, failed=True)
    if both.identical:
        return Outcome(case, problem="both ends launch the same instructions")
    if both.judgement is None or both.judgement.verdict not in MOVED:
        return Outcome(case, both.judgement, problem=_changed(both.judgement))
    steps = _Steps(good, bad, both, compare, say)
    found = search(good, commits, steps.decide)
    made = Outcome(case, both.judgement, found)
    if len(found.commits) > 1:
        skipped = len(found.commits) - 1
        return replace(made, problem=f"{skipped} commits before it were skipped")
    commit = next(iter(found.commits))
    say(f"{commit[:10]} beside {found.before[:10]}, the commit before it")
    step = compare(found.before, commit, steps.policy)
    made = replace(made, step=step)
    if made.confirmed:
        return made
    return replace(
        made, problem="measured beside the commit before it, it shows no change"
    )


def _changed(judgement: Judgement | None) -> str:
    """Say that both ends do not differ, which may be the machine's doing."""
    said = (
        f"{judgement.verdict}, {judgement.ratio.value:.4g} times" if judgement else ""
    )
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
        both: Comparison,
        compare: Compare,
        say: Callable[[str], None],
    ) -> None:
        assert both.judgement is not None
        self._good, self._compare, self._say = good, compare, say
        self._verdict = both.judgement.verdict
        self._change = math.log(both.judgement.ratio.value)
        margin, tolerance = (math.expm1(part * abs(self._change)) for part in LIMITS)
        self.policy = replace(
            POLICY, margin=margin, tolerance=tolerance, tolerances={}, most=MOST
        )
        self._known = [(both.facts, Decision(bad, Side.BAD, ""))]

    def decide(self, commit: str) -> Decision:
        """Decide one commit, by its code where that is known."""
        known = [facts for facts, _ in self._known]
        try:
            found = self._compare(self._good, commit, self.policy, known)
        except UnjudgedError as error:
            decision = Decision(commit, Side.SKIPPED, f"does not build: {error}")
        else:
            decision = self._of(commit, found)
            if decision.side is not Side.SKIPPED:
                self._known.append((found.facts, decision))
        self._say(f"{commit[:10]} {decision.side}: {decision.why}".splitlines()[0])
        return decision

    def _of(self, commit: str, found: Comparison) -> Decision:
        if found.failed:
            return Decision(commit, Side.SKIPPED, f"fails: {found.failed}")
        if found.identical:
            return Decision(commit, Side.GOOD, "the instructions of the good end")
        for facts, decided in self._known:
            if found.judgement is None and same_code(facts, found.facts):
                same = f"the instructions of {decided.commit[:10]}"
                return Decision(commit, decided.side, same)
        if found.judgement is None:
            return Decision(commit, Side.SKIPPED, "nothing could be measured")
        return self._judged(commit, found.judgement, found.evidence)

    def _judged(self, commit: str, one: Judgement, evidence: Evidence) -> Decision:
        why = f"{one.ratio.value:.4g} times the good end in {one.blocks} blocks"
        sign = math.copysign(1.0, self._change)
        centre = mean(evidence.blocks, evidence.grain)
        towards = replace(centre, value=sign * centre.value)
        if one.verdict is self._verdict:
            wrong = towards.exceeds(math.log1p(self.policy.margin))
            return Decision(commit, Side.BAD, why, measured=True, wrong=wrong)
        if one.verdict is Verdict.SAME or one.verdict in MOVED:
            away = replace(towards, value=-towards.value)
            wrong = away.exceeds(-math.log1p(self.policy.tolerance))
            return Decision(commit, Side.GOOD, why, measured=True, wrong=wrong)
        return Decision(commit, Side.SKIPPED, f"{one.verdict}, {why}", measured=True)
