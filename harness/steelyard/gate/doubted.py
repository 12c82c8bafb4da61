"""What the doubts of both sides make of a finding. Pure.

What a gate does with each doubt, and why, is in the doubt's own row (`doubts.Doubt`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from steelyard.analyse import doubts
from steelyard.analyse.doubts import Act, Doubt
from steelyard.analyse.doubts.samples import UNSETTLED
from steelyard.analyse.trial import Trial
from steelyard.analyse.verdict import Verdict
from steelyard.gate.outcome import BASE, HEAD, Finding

DOUBTED: Final = "is doubted"
"""In the note of a finding that a doubt made what it is."""


def of(
    finding: Finding,
    base: Sequence[Trial],
    head: Sequence[Trial],
    accepted: Mapping[str, str] | None = None,
) -> Finding:
    """Return the finding with the doubts of both sides' trials and what they make of it.

    A doubt that fails a case does so where head has it. A case that became slower stays
    slower: no doubt makes that a pass. Doubts that are ``accepted``, each with its
    reason, are printed and change nothing.
    """
    sides = {BASE: _raised(base), HEAD: _raised(head)}
    names = (_names(sides[BASE]), _names(sides[HEAD]))
    both = (tuple(sorted({*a, *b})) for a, b in zip(finding.doubts, names, strict=True))
    found = replace(finding, doubts=(next(both), next(both)))
    for name, reason in (accepted or {}).items():
        if any(d.name == name for raised in sides.values() for d in raised):
            found = _noted(found, f"the policy accepts the doubt {name}: {reason}")
            sides = {
                s: [d for d in raised if d.name != name] for s, raised in sides.items()
            }
    for doubt in sides[HEAD]:
        if doubt.act is Act.FAIL:
            return _acted(replace(found, verdict=None, new=False), doubt, HEAD)
    for side, raised in sides.items():
        for doubt in raised:
            if _opens(doubt, finding.verdict):
                return _acted(replace(found, verdict=Verdict.UNRESOLVED), doubt, side)
    return found


def _opens(doubt: Doubt, verdict: Verdict | None) -> bool:
    """Whether a doubt of any side leaves a case of this verdict unresolved."""
    if verdict in {None, Verdict.SLOWER, Verdict.SPREAD, Verdict.IDENTICAL_CODE}:
        return False
    faster = doubt.act is Act.FASTER and verdict is Verdict.FASTER
    return faster or doubt.act in {Act.OPEN, Act.FAIL}


def acting(finding: Finding) -> list[str]:
    """Return the doubts for which a finding fails or is unresolved."""
    if DOUBTED not in finding.note:
        return []
    before = finding.judgement.verdict if finding.judgement else None
    names = {*chain(*finding.doubts)} & doubts.known().keys()
    named = [doubts.known()[name] for name in sorted(names)]
    seen = before or finding.verdict
    return [d.name for d in named if d.act is Act.FAIL or _opens(d, seen)]


def _acted(found: Finding, doubt: Doubt, side: str) -> Finding:
    return _noted(found, f"{side} {DOUBTED} ({doubt}): {doubt.reason}")


def _noted(found: Finding, words: str) -> Finding:
    return replace(found, note="; ".join(filter(None, [found.note, words])))


def _raised(trials: Sequence[Trial]) -> list[Doubt]:
    """Return the doubts of some trials, once each; newer steelyards' are left out."""
    names = {name for trial in trials for name in trial.doubts}
    return [doubts.known()[name] for name in sorted(names & doubts.known().keys())]


def _names(raised: Sequence[Doubt]) -> tuple[str, ...]:
    # A gate's visits are short: that one of them is unsettled says nothing of a case.
    return tuple(doubt.name for doubt in raised if doubt is not UNSETTLED)
