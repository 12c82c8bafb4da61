"""Tables of text that are split where they do not fit. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rich import box
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from steelyard.report.text import NOTHING

PADDING: Final = 2
"""Columns behind a cell."""

DIVIDER: Final = 1
"""Columns of what the box draws between two cells: a space."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A table: ``heads`` are columns that say which row it is, ``titles`` the others."""

    title: str
    heads: tuple[str, ...]
    titles: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]

    def markdown(self) -> Iterator[str]:
        """Yield its lines as Markdown."""
        marks = ["---"] * len(self.heads) + ["---:"] * len(self.titles)
        for cells in ((*self.heads, *self.titles), marks, *self.lines):
            yield "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"

    def shown(self) -> RenderableType:
        """Return it for a terminal, below its title."""
        table = Table(
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            show_edge=False,
            padding=(0, PADDING, 0, 0),
        )
        for name in (*self.heads, *self.titles):
            side = "left" if name in self.heads else "right"
            table.add_column(Text(name), justify=side, no_wrap=True)  # type: ignore[arg-type] # a Literal of both
        for line in self.lines:
            table.add_row(*map(Text, line))
        return Group(Text(self.title, style="bold"), table)


def fitting(whole: Grid, width: int) -> Iterator[Grid]:
    """Yield it in parts that fit, one below the other; rows of nothing are left out."""
    first = len(whole.heads)
    sizes = [
        PADDING + DIVIDER + max(map(cell_len, column))
        for column in zip((*whole.heads, *whole.titles), *whole.lines, strict=True)
    ]
    begin = first
    while begin < len(sizes):
        end = begin + 1
        while end < len(sizes) and sum(sizes[:first] + sizes[begin : end + 1]) <= width:
            end += 1
        lines = [(*line[:first], *line[begin:end]) for line in whole.lines]
        full = [line for line in lines if set(line[first:]) != {NOTHING}]
        titles = whole.titles[begin - first : end - first]
        yield Grid(whole.title, whole.heads, titles, tuple(full))
        begin = end
