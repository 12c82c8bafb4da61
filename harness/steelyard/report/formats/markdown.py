"""Rows as Markdown tables, for a README or a pull request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

from steelyard.analyse.rows import Row
from steelyard.analyse.trial import Run
from steelyard.report import (
    claims_report,
    columns,
    comparison,
    gate_markdown,
    pivot,
    text,
)
from steelyard.report.formats import Compared, Format, Results
from steelyard.report.grid import Cell, Column, sheet_of


def dumps(run: Run, made: Sequence[Row]) -> str:
    """Return a table a benchmark below the facts of the run."""
    lines = [text.caption(run)]
    for name, rows in groupby(made, key=lambda row: row.benchmark):
        lines += ["", *_benchmark(name, list(rows))]
    return "\n".join(lines) + "\n"


NUMBERS: Final[Mapping[str, Callable[[Row], str]]] = {
    "time": text.time,
    "95 %": lambda row: text.margin(row.estimate),
    "GB/s": text.gigabytes,
}


def _benchmark(name: str, group: Sequence[Row]) -> Iterator[str]:
    shared = text.shared_axes(group)
    axes = [
        n for n in dict.fromkeys(n for r in group for n in r.axes) if n not in shared
    ]
    measured = [
        *(Column(title, cell) for title, cell in NUMBERS.items()),
        *columns.of_machines([row for row in group if row.trials]),
    ]
    if any(row.relative for row in group):
        measured.append(Column("relative", lambda row: text.ratio(row.relative)))
    titles = [column.title for column in measured]
    heads = [*axes, "mode", *titles, "doubts"]
    lines = [_cells(row, axes, measured) for row in group]
    yield f"**{name}** {text.axes(shared)}".strip()
    yield ""
    yield from sheet_of(heads, lines, right=titles).markdown()


def _cells(
    row: Row, axes: Sequence[str], measured: Sequence[Column[Row]]
) -> tuple[Cell, ...]:
    point = (*(str(row.axes.get(name, "")) for name in axes), row.mode)
    if not row.trials:
        return (*point, "failed", *[""] * len(measured))
    return (*point, *(c.cell(row) for c in measured), ", ".join(row.doubts))


def _results(found: Results) -> str:
    if found.across:
        return pivot.dumps(found.run, found.rows, found.across, found.columns)
    return dumps(found.run, found.rows)


def _compared(found: Compared) -> str:
    return "".join(f"{line}\n" for line in comparison.sheet(found.rows).markdown())


FORMAT: Final = Format(
    _results,
    _compared,
    gate_markdown.dumps,
    lambda found: claims_report.markdown(found.judged, found.run),
)
