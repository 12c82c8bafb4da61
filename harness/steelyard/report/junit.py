"""An outcome as JUnit's XML: one test case a benchmark, in a suite of its own. Pure.

JUnit's schema (that of Jenkins, which others read too) gives properties to suites and
not to test cases; so each case in each mode is a suite of one, and its numbers are that
suite's properties. What is no pass is a failure; what this machine cannot tell at any
price is skipped.
"""

from __future__ import annotations

import re
from typing import Final
from xml.etree import ElementTree as ET

from steelyard.analyse.verdict import Verdict
from steelyard.gate import words
from steelyard.gate.outcome import Finding, Outcome, StaticChange

FAILING: Final = frozenset({words.FAILURE, words.REGRESSED, str(Verdict.UNRESOLVED)})
"""What is no pass, by itself."""

_FORBIDDEN: Final = re.compile(
    "[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
)
"""What XML 1.0 cannot hold, not even escaped."""


def dumps(outcome: Outcome) -> str:
    """Return the document's text."""
    root = ET.Element("testsuites", name="steelyard gate")
    if outcome.problem is not None:
        _alone(root, "steelyard.gate", "baseline", str(outcome.problem), "problem")
    for one in words.in_order(outcome):
        _finding(root, one)
    for change in outcome.static:
        _static(root, change)
    _none_passed(root, outcome)
    for name in ("tests", "failures", "errors"):
        root.set(name, str(sum(int(suite.get(name, 0)) for suite in root)))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _none_passed(root: ET.Element, outcome: Outcome) -> None:
    """Make the document fail where the gate does, whatever its cases say."""
    failures = any(int(suite.get("failures", 0)) for suite in root)
    if outcome.exit_code and not failures:
        _alone(root, "steelyard.gate", "verdict", words.headline(outcome), "gate")


def _finding(root: ET.Element, finding: Finding) -> None:
    kind = words.kind(finding)
    suite = _suite(root, f"{finding.case} {finding.mode}", failed=kind in FAILING)
    properties = ET.SubElement(suite, "properties")
    for name, value in _properties(finding).items():
        ET.SubElement(properties, "property", name=name, value=_text(value))
    case = _case(
        suite, finding.case.partition("[")[0], f"{finding.case} {finding.mode}"
    )
    if kind in FAILING:
        _failure(
            case, words.sentence(finding), kind, "\n".join(words.explained(finding))
        )
    elif kind == Verdict.NOT_GATEABLE:
        suite.set("skipped", "1")
        ET.SubElement(case, "skipped", message=_text(words.sentence(finding)))
    else:
        ET.SubElement(case, "system-out").text = _text(words.sentence(finding))


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


def _static(root: ET.Element, change: StaticChange) -> None:
    name = f"{change.case} on {change.target}"
    if change.forbidden:
        _alone(root, "steelyard.static", name, words.of_static(change), "forbidden")
    else:
        suite = _suite(root, name, failed=False)
        case = _case(suite, "steelyard.static", name)
        ET.SubElement(case, "system-out").text = _text(words.of_static(change))


def _alone(root: ET.Element, group: str, name: str, why: str, kind: str) -> None:
    suite = _suite(root, name, failed=True)
    _failure(_case(suite, group, name), why, kind, why)


def _suite(root: ET.Element, name: str, *, failed: bool) -> ET.Element:
    return ET.SubElement(
        root,
        "testsuite",
        name=_text(name),
        tests="1",
        failures=str(int(failed)),
        errors="0",
    )


def _case(suite: ET.Element, group: str, name: str) -> ET.Element:
    return ET.SubElement(suite, "testcase", classname=_text(group), name=_text(name))


def _failure(case: ET.Element, message: str, kind: str, text: str) -> None:
    failure = ET.SubElement(case, "failure", message=_text(message), type=kind)
    failure.text = _text(text)


def _text(value: str) -> str:
    """Return what XML can hold."""
    return _FORBIDDEN.sub("\ufffd", value)
