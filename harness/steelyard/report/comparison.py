"""The report of `compare`: differences first, then a table of ratios."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich import box
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from steelyard import units
from steelyard.analyse.compare import Comparison, Difference
from steelyard.analyse.run import Run
from steelyard.analyse.stats import Estimate
from steelyard.report import text
from steelyard.report.tables import ABOVE

NARROW: Final = 100
"""Columns below which each side's own interval is left out: the ratio has one."""


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


def cells(one: Comparison, width: int = NARROW) -> tuple[str, ...]:
    """Return case, mode, both times, the ratio, its interval and a note."""
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
        case, mode, base, new, ratio, interval, note = cells(one, width)
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
