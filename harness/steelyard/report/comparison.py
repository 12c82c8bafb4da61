"""The report of `compare`: differences first, then a table of ratios.

As JSON it is ``{"schema", "base", "new", "differences", "rows"}``: two runs as in
`json_report`, what differs around them, and a row a case and mode with ``base``, ``new``
(nanoseconds, each with its ``_low`` and ``_high``), ``ratio``, ``low``, ``high``,
``differs`` (whether the interval leaves 1 out) and ``note``. CSV and Markdown have the
rows alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

from rich import box
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from steelyard import units
from steelyard.analyse.compare import Comparison, Difference
from steelyard.analyse.run import Run
from steelyard.analyse.stats import Estimate
from steelyard.report import csv_report, json_report, text
from steelyard.report.tables import ABOVE

NARROW: Final = 100
"""Columns below which each side's own interval is left out: the ratio has one."""


HIDDEN: Final = ("machine", "writer")
"""Facts of a run that differences have instead."""


def page(
    base: Run,
    new: Run,
    around: Sequence[Difference],
    made: Sequence[Comparison],
    width: int,
) -> Iterator[RenderableType]:
    """Yield both headers, what differs around them, and the ratios."""
    yield from heading(base, new, around)
    yield Padding(_ratios(made, width), ABOVE, expand=False)
    alone = [c for c in made if c.ratio is None]
    yield Text(
        f"\nratio: time of new / base from blocks of the same number, with its 95 % "
        f"interval; above 1 is slower. {len(made) - len(alone)} of {len(made)} rows "
        "compare. The runs were not interleaved: a difference may be the machine's.",
        style="dim",
    )


def dumps(
    shape: str,
    base: Run,
    new: Run,
    around: Sequence[Difference],
    made: Sequence[Comparison],
) -> str:
    """Return a comparison as json, csv or markdown."""
    records = [_record(one) for one in made]
    if shape == "csv":
        return csv_report.text_of(records)
    if shape == "json":
        document = {
            "schema": json_report.SCHEMA,
            **{
                side: {k: v for k, v in asdict(run).items() if k not in HIDDEN}
                for side, run in (("base", base), ("new", new))
            },
            "differences": [asdict(one) for one in around],
            "rows": records,
        }
        return json_report.text_of(json_report.strict(document)) + "\n"
    titles = ("case", "mode", "base", "new", "ratio", "95 %", "note")
    marks = ["---"] * 2 + ["---:"] * 4 + ["---"]
    lines = [titles, marks, *(_cells(one, NARROW) for one in made)]
    return "".join(
        "| " + " | ".join(c.replace("|", "\\|") for c in line) + " |\n"
        for line in lines
    )


def _record(one: Comparison) -> dict[str, Any]:
    record = {
        "case": one.case,
        "mode": one.mode,
        **json_report.interval("base", one.base, "base_"),
        **json_report.interval("new", one.new, "new_"),
        "unit": "ns",
        **json_report.interval("ratio", one.ratio),
        "differs": one.differs if one.ratio else None,
        "note": one.note,
    }
    found: dict[str, Any] = json_report.strict(record)
    return found


def _cells(one: Comparison, width: int) -> tuple[str, ...]:
    ratio = one.ratio
    return (
        one.case,
        one.mode,
        _time(one.base, width),
        _time(one.new, width),
        units.figures(ratio.value) if ratio else text.NOTHING,
        f"{ratio.low:.3f} to {ratio.high:.3f}" if ratio else text.NOTHING,
        one.note,
    )


def heading(
    base: Run, new: Run, around: Sequence[Difference]
) -> Iterator[RenderableType]:
    """Yield both runs and what differs around them."""
    for side, run in (("base", base), ("new", new)):
        yield Text(f"{side}: {text.header(run)[0]}", style="bold")
    if not around:
        yield Text("compilers, machine, versions, selection and settings are the same")
        return
    table = Table("differs", "", "base", "new", box=box.SIMPLE_HEAD, pad_edge=False)
    for one in around:
        table.add_row(*map(Text, (one.group, one.name, one.base, one.new)))
    yield table


def _ratios(made: Sequence[Comparison], width: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("case", overflow="fold")
    table.add_column("mode", no_wrap=True)
    for name in ("base", "new", "ratio", "95 %"):
        table.add_column(name, justify="right", no_wrap=True)
    noted = any(one.note for one in made)
    if noted:
        table.add_column("note", overflow="fold")
    for one in made:
        case, mode, base, new, ratio, interval, note = _cells(one, width)
        times = (base, new, Text(ratio, _style(one)), interval)
        table.add_row(Text(case), Text(mode), *times, *([Text(note)] if noted else []))
    return table


def _style(one: Comparison) -> str:
    """Mark a ratio whose interval leaves 1 out."""
    if not one.differs or one.ratio is None:
        return ""
    return "bold red" if one.ratio.value > 1 else "bold green"


def _time(estimate: Estimate | None, width: int) -> str:
    if estimate is None:
        return text.NOTHING
    own = f" {text.margin(estimate)}" if width >= NARROW else ""
    return f"{units.duration(estimate.value)}{own}"
