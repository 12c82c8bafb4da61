"""Tables: what they hold, as Markdown, and for a terminal, split to fit it. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

from steelyard.machine.printable import printable
from steelyard.units import NOTHING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table
    from rich.text import Text

PADDING: Final = 2
"""Columns behind a cell."""

BETWEEN: Final = PADDING + 1
"""Columns between two cells: the box draws a space."""

READABLE: Final = 20
"""Columns that folded text has at least."""

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
    names: bool = False
    """Whether it says which row it is: every part of a table that is split has it."""

    def said(self, row: T) -> Cell:
        """Return its cell as a terminal shows it, so that its width is known."""
        cell = self.cell(row)
        if isinstance(cell, str):
            return printable(cell, len(cell), keep="\n")
        return cell

    def width(self, rows: Iterable[T]) -> int:
        """Return the columns of a terminal that it takes at least."""
        from rich.cells import cell_len

        cells = [self.title, *(str(self.said(row)) for row in rows)]
        longest = max(cell_len(line) for cell in cells for line in cell.split("\n"))
        return min(longest, READABLE) if self.folds else longest


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

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """Show it in parts that fit, one below the other."""
        from rich.text import Text

        for place, part in enumerate(self.fitting(options.max_width)):
            if place:
                yield ""
            if part.title:
                yield Text(part.title, style="bold")
            yield part.table()

    def fitting(self, width: int) -> Iterator[Sheet[T]]:
        """Yield parts of it that are no wider, without the columns that go first.

        Each part has the columns that name its rows, folded where that makes room, and
        leaves out rows of which it has nothing. What names all rows alike is in the
        first one's title.
        """
        sized = [(one, one.width(self.rows)) for one in self.columns]
        while _total(sized) > width and any(one.sheds for one, _ in sized):
            sized.remove(max(sized, key=lambda pair: pair[0].sheds))
        heads = [pair for pair in sized if pair[0].names]
        rest = [pair for pair in sized if not pair[0].names]
        if _total(sized) <= width or not rest:
            yield replace(self, columns=[one for one, _ in sized])
            return
        alike = [h for h, _ in heads if len({str(h.cell(r)) for r in self.rows}) == 1]
        if alike:
            words = [f"{one.title} {one.said(self.rows[0])}" for one in alike]
            title = ", ".join(filter(None, [self.title, *words]))
            left = replace(self, columns=[c for c, _ in sized if c not in alike])
            for place, sheet in enumerate(left.fitting(width)):
                yield sheet if place else replace(sheet, title=title)
            return
        if _total(heads) + BETWEEN + max(size for _, size in rest) > width:
            heads = [(replace(h, folds=True), min(n, READABLE)) for h, n in heads]
        room = width - _total(heads)
        while rest:
            ends = itertools.accumulate(BETWEEN + size for _, size in rest)
            count = max(1, sum(end <= room for end in ends))
            part = [replace(c, folds=c.folds or n > room) for c, n in rest[:count]]
            columns = [*(one for one, _ in heads), *part]
            if rows := _full(self.rows, part):
                yield replace(self, columns=columns, rows=rows)
            rest = rest[count:]

    def table(self) -> Table:
        """Return it as rich has tables: one, however wide."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        made = Table(
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            show_edge=False,
            padding=(0, PADDING, 0, 0),
        )
        for column in self.columns:
            made.add_column(
                Text(column.title),
                justify="right" if column.right else "left",
                no_wrap=not column.folds,
                overflow="fold",
            )
        for row in self.rows:
            cells = (column.said(row) for column in self.columns)
            made.add_row(*(Text(c) if isinstance(c, str) else c for c in cells))
        return made


Line: TypeAlias = "tuple[str | Text, ...]"


def sheet_of(
    titles: Sequence[str],
    lines: Iterable[Line],
    *,
    title: str = "",
    names: int = 1,
    right: Collection[str] = (),
    folds: Collection[str] = (),
) -> Sheet[Line]:
    """Return a table of lines that are made already.

    The first ``names`` columns say which line it is; ``right`` and ``folds`` are titles.
    """
    columns: list[Column[Line]] = [
        Column(
            name,
            itemgetter(at),
            right=name in right,
            folds=name in folds,
            names=at < names,
        )
        for at, name in enumerate(titles)
    ]
    return Sheet(title, columns, tuple(lines))


def grid(
    title: str, heads: Sequence[str], titles: Sequence[str], lines: Iterable[Line]
) -> Sheet[Line]:
    """Return a table whose ``heads`` say which line it is; ``titles`` are of numbers."""
    whole = sheet_of((*heads, *titles), lines, title=title, names=len(heads))
    return replace(
        whole, columns=[replace(one, right=not one.names) for one in whole.columns]
    )


def _total(sized: Sequence[tuple[Column[T], int]]) -> int:
    """Return the columns of a terminal that columns of these sizes take."""
    return sum(size + BETWEEN for _, size in sized) - BETWEEN


def _full(rows: Iterable[T], part: Sequence[Column[T]]) -> list[T]:
    """Return the rows of which any of these columns has something."""
    return [r for r in rows if not {str(c.cell(r)) for c in part} <= {"", NOTHING}]
