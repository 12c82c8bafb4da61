"""Tables: what they hold, for a terminal and as Markdown, and split to fit. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

from steelyard.units import NOTHING

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

PADDING: Final = 2
"""Columns behind a cell."""

DIVIDER: Final = 1
"""Columns of what the box draws between two cells: a space."""


T = TypeVar("T")

Cell: TypeAlias = "str | Text"
"""Text of a cell, in a style where a terminal has any."""


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """One column of a table whose rows are values of one type."""

    title: str
    cell: Callable[[T], Cell]
    right: bool = True
    sheds: int = 0
    """Where the terminal is narrow columns go by this rank, the highest first; 0
    stays."""
    folds: bool = False
    """Whether its text is wrapped where the terminal is narrow."""


@dataclass(frozen=True, slots=True)
class Sheet(Generic[T]):
    """A table before it is shown: its columns, and what a line is made of each."""

    title: str
    columns: Sequence[Column[T]]
    rows: Sequence[T]

    def lines(self) -> Iterator[list[str]]:
        """Yield the text of each line's cells."""
        for row in self.rows:
            yield [str(column.cell(row)) for column in self.columns]

    def markdown(self) -> Iterator[str]:
        """Yield its lines as Markdown."""
        marks = ["---:" if column.right else "---" for column in self.columns]
        for cells in ([c.title for c in self.columns], marks, *self.lines()):
            yield "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"

    def shown(self) -> RenderableType:
        """Return it for a terminal, below its title."""
        from rich import box
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            show_edge=False,
            padding=(0, PADDING, 0, 0),
        )
        for column in self.columns:
            table.add_column(
                Text(column.title),
                justify="right" if column.right else "left",
                no_wrap=not column.folds,
                overflow="fold",
            )
        for row in self.rows:
            cells = (column.cell(row) for column in self.columns)
            table.add_row(*(Text(c) if isinstance(c, str) else c for c in cells))
        return Group(Text(self.title, style="bold"), table) if self.title else table


Line: TypeAlias = "tuple[str | Text, ...]"


def sheet_of(
    titles: Sequence[str],
    lines: Iterable[Line],
    *,
    title: str = "",
    right: Collection[str] = (),
    folds: Collection[str] = (),
) -> Sheet[Line]:
    """Return a table of lines that are made already; ``right`` and ``folds`` are titles."""
    columns: list[Column[Line]] = [
        Column(name, itemgetter(at), name in right, folds=name in folds)
        for at, name in enumerate(titles)
    ]
    return Sheet(title, columns, tuple(lines))


@dataclass(frozen=True, slots=True)
class Grid:
    """A table: ``heads`` are columns that say which row it is, ``titles`` the others."""

    title: str
    heads: tuple[str, ...]
    titles: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]

    @property
    def sheet(self) -> Sheet[Line]:
        """The same table; numbers are what is in no head."""
        heads: list[Column[Line]] = [
            Column(name, itemgetter(at), right=at >= len(self.heads))
            for at, name in enumerate((*self.heads, *self.titles))
        ]
        return Sheet(self.title, heads, self.lines)


def fitting(whole: Grid, width: int) -> Iterator[Grid]:
    """Yield it in parts that fit, one below the other; rows of nothing are left out."""
    from rich.cells import cell_len

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
