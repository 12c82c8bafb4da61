"""The report of `compare`: differences first, then a table of ratios."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.console import RenderableType
from rich.text import Text

from steelyard import units
from steelyard.analyse.compare import Comparison, Difference
from steelyard.analyse.run import Run
from steelyard.analyse.stats import Estimate
from steelyard.report import text
from steelyard.report.grid import Line, Sheet, sheet_of


def page(
    base: Run, new: Run, around: Sequence[Difference], made: Sequence[Comparison]
) -> Iterator[RenderableType]:
    """Yield both headers, what differs around them, and the ratios."""
    yield from heading(base, new, around)
    yield from ratios(made)


def ratios(made: Sequence[Comparison]) -> Iterator[RenderableType]:
    """Yield the ratios and what they mean."""
    shown = sheet(made)
    if not any(one.note for one in made):
        shown = replace(shown, columns=shown.columns[:-1])
    yield from ("", shown)
    alone = [c for c in made if c.ratio is None]
    unknown = any(c.ratio and not c.ratio.known for c in made)
    pairs = "One pair of blocks has no interval. " if unknown else ""
    yield Text(
        f"\nratio: time of new / base from blocks of the same number, with its 95 % "
        f"interval; above 1 is slower. {len(made) - len(alone)} of {len(made)} rows "
        f"compare. {pairs}The runs were not interleaved: a difference may be the machine's.",
        style="dim",
    )


def sheet(made: Sequence[Comparison]) -> Sheet[Line]:
    """Return a line a case and mode: the ratio, its interval, both times and a note."""
    numbers = ("ratio", "95 %", "base", "new")
    titles, folds = ("case", "mode", *numbers, "note"), {"case", "note"}
    return sheet_of(titles, map(_line, made), names=2, right=numbers, folds=folds)


def _line(one: Comparison) -> Line:
    ratio = one.ratio
    return (
        one.case,
        one.mode,
        Text(units.figures(ratio.value) if ratio else units.NOTHING, _style(one)),
        f"{ratio.low:.3f} to {ratio.high:.3f}"
        if ratio and ratio.known
        else units.NOTHING,
        _time(one.base),
        _time(one.new),
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
    lines = ((one.group, one.name, one.base, one.new) for one in around)
    titles = ("differs", "", "base", "new")
    yield sheet_of(titles, lines, folds=titles)


def _style(one: Comparison) -> str:
    """Mark a ratio whose interval leaves 1 out."""
    if not one.differs or one.ratio is None:
        return ""
    return "bold red" if one.ratio.value > 1 else "bold green"


def _time(estimate: Estimate | None) -> str:
    if estimate is None:
        return units.NOTHING
    return f"{units.duration(estimate.value)} {text.margin(estimate)}"
