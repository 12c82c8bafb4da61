"""An outcome as JUnit's XML: one test case a benchmark and mode. Pure.

What is no pass is a failure; what this machine cannot tell at any price is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from steelyard.analyse.verdict import Verdict
from steelyard.gate import words
from steelyard.gate.outcome import Finding, Outcome, StaticChange
from steelyard.report import junit
from steelyard.report.junit import Entry

FAILING: Final = frozenset({words.FAILURE, words.REGRESSED, str(Verdict.UNRESOLVED)})
"""What is no pass, by itself."""


def dumps(outcome: Outcome) -> str:
    """Return the document's text; it fails where the gate does, whatever its cases say."""
    entries = list(_entries(outcome))
    if outcome.exit_code and not any(one.failure for one in entries):
        headline = words.headline(outcome)
        entries.append(Entry("steelyard.gate", "verdict", headline, "gate"))
    return junit.dumps("steelyard gate", entries)


def _entries(outcome: Outcome) -> Iterator[Entry]:
    if outcome.problem is not None:
        yield Entry("steelyard.gate", "baseline", str(outcome.problem), "problem")
    yield from map(_finding, words.in_order(outcome))
    yield from map(_static, outcome.static)


def _finding(finding: Finding) -> Entry:
    kind = words.kind(finding)
    failing = kind in FAILING
    return Entry(
        group=finding.case.partition("[")[0],
        name=f"{finding.case} {finding.mode}",
        message=words.sentence(finding),
        failure=kind if failing else "",
        skipped=kind == Verdict.NOT_GATEABLE,
        details="\n".join(words.explained(finding)) if failing else "",
        properties=_properties(finding),
    )


def _properties(finding: Finding) -> dict[str, str]:
    """Return the numbers of a finding; what is not known is left out."""
    judged = finding.judgement
    found = {"verdict": words.kind(finding)}
    if judged is not None:
        found |= {
            "ratio": repr(judged.ratio.value),
            "low": repr(judged.ratio.low),
            "high": repr(judged.ratio.high),
            "blocks": str(judged.blocks),
            "smallest_detectable_change": repr(judged.smallest),
        }
    if finding.file:
        found["source"] = f"{finding.file}:{finding.line}"
    if any(finding.doubts):
        found["doubts"] = words.doubts(finding)
    if finding.reason:
        found["reason"] = finding.reason
    return found | {"tolerance": repr(finding.tolerance)}


def _static(change: StaticChange) -> Entry:
    return Entry(
        group="steelyard.static",
        name=f"{change.case} on {change.target}",
        message=words.of_static(change),
        failure="forbidden" if change.forbidden else "",
    )
