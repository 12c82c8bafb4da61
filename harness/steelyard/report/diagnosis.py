"""The table of `doctor`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from steelyard.machine.doctor import Finding
from steelyard.report.grid import sheet_of

STYLES = {"ok": "green", "doubt": "yellow", "unknown": "dim", "none": "dim"}

NARROW: Final = 120
"""Columns below which five of them fold into towers of words."""


def page(found: Sequence[Finding], width: int) -> RenderableType:
    """Return the findings as a table, or below each other where that is too wide."""
    return table(found) if width >= NARROW else listing(found)


def listing(found: Sequence[Finding]) -> Table:
    """Return a paragraph a finding behind its verdict."""
    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(no_wrap=True)
    made.add_column(overflow="fold")
    for one in found:
        words = Text(f"{one.topic}: {one.seen}")
        rest = "; ".join(filter(None, [one.why, one.advice]))
        if rest:
            words.append(f"\n{rest}", style="dim")
        made.add_row(Text(one.verdict, style=STYLES[one.verdict]), words)
    return made


def table(found: Sequence[Finding]) -> RenderableType:
    """Return a line a finding: what was seen, what it does, what to do."""
    titles = ("topic", "seen", "verdict", "what it does to numbers", "advice")
    lines = (
        (
            *(one.topic, one.seen),
            Text(one.verdict, style=STYLES[one.verdict]),
            *(one.why, one.advice),
        )
        for one in found
    )
    return sheet_of(titles, lines, folds=titles)
