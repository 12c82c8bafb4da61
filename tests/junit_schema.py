"""What JUnit's XML may hold, as the schema of Jenkins's xUnit plugin has it.

Restated as a table (github.com/jenkinsci/xunit-plugin, junit-10.xsd): each element with
the attributes it needs, those it may have, and its children.
"""

from __future__ import annotations

from xml.etree import ElementTree as ET

TEXT = {"system-out", "system-err"}
ELEMENTS = {
    "testsuites": (
        set(),
        {"name", "time", "tests", "failures", "errors"},
        {"testsuite"},
    ),
    "testsuite": (
        {"name", "tests", "failures", "errors"},
        {"group", "time", "skipped", "timestamp", "hostname", "id", "package", "file"},
        {"testsuite", "properties", "testcase", *TEXT},
    ),
    "testcase": (
        {"name"},
        {"time", "classname", "group"},
        {"skipped", "failure", *TEXT},
    ),
    "properties": (set(), set(), {"property"}),
    "property": ({"name", "value"}, set(), set()),
    "failure": (set(), {"type", "message"}, set()),
    "skipped": (set(), {"type", "message"}, set()),
    "system-out": (set(), set(), set()),
    "system-err": (set(), set(), set()),
}
MIXED = {"failure", "skipped", *TEXT}
"""Elements that may hold text."""


def check(text):
    """Return the root of a valid document; fails with what is wrong of another."""
    root = ET.fromstring(text)
    assert root.tag in {"testsuites", "testsuite"}
    for element in root.iter():
        needed, optional, children = ELEMENTS[element.tag]
        assert needed <= set(element.attrib) <= needed | optional, element.attrib
        assert {child.tag for child in element} <= children, element.tag
        assert element.tag in MIXED or not (element.text or "").strip(), element.text
    for suite in root.iter("testsuite"):
        counted = {
            "tests": len(suite.findall("testcase")),
            "failures": len(suite.findall("testcase/failure")),
            "skipped": len(suite.findall("testcase/skipped")),
        }
        assert {n: int(suite.get(n, 0)) for n in counted} == counted
    return root
