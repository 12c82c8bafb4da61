"""JUnit's XML. Pure.

JUnit's schema (that of Jenkins, which others read too) gives properties to suites and
not to test cases; so each entry is a suite of one, and its numbers are that suite's
properties.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from xml.etree import ElementTree as ET

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
