"""An outcome as GitHub's workflow commands: an annotation at the benchmark's line. Pure.

A command is one line; what would end it, or a property of it, is spelled by its number
(docs.github.com, "Workflow commands for GitHub Actions"; the escapes are those of its
toolkit's ``command.ts``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from steelyard.analyse.verdict import Verdict
from steelyard.gate import words
from steelyard.gate.outcome import Finding, Outcome

LEVELS: Final = {
    words.FAILURE: "error",
    words.REGRESSED: "error",
    str(Verdict.UNRESOLVED): "warning",
    str(Verdict.SPREAD): "notice",
    str(Verdict.FASTER): "notice",
}
"""What is annotated, and how loud; GitHub shows ten of a level and drops the rest."""

_ESCAPES: Final = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_IN_PROPERTIES: Final = _ESCAPES | {":": "%3A", ",": "%2C"}


def lines(outcome: Outcome, root: Path | None = None) -> Iterator[str]:
    """Yield the commands; files are named as they lie under ``root``, the checkout."""
    if outcome.problem is not None:
        yield command("error", str(outcome.problem), title="steelyard gate")
    for one in words.in_order(outcome):
        level = LEVELS.get(words.kind(one))
        if level:
            yield _finding(level, one, root or checkout())
    quiet = [
        f"{one.case} {one.mode}: {words.doubts(one)}"
        for one in words.in_order(outcome)
        if any(one.doubts) and words.kind(one) not in LEVELS
    ]
    if quiet:  # in one: GitHub shows ten of a level
        yield command("notice", "\n".join(quiet), title="doubts")
    for change in words.together(outcome.static):
        level = "error" if change.forbidden else "notice"
        yield command(level, words.of_static(change), title=f"{change.case} changed")


def checkout() -> Path:
    """Return the folder that annotations count from."""
    return Path(os.environ.get("GITHUB_WORKSPACE") or Path.cwd())


def _finding(level: str, finding: Finding, root: Path) -> str:
    place = {}
    if finding.file:
        path = Path(finding.file)
        inside = path.is_absolute() and path.is_relative_to(root)
        place["file"] = (path.relative_to(root) if inside else path).as_posix()
        if finding.line > 0:
            place["line"] = str(finding.line)
    title = f"{finding.case} {finding.mode}: {words.kind(finding)}"
    return command(level, "\n".join(words.explained(finding)), **place, title=title)


def command(level: str, message: str, **properties: str) -> str:
    """Return one workflow command."""
    named = [f"{n}={_escaped(v, _IN_PROPERTIES)}" for n, v in properties.items()]
    return f"::{level} {','.join(named)}::{_escaped(message, _ESCAPES)}"


def _escaped(text: str, table: dict[str, str]) -> str:
    return "".join(table.get(sign, sign) for sign in text)
