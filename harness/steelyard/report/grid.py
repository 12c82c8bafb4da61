"""Tables: what they hold, for a terminal and as Markdown, and split to fit. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
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


def grid(
    title: str, heads: Sequence[str], titles: Sequence[str], lines: Iterable[Line]
) -> Sheet[Line]:
    """Return a table whose ``heads`` say which line it is; ``titles`` are of numbers."""
    whole = sheet_of((*heads, *titles), lines, title=title)
    numbers = (replace(one, right=True) for one in whole.columns[len(heads) :])
    return replace(whole, columns=(*whole.columns[: len(heads)], *numbers))


def width_of(column: Column[T], rows: Iterable[T]) -> int:
    """Return the columns of a terminal that a column takes."""
    from rich.cells import cell_len

    cells = (cell_len(str(column.cell(row))) for row in rows)
    return PADDING + DIVIDER + max(cell_len(column.title), *cells)


def fitting(whole: Sheet[T], width: int) -> Iterator[Sheet[T]]:
    """Yield it in parts that fit, one below the other; rows of nothing are left out.

    The columns of text that it begins with say which row it is: every part has them.
    """
    heads = tuple(itertools.takewhile(lambda one: not one.right, whole.columns))
    rest = whole.columns[len(heads) :]
    room = width - sum(width_of(one, whole.rows) for one in heads)
    sizes = [width_of(one, whole.rows) for one in rest]
    while rest:
        count = max(1, sum(end <= room for end in itertools.accumulate(sizes)))
        part, rest, sizes = rest[:count], rest[count:], sizes[count:]
        full = [r for r in whole.rows if {str(c.cell(r)) for c in part} != {NOTHING}]
        yield Sheet(whole.title, (*heads, *part), full)
