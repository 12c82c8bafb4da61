"""What a project lets pass, and why: ``ci/policy.toml``.

docs/gate.md has its rules and tolerances. `steelyard accept` adds::

    [[accepted]]
    case = "softmax[columns=768]"
    mode = "kernel/cold"
    verdict = "slower"
    base = "5f0c..."                    # the two codes; "" where a hash is not known
    head = "91ab..."
    ratio = [1.08, 1.12]                # as it was measured
    reason = "the division is rounded right now"
    date = 2026-11-20

The verdict may also be a doubt, such as ``remembers``: it is accepted of the case without
codes. Of several tolerances that cover a case the first counts. It is what a case must have
shown to be the same, and what makes one too noisy (`verdict.Policy.of`). One whose last
day is over lets nothing pass, and the gate says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final

from steelyard.analyse import doubts, expression
from steelyard.analyse.doubts import Act
from steelyard.analyse.verdict import Policy, Verdict
from steelyard.gate import decide
from steelyard.gate.outcome import Finding, Outcome, StaticChange

UNBOUND: Final = timedelta(days=30)
"""How long an accepted change holds whose code has no hash to know it by: as long as a
branch lives until it is merged, and no next change hides behind it."""

SLACK: Final = 0.05
"""The share by which a slowdown that is measured again may be clearly more than when it
was accepted: what is told of any case is no more certain (`verdict.Policy.tolerance`)."""

VANISHED: Final = "vanished"
"""What is accepted of a case that only the base has; its note begins with this word."""

STATIC: Final = "static"
"""The verdict that is accepted of code that the policy forbids."""


def acting() -> list[str]:
    """Return the doubts for which a case may fail, or be unresolved."""
    return [name for name, one in doubts.known().items() if one.act is not Act.PRINT]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """A slowdown that passes."""

    cases: str
    share: float
    reason: str
    until: date
    """The last day that it holds."""
    line: int = 0

    def covers(self, case: str, mode: str) -> bool:
        """Whether its words accept a case in a mode."""
        return expression.parse(self.cases)(f"{case} {mode}")


@dataclass(frozen=True, slots=True)
class Accepted:
    """One change that is intended, or one doubt."""

    case: str
    mode: str
    """Of static changes the targets, with commas; nothing of a case that vanished in all of them."""
    verdict: str
    """One of `Verdict`, `VANISHED`, `STATIC`, or a doubt that a gate acts on.

    A doubt is accepted of every later gate: it is of the work, not of a change of it.
    """
    reason: str
    on: date
    base: str = ""
    head: str = ""
    ratio: tuple[float, float] | None = None
    """The interval of new over base as it was measured."""
    changes: tuple[str, ...] = ()
    """Of static changes their words."""
    line: int = 0

    def covers(self, finding: Finding, today: date) -> bool:
        """Whether this very change is intended, and not another of the same case."""
        same = (finding.case, finding.mode, verdict_of(finding), *finding.codes)
        if same != (self.case, self.mode, self.verdict, self.base, self.head):
            return False
        known = all(finding.codes)
        return (known or today <= self.on + UNBOUND) and self._no_worse(finding)

    def _no_worse(self, finding: Finding) -> bool:
        if finding.verdict not in {Verdict.SLOWER, Verdict.SPREAD}:
            return True
        if self.ratio is None or finding.judgement is None:
            return False
        most = self.ratio[1] * (1 + SLACK)
        return finding.judgement.ratio.low <= most  # NaN is not

    def covers_static(self, change: StaticChange) -> bool:
        """Whether these very changes of the code are intended."""
        same = (change.case, STATIC, change.changes)
        targets = self.mode.split(",")
        return same == (self.case, self.verdict, self.changes) and (
            change.target in targets
        )


@dataclass(frozen=True, slots=True)
class Rules:
    """A policy; without a file there is nothing in it."""

    path: Path | None = None
    tolerances: tuple[Tolerance, ...] = ()
    accepted: tuple[Accepted, ...] = ()
    forbid: tuple[str, ...] = ()
    """Words of static changes that fail by themselves when there is more of it."""
    forbidden_for: str = ""
    """Why."""

    def tolerance(self, case: str, mode: str, today: date) -> Tolerance | None:
        """Return what holds today for a case in a mode."""
        found = (t for t in self.tolerances if t.covers(case, mode))
        return next((t for t in found if today <= t.until), None)

    def doubts(self, case: str, mode: str) -> dict[str, str]:
        """Return the accepted doubts of a case in a mode, each with its reason."""
        return {
            one.verdict: one.reason
            for one in self.accepted
            if one.verdict in acting() and (one.case, one.mode) == (case, mode)
        }

    def policy(
        self, points: Iterable[tuple[str, str]], today: date | None = None
    ) -> Policy:
        """Return what a gate goes by, with what each case and mode may move today."""
        day = today or now()
        held = ((*point, self.tolerance(*point, day)) for point in points)
        shares = {f"{case} {mode}": one.share for case, mode, one in held if one}
        return replace(decide.POLICY, tolerances=shares)

    def expired(self, today: date) -> Iterator[str]:
        """Yield a sentence for each tolerance that is over."""
        for one in self.tolerances:
            if today > one.until:
                yield (
                    f"{self.path}:{one.line}: the tolerance of {one.cases!r} ended on "
                    f"{one.until} and lets nothing pass; renew its date or remove it."
                )

    def forbids(self, change: StaticChange) -> str:
        """Return why a static change fails by itself; nothing if it does not."""
        if any(one.covers_static(change) for one in self.accepted):
            return ""
        hits = [w for w in self.forbid if any(_more(c, w) for c in change.changes)]
        if not hits:
            return ""
        return f"{self.path} forbids {' and '.join(hits)}: {self.forbidden_for}"


def now() -> date:
    """Return today, in UTC as every date of ours."""
    return datetime.now(UTC).date()


def verdict_of(finding: Finding) -> str:
    """Return what would be accepted of a finding; nothing of a failure."""
    if finding.verdict is not None:
        return str(finding.verdict)
    return VANISHED if finding.note.startswith(VANISHED) else ""


def _more(change: str, word: str) -> bool:
    """Say whether ``4 new local loads`` is more of ``local loads``."""
    stems = [part.removesuffix("s") for part in word.lower().split()]
    more = re.search(r"\b(more|new)\b", change)
    return more is not None and " ".join(stems) in change.lower().replace("s ", " ")


def apply(outcome: Outcome, rules: Rules, today: date | None = None) -> Outcome:
    """Return the outcome with what the policy says of each finding."""
    day = today or now()
    findings = tuple(_apply(one, rules, day) for one in outcome.findings)
    static = tuple(
        replace(one, forbidden=one.forbidden or rules.forbids(one))
        for one in outcome.static
    )
    notes = (*outcome.notes, *rules.expired(day), *_merged(outcome, rules))
    return replace(
        outcome,
        findings=findings,
        static=static,
        notes=tuple(dict.fromkeys((*notes, *_unexplained(findings)))),
    )


def _apply(finding: Finding, rules: Rules, today: date) -> Finding:
    accepted = next((a for a in rules.accepted if a.covers(finding, today)), None)
    if accepted:
        return replace(finding, accepted=True, reason=accepted.reason)
    tolerance = rules.tolerance(finding.case, finding.mode, today)
    if tolerance:
        return replace(finding, tolerance=tolerance.share, reason=tolerance.reason)
    return finding


def _merged(outcome: Outcome, rules: Rules) -> Iterator[str]:
    """Yield a sentence for each accepted change that the base has already."""
    for finding in outcome.findings:
        for one in rules.accepted:
            named = (one.case, one.mode) == (finding.case, finding.mode)
            if named and one.head and finding.codes[0] == one.head:
                yield (
                    f"{rules.path}:{one.line}: the accepted change of {one.case} is in "
                    "the baseline; remove it."
                )


def _unexplained(findings: tuple[Finding, ...]) -> Iterator[str]:
    faster = [
        one.case
        for one in findings
        if one.verdict is Verdict.FASTER and not one.accepted
    ]
    names = list(dict.fromkeys(faster))
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield (
            f"{names[0]}{more}: faster, and nobody has said why; make sure that the work "
            "is still done, then say so by `steelyard accept CASE --reason TEXT`, and "
            "compare with this from now on, or the way back would pass for no change."
        )
