"""An outcome as GitHub shows it: a job's summary, a comment, and annotations. Pure.

Short: the worst case in a sentence, then one table of what wants attention; explanations
are folded. Annotations are workflow commands, of a line each; what would end one, or a
property of it, is spelled by its number (docs.github.com, "Workflow commands for GitHub
Actions"; the escapes are those of its toolkit's ``command.ts``).
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from steelyard.analyse.verdict import Verdict
from steelyard.gate import words
from steelyard.gate.outcome import Finding, Outcome
from steelyard.report.grid import Line, sheet_of

MARKER: Final = "<!-- steelyard gate -->"
"""The first line, so that a workflow finds its own comment and replaces it."""

OPEN: Final = 10
"""Rows that stand open; more are no longer read."""

MOST: Final = 30_000
"""Characters of a lane's summary: two make one comment, and GitHub takes 65,536."""

EVERY: Final = "report.html, or `steelyard report gate`"
"""Where all rows are."""

MARKS: Final = {
    words.FAILURE: "❌",
    words.REGRESSED: "❌",
    "unresolved": "❔",
    "not-gateable": "❔",
    "spread": "🟢",
    "faster": "🟢",
}


def dumps(outcome: Outcome) -> str:
    """Return the whole text, cut where GitHub would refuse it."""
    text = "\n".join([MARKER, *_lines(outcome)]) + "\n"
    if len(text) <= MOST:
        return text
    cut = text[:MOST]
    rest = "\n</details>\n" * (cut.count("<details>") - cut.count("</details>"))
    return f"{cut.rpartition(chr(10))[0]}\n{rest}\nCut here: it is too long.\n"


def _lines(outcome: Outcome) -> Iterator[str]:
    yield f"### steelyard: {_plain(words.headline(outcome))}"
    if outcome.problem is not None:
        yield from ("", f"**No verdict**: {_plain(str(outcome.problem))}")
    for note in outcome.notes:
        yield from ("", f"> {_plain(note)}")
    every = words.in_order(outcome)
    loud = [one for one in every if words.kind(one) not in words.QUIET]
    if loud:
        yield from ("", f"**{_plain(words.sentence(loud[0]))}**")
        yield from ("", *_table(loud[:OPEN]))
        more = len(every) - len(loud[:OPEN])
        yield from ("", f"<sub>{more} more rows: {EVERY}</sub>") if more else ()
    yield from _explanations(loud)
    yield from _static(outcome)
    if every and not loud:
        yield from _folded(f"all {len(every)} rows", list(_table(every)))
    if words.trust(outcome):
        yield from ("", f"<sub>{_plain(words.trust(outcome))}</sub>")


def _table(findings: Sequence[Finding]) -> Iterator[str]:
    numbers = ("change", "95 %", "blocks", "smallest detectable change")
    titles = ("", "case", "mode", *numbers, "doubts", " ")
    # A bar ends a cell even inside a code span, and is escaped there too.
    return sheet_of(titles, map(_line, findings), right=numbers).markdown()


def _line(one: Finding) -> Line:
    kind = words.kind(one)
    *numbers, doubts, note = words.cells(one)
    mark = f"{MARKS.get(kind, '')} {kind}".strip()
    return mark, _code(one.case), one.mode, *numbers, _plain(doubts), _plain(note)


def _explanations(loud: Sequence[Finding]) -> Iterator[str]:
    found = [one for one in loud if one.changes or words.acceptable(one)]
    if found:
        lines = []
        for one in found:
            lines += [f"**{_plain(words.sentence(one))}**", ""]
            lines += [f"{n}. {_plain(why)}" for n, why in enumerate(one.changes, 1)]
            lines += [""] if one.changes else []
            if words.acceptable(one):
                lines += [f"If it is intended: {_code(words.acceptance(one.case))}", ""]
        yield from _folded("what may explain it", lines)


def _static(outcome: Outcome) -> Iterator[str]:
    changes = words.together(outcome.static)
    forbidden = [one for one in changes if one.forbidden]
    for one in forbidden:
        yield from ("", f"❌ {_plain(words.of_static(one))}")
    rest = [one for one in changes if not one.forbidden]
    if rest:
        lines = [f"- {_plain(words.of_static(one))}" for one in rest]
        yield from _folded(f"{len(rest)} changed in code", lines)


def _folded(title: str, lines: Sequence[str]) -> Iterator[str]:
    yield from ("", f"<details><summary>{title}</summary>", "")
    yield from lines
    yield from ("", "</details>")


def _code(text: str) -> str:
    """Return a code span that its text cannot leave: the fence is longer than any in it.

    CommonMark 0.31, section 6.1.
    """
    one_line = " ".join(text.split())
    longest = max(map(len, re.findall("`+", one_line)), default=0)
    fence = "`" * (longest + 1)
    space = " " if longest else ""
    return f"{fence}{space}{one_line}{space}{fence}"


def _plain(text: str) -> str:
    """Return text that Markdown and HTML leave alone."""
    safe = html.escape(" ".join(text.split()), quote=False)
    for sign in "\\`*_[]":
        safe = safe.replace(sign, f"\\{sign}")
    return safe.replace("@", "@\u200b")  # nobody is called by a benchmark's name


LEVELS: Final = {
    words.FAILURE: "error",
    words.REGRESSED: "error",
    str(Verdict.UNRESOLVED): "warning",
    str(Verdict.SPREAD): "notice",
    str(Verdict.FASTER): "notice",
}
"""What is annotated, and how loud; GitHub shows ten of a level and drops the rest."""

_ESCAPES: Final = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_IN_PROPERTIES: Final = _ESCAPES | str.maketrans({":": "%3A", ",": "%2C"})


def annotation_lines(outcome: Outcome) -> Iterator[str]:
    """Yield the commands; files are named as they lie in the checkout."""
    if outcome.problem is not None:
        yield command("error", str(outcome.problem), title="steelyard gate")
    for one in words.in_order(outcome):
        level = LEVELS.get(words.kind(one))
        if level:
            yield _annotation(level, one)
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


def _annotation(level: str, finding: Finding) -> str:
    root, place = Path(os.environ.get("GITHUB_WORKSPACE") or Path.cwd()), {}
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
    named = [f"{n}={v.translate(_IN_PROPERTIES)}" for n, v in properties.items()]
    return f"::{level} {','.join(named)}::{message.translate(_ESCAPES)}"
