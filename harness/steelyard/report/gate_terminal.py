"""An outcome in a terminal, and the door to its other forms."""

from __future__ import annotations

import contextlib
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from steelyard.analyse.verdict import Verdict
from steelyard.gate import words
from steelyard.gate.outcome import Finding, Outcome
from steelyard.machine import files
from steelyard.report import gate_markdown, tables
from steelyard.report.formats import formats
from steelyard.report.grid import Cell, Column, Line, Sheet
from steelyard.units import NOTHING

STYLES: Final = {
    words.FAILURE: "bold red",
    words.REGRESSED: "bold red",
    "unresolved": "yellow",
    "not-gateable": "yellow",
    "spread": "green",
    "faster": "green",
}

ALWAYS: Final = ("case", "mode", "verdict", "change")
NUMBERS: Final = ("change", "95 %", "blocks", "detectable")
TITLES: Final = ("case", "mode", "verdict", *NUMBERS, "doubts", "note")


def page(outcome: Outcome) -> Iterator[RenderableType]:
    """Yield what a terminal shows: the rows, what explains the bad ones, the ending."""
    every = words.in_order(outcome)
    rows = [one for one in every if words.kind(one) != Verdict.IDENTICAL_CODE]
    if rows:
        yield from ("", sheet(rows))
    if len(rows) < len(every):
        yield Text(f"\nidentical code, not measured: {words.names(every)}")
    for one in every:
        more = one.changes or words.acceptable(one)
        if more and words.kind(one) not in words.QUIET:
            yield Text("\n" + "\n".join(words.explained(one)))
    seen = {
        name: tables.hint(name, gated=True)
        for name in sorted({x for one in every for side in one.doubts for x in side})
    }
    seen |= {k: v for k, v in words.MEANINGS.items() if k in map(words.kind, every)}
    if seen:
        lines = "\n".join(f"{name}: {said}" for name, said in seen.items())
        yield Text(f"\n{lines}", style="yellow")
    yield from _static(outcome)
    for note in outcome.notes:
        yield Text(f"\n{note}", style="dim")
    if words.trust(outcome):
        yield Text(f"\n{words.trust(outcome)}", style="dim")
    if outcome.problem is not None:
        yield Text(f"\n{outcome.problem}", style="red")
    bad = outcome.exit_code != 0
    ending = f"\n{words.headline(outcome)}"
    yield Text(ending, style="bold red" if bad else "bold green")


def _static(outcome: Outcome) -> Iterator[RenderableType]:
    """Yield what changed in code, a paragraph a case."""
    changes = words.together(outcome.static)
    for case in dict.fromkeys(change.case for change in changes):
        yield Text(f"\n{case}", style="bold")
        for change in changes:
            if change.case == case:
                style = "red" if change.forbidden else ""
                yield Text(f"  {words.on_targets(change)}", style=style)


def sheet(findings: Sequence[Finding]) -> Sheet[Finding]:
    """Return the table of findings, with the columns that they have something for."""
    seen = [
        {str(cell) for cell in cells}
        for cells in zip(*map(_line, findings), strict=True)
    ]
    columns = [
        Column(
            title,
            _cell(at),
            right=title in NUMBERS,
            folds=title == "case",
            names=title in {"case", "mode"},
        )
        for at, title in enumerate(TITLES)
        if title in ALWAYS or not seen[at] <= {"", NOTHING}
    ]
    return Sheet("", columns, findings)


def _cell(at: int) -> Callable[[Finding], Cell]:
    return lambda one: _line(one)[at]


def _line(one: Finding) -> Line:
    kind = words.kind(one)
    return one.case, one.mode, Text(kind, STYLES.get(kind, "")), *words.cells(one)


def dumps(outcome: Outcome, shape: str) -> str:
    """Return the outcome's text in a format, a table as wide as a page."""
    if shape == "table":
        return tables.captured(page(outcome))
    write = formats()[shape].gate
    assert write is not None, shape
    return write(outcome)


def write(
    outcome: Outcome,
    shape: str = "table",
    output: str | None = None,
    *,
    annotations: bool = False,
) -> None:
    """Show an outcome on standard output or in a file; annotations are always shown.

    A file of JSON would not do with lines of annotations in it: beside another form
    than a table they go to standard error, which a workflow reads too.

    Raises:
        SteelyardError: the file cannot be written.
    """
    to_file = output not in {None, "-"}
    if to_file:
        hint = "Name another file; `steelyard verdict` shows the same outcome again."
        files.save(str(output), dumps(outcome, shape), "--output", hint)
    elif shape == "table":
        with _no_commands() if annotations else contextlib.nullcontext():
            tables.console().print(*page(outcome), sep="\n")
    else:
        sys.stdout.write(dumps(outcome, shape))
    if annotations:
        stream = sys.stdout if to_file or shape == "table" else sys.stderr
        stream.writelines(
            f"{line}\n" for line in gate_markdown.annotation_lines(outcome)
        )
        stream.flush()


@contextlib.contextmanager
def _no_commands() -> Iterator[None]:
    """Keep GitHub from reading commands in what is printed: ids and notes are anybody's.

    See "Stopping and starting workflow commands" in GitHub's documentation.
    """
    token = secrets.token_hex()
    sys.stdout.write(f"::stop-commands::{token}\n")
    try:
        yield
    finally:
        sys.stdout.write(f"::{token}::\n")
