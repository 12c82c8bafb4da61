"""What is said of a finding, in the words that every surface shares. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from steelyard import units
from steelyard.analyse.verdict import Judgement, Verdict
from steelyard.errors import FAILED, FINE, REGRESSION, UNRESOLVED
from steelyard.gate import doubted
from steelyard.gate.outcome import (
    BASE,
    HEAD,
    Calibration,
    Finding,
    Outcome,
    StaticChange,
)
from steelyard.gate.policy import VANISHED, verdict_of
from steelyard.units import NOTHING

FAILURE: Final = "failed"
REGRESSED: Final = "regression"
TOLERATED: Final = "tolerated"
ACCEPTED: Final = "accepted"
NEW: Final = "new"

ORDER: Final = (
    *(FAILURE, REGRESSED, str(Verdict.SLOWER), str(Verdict.UNRESOLVED)),
    *(str(Verdict.NOT_GATEABLE), TOLERATED, ACCEPTED, str(Verdict.SPREAD)),
    str(Verdict.FASTER),
    *(NEW, str(Verdict.SAME), str(Verdict.IDENTICAL_CODE)),
)
"""What wants attention first."""

QUIET: Final = frozenset({str(Verdict.SAME), str(Verdict.IDENTICAL_CODE)})
"""What nobody needs to look at."""

MEANINGS: Final = {
    str(Verdict.UNRESOLVED): "too few blocks, or a doubt; a note says which",
    str(Verdict.NOT_GATEABLE): "this machine cannot detect a change of the tolerance's "
    "size",
    str(
        Verdict.SPREAD
    ): "the mean of all windows changed by more than 5 %, the quickest windows did not",
}
"""Verdicts that explain themselves least, as docs/gate.md has them."""

ENDINGS: Final = {
    FINE: "passed",
    REGRESSION: "regression",
    FAILED: "failed",
    UNRESOLVED: "unresolved",
}
"""What an exit code means; any other is a problem."""


def kind(finding: Finding) -> str:
    """Return what a finding comes to: its verdict as the policy sees it."""
    if finding.accepted:
        return ACCEPTED
    if finding.failed:
        return FAILURE
    if finding.verdict is None:
        return NEW
    if finding.regressed:
        return REGRESSED
    if finding.verdict is Verdict.SLOWER or (
        finding.verdict is Verdict.SPREAD and ratio(finding) > 1
    ):
        return TOLERATED
    return str(finding.verdict)


def in_order(outcome: Outcome) -> list[Finding]:
    """Return the findings, what wants attention first, the largest change before."""

    def key(finding: Finding) -> tuple[int, float]:
        change = abs(ratio(finding) - 1) if finding.judgement else 0.0
        known = math.isfinite(change)
        return ORDER.index(kind(finding)), -change if known else -math.inf

    return sorted(outcome.findings, key=key)


def counts(outcome: Outcome) -> dict[str, int]:
    """Return how many findings come to what, what wants attention first."""
    found = Counter(map(kind, outcome.findings))
    return {name: found[name] for name in ORDER if found[name]}


def names(findings: Sequence[Finding]) -> str:
    """Return how many cases of each benchmark have identical code."""
    found = Counter(
        one.case.partition("[")[0]
        for one in findings
        if kind(one) == Verdict.IDENTICAL_CODE
    )
    return ", ".join(f"{name} ({count})" for name, count in found.items())


def ending(outcome: Outcome) -> str:
    """Return what the gate says in a word."""
    return ENDINGS.get(outcome.exit_code, "no verdict")


def headline(outcome: Outcome) -> str:
    """Return the outcome in a sentence."""
    found = counts(outcome)
    forbidden = sum(bool(change.forbidden) for change in outcome.static)
    parts = [f"{count} {name}" for name, count in found.items()]
    if outcome.static:
        parts.append(f"{len(outcome.static)} changed in code")
    if forbidden:
        parts.append(f"{forbidden} forbidden by the policy")
    what = ", ".join(parts) or "nothing to judge"
    commit = re.fullmatch("[0-9a-f]{40}", outcome.head)
    head = outcome.head[:10] if commit else outcome.head
    return f"{ending(outcome)}: {head} against {outcome.baseline}: {what}"


def ratio(finding: Finding) -> float:
    """Return new over base; NaN of what was not measured."""
    return finding.judgement.ratio.value if finding.judgement else math.nan


def change(judgement: Judgement | None) -> str:
    """Write the change: ``+5.20 %``."""
    return units.percent(judgement.ratio.value - 1) if judgement else NOTHING


def interval(judgement: Judgement | None) -> str:
    """Write the change's interval: ``+3.10 to +7.30 %``."""
    if judgement is None:
        return NOTHING
    low, high = (100 * (end - 1) for end in (judgement.ratio.low, judgement.ratio.high))
    return f"{low:+.2f} to {high:+.2f} %"


def share(value: float) -> str:
    """Write a share: ``3.1 %``; nothing of an infinite one."""
    if not math.isfinite(value):
        return NOTHING
    percent = 100 * value
    # Two figures of 99.5 and more would be written with an exponent.
    return f"{percent:.0f} %" if percent >= 99.5 else f"{percent:.2g} %"


def doubts(finding: Finding) -> str:
    """Return the doubts of both sides: ``idle, preempted (head)``."""
    base, head = map(set, finding.doubts)
    side = dict.fromkeys(base - head, BASE) | dict.fromkeys(head - base, HEAD)
    return ", ".join(
        f"{name} ({side[name]})" if name in side else name
        for name in sorted(base | head)
    )


def cells(finding: Finding) -> tuple[str, ...]:
    """Return the change, its interval, blocks, what can be detected, doubts and a note."""
    judged = finding.judgement
    left = judged.more if judged else 0
    more = units.count(left, "more block") if left else ""
    return (
        change(judged),
        interval(judged),
        str(judged.blocks) if judged else NOTHING,
        share(judged.smallest) if judged else NOTHING,
        doubts(finding),
        "; ".join(filter(None, [more, finding.note, finding.reason])),
    )


def evidence(finding: Finding) -> str:
    """Return the numbers behind a verdict in a sentence."""
    judged = finding.judgement
    if judged is None:
        return "not measured"
    verb = "slower" if judged.ratio.value > 1 else "faster"
    percent = f"{abs(100 * (judged.ratio.value - 1)):.2f} %"
    words = f"{percent} {verb} [{interval(judged)}] in {judged.blocks} blocks"
    if judged.more:
        words += f", {judged.more} more would decide it"
    if math.isfinite(judged.smallest):
        words += f"; smallest detectable change {share(judged.smallest)}"
    return words


def sentence(finding: Finding) -> str:
    """Say what a finding is, what it rests on, and what the policy says to it."""
    parts = [f"{f'{finding.case} {finding.mode}'.strip()}: {kind(finding)}"]
    if finding.judgement is not None:
        parts.append(evidence(finding))
    if finding.tolerance and kind(finding) in {REGRESSED, TOLERATED}:
        parts.append(f"up to {share(finding.tolerance)} passes ({finding.reason})")
    elif finding.reason:
        parts.append(finding.reason)
    if finding.note:
        parts.append(finding.note)
    if any(finding.doubts):
        parts.append(f"doubts: {doubts(finding)}")
    return "; ".join(parts)


def explained(finding: Finding) -> list[str]:
    """Return the sentence, what may explain it, and the next step, a line each."""
    lines = [sentence(finding)]
    lines += [f"{n}. {words}" for n, words in enumerate(finding.changes, 1)]
    if acceptable(finding):
        lines.append(f"If it is intended: {acceptance(finding.case)}")
    return lines


def acceptable(finding: Finding) -> bool:
    """Tell whether a finding fails or is unresolved for what may be intended."""
    gone = verdict_of(finding) == VANISHED and not finding.accepted
    return kind(finding) == REGRESSED or gone or bool(doubted.acting(finding))


def acceptance(case: str) -> str:
    """Return the command that accepts a case's change."""
    return f"steelyard accept '{case}' --reason TEXT"


def together(changes: Sequence[StaticChange]) -> list[StaticChange]:
    """Return changes with the targets joined that changed in the same words."""
    found: dict[tuple[str, tuple[str, ...], str], list[str]] = {}
    for one in changes:
        found.setdefault((one.case, one.changes, one.forbidden), []).append(one.target)
    alike = {(one.case, one.changes, one.forbidden): one for one in changes}
    return [replace(alike[key], target=",".join(names)) for key, names in found.items()]


def of_static(change: StaticChange) -> str:
    """Say what changed in a kernel's code."""
    return f"{change.case} on {on_targets(change)}"


def on_targets(change: StaticChange) -> str:
    """Say on which targets what changed, and why that is forbidden."""
    targets = change.target.replace(",", ", ")
    words = f"{targets}: {', '.join(change.changes)}"
    return f"{words}; {change.forbidden}" if change.forbidden else words


def trust(outcome: Outcome) -> str:
    """Say what is known of the gate itself on this machine, where it measured there."""
    measured = any(finding.judgement for finding in outcome.findings)
    return calibrated(outcome.calibration) if measured else ""


def calibrated(found: Calibration | None) -> str:
    """Say what a self-test came to."""
    if found is None:
        return (
            "The gate was never tried on this machine: `steelyard selftest` says how "
            "often it is wrong here."
        )
    low, high = 100 * found.rate.low, 100 * found.rate.high
    words = (
        f"Self-test of {found.measured[:10]}: {found.alarms} false alarms in "
        f"{found.comparisons} comparisons ({low:.2g} to {high:.2g} %)"
    )
    power = [f"{share(size)} in {share(p)}" for size, p in sorted(found.power.items())]
    injected = f"; injected slowdowns found: {', '.join(power)}" if power else ""
    return f"{words}{injected}."
