"""JUnit's XML. Pure.

JUnit's schema (that of Jenkins, which others read too) gives properties to suites and
not to test cases; so each entry is a suite of one, and its numbers are that suite's
properties. Of a gate, what is no pass is a failure, and what a machine cannot tell at any
price is skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final
from xml.etree import ElementTree as ET

from steelyard.analyse.verdict import Verdict
from steelyard.gate import words
from steelyard.gate.outcome import Finding, Outcome, StaticChange

_FORBIDDEN: Final = re.compile(
    "[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
)
"""What XML 1.0 cannot hold, not even escaped."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One test case."""

    group: str
    name: str
    message: str = ""
    failure: str = ""
    """The kind of failure; empty where it is none."""
    skipped: bool = False
    details: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)


def dumps(title: str, entries: Iterable[Entry]) -> str:
    """Return the document's text."""
    root = ET.Element("testsuites", name=title)
    for one in entries:
        _suite(root, one)
    for name in ("tests", "failures", "errors"):
        root.set(name, str(sum(int(suite.get(name, 0)) for suite in root)))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(root: ET.Element, one: Entry) -> None:
    suite = ET.SubElement(
        root,
        "testsuite",
        name=_text(one.name),
        tests="1",
        failures=str(int(bool(one.failure))),
        errors="0",
    )
    if one.properties:
        properties = ET.SubElement(suite, "properties")
        for name, value in one.properties.items():
            ET.SubElement(properties, "property", name=name, value=_text(value))
    names = {"classname": _text(one.group), "name": _text(one.name)}
    case = ET.SubElement(suite, "testcase", names)
    message = _text(one.message)
    if one.failure:
        said = {"message": message, "type": one.failure}
        ET.SubElement(case, "failure", said).text = _text(one.details or one.message)
    elif one.skipped:
        suite.set("skipped", "1")
        ET.SubElement(case, "skipped", message=message)
    elif message:
        ET.SubElement(case, "system-out").text = message


def _text(value: str) -> str:
    """Return what XML can hold."""
    return _FORBIDDEN.sub("\ufffd", value)


FAILING: Final = frozenset({words.FAILURE, words.REGRESSED, str(Verdict.UNRESOLVED)})
"""What is no pass, by itself."""


def of_gate(outcome: Outcome) -> str:
    """Return the document's text; it fails where the gate does, whatever its cases say."""
    entries = list(_entries(outcome))
    if outcome.exit_code and not any(one.failure for one in entries):
        headline = words.headline(outcome)
        entries.append(Entry("steelyard.gate", "verdict", headline, "gate"))
    return dumps("steelyard gate", entries)


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
        properties=_numbers(finding),
    )


def _numbers(finding: Finding) -> dict[str, str]:
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
