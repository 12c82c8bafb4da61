"""One axis, or the mode, across a table: a row a case, and ± in every cell. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from rich.console import RenderableType
from rich.text import Text

from steelyard import units
from steelyard.analyse.rows import Row, by_value, mode_rank
from steelyard.analyse.trial import Run
from steelyard.declare.axes import text_of
from steelyard.errors import SteelyardError
from steelyard.report import columns, tables, text
from steelyard.report.grid import Line, Sheet, grid

MODE: Final = "mode"
DOUBTED: Final = " ?"
"""Ends a cell whose row has doubts."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one cell says, and where it stands."""

    benchmark: str
    axes: Mapping[str, Any]
    mode: str
    cell: str

    def place(self, name: str) -> Any:
        """Return the value of an axis, or the mode."""
        return self.mode if name == MODE else self.axes.get(name)


def require(points: Iterable[Mapping[str, Any]], across: str) -> None:
    """Refuse an axis that no case has.

    Raises:
        SteelyardError: the sentence has those there are.
    """
    axes = sorted({name for point in points for name in point})
    if across != MODE and across not in axes:
        known = ", ".join(difflib.get_close_matches(across, axes, 1) or axes)
        raise SteelyardError(
            f"--across {across}: no case has this axis; expected mode, or one of the "
            f"axes: {known or 'there are none'}."
        )


def sheet(readings: Sequence[Reading], across: str, what: str = "") -> Sheet[Line]:
    """Return the table of one benchmark's readings; ``what`` ends its title."""
    names = dict.fromkeys(n for one in readings for n in (*one.axes, MODE))
    found = {n: dict.fromkeys(one.place(n) for one in readings) for n in names}
    heads = [n for n in names if n != across and len(found[n]) > 1]
    shared = [n for n in names if n != across and len(found[n]) == 1 and n != MODE]
    values = sorted(
        found.get(across, ()), key=mode_rank if across == MODE else by_value
    )
    lines: dict[tuple[str, ...], dict[Any, str]] = {}
    for one in readings:
        row = lines.setdefault(tuple(_written(one.place(n)) for n in heads), {})
        row[one.place(across)] = one.cell
    inside = ",".join(f"{n}={_written(next(iter(found[n])))}" for n in shared)
    mode = readings[0].mode if across != MODE and len(found[MODE]) == 1 else ""
    words = (readings[0].benchmark + f"[{inside}]" * bool(inside), mode, what)
    titles = [f"{across}={v}" if across != MODE else str(v) for v in values]
    made = (
        (*key, *(row.get(v, units.NOTHING) for v in values))
        for key, row in lines.items()
    )
    return grid(" ".join(filter(None, words)), heads, titles, made)


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return text_of(value)
    return units.NOTHING if value is None else str(value)


def sheets(
    made: Sequence[Row], across: str, wanted: Sequence[str] = ()
) -> list[Sheet[Line]]:
    """Return the tables of a benchmark: of time, then of each wanted column.

    ``wanted`` are names of `columns.EXTRAS`. Benchmarks without the axis have none.
    """
    cells: dict[str, Callable[[Row], str]] = {"": _time}
    cells |= {columns.EXTRAS[name][0]: columns.EXTRAS[name][1] for name in wanted}
    if any(row.relative for row in made):
        cells["relative"] = lambda row: text.ratio(row.relative)
    found = []
    for _, rows in groupby(made, key=lambda row: row.benchmark):
        group = [r for r in rows if r.trials and (across == MODE or across in r.axes)]
        for what, cell in cells.items():
            readings = [Reading(r.benchmark, r.axes, r.mode, cell(r)) for r in group]
            if any(one.cell != units.NOTHING for one in readings):
                found.append(sheet(readings, across, what))
    return found


def _time(row: Row) -> str:
    said = f"{text.time(row)} {text.margin(row.estimate)}"
    return said + DOUBTED * bool(row.doubts)


def page(
    made: Sequence[Row], across: str, wanted: Sequence[str] = ()
) -> Iterator[RenderableType]:
    """Yield what a terminal shows: the tables, what doubts mean, and what failed."""
    for one in sheets(made, across, wanted):
        yield from ("", one)
    hints = tables.hints(made)
    if hints is not None:
        said = (
            "a time that ends in ? has doubts: `steelyard show` without --across says"
        )
        yield Text(f"\n{said} which.")
        yield hints
    failed = tables.failures(made)
    if failed is not None:
        yield failed


def dumps(
    run: Run, made: Sequence[Row], across: str, wanted: Sequence[str] = ()
) -> str:
    """Return the tables as Markdown below the facts of the run."""
    lines = [text.caption(run)]
    for one in sheets(made, across, wanted):
        lines += ["", f"**{one.title}**", "", *one.markdown()]
    return "\n".join(lines) + "\n"
