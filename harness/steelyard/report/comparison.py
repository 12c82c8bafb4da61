"""Two runs side by side: differences first, then a table of ratios.

Of two rows, in a sentence and a list, why one takes longer than the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rich.console import RenderableType
from rich.text import Text

from steelyard import units
from steelyard.analyse.compare import Comparison, Difference
from steelyard.analyse.rows import Row, paired_ratio
from steelyard.analyse.stats import Estimate
from steelyard.analyse.trial import Run
from steelyard.gate import difference, explain
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


NEARLY: Final = 0.95
"""The share of a change from which it is all accounted for."""

LISTED: Final = 20
"""Differences that are listed."""


@dataclass(frozen=True, slots=True)
class Side:
    """A row with the run it is of, and how it was named."""

    name: str
    run: Run
    row: Row


def explanation(base: Side, head: Side) -> Iterator[RenderableType]:
    """Yield the sentence of a mode, then each difference with what it can account for."""
    ratio = paired_ratio(head.row.trials, base.row.trials)
    machines: Any = base.run.machine, head.run.machine
    found = explain.differences(base.row.trials, head.row.trials, machines)
    change = explain.change_of(ratio)
    ranked = explain.ranked(found, change)
    yield Text(f"\n{head.row.mode}: {sentence(ratio, ranked)}", style="bold")
    for one in ranked[:LISTED]:
        yield Text(f"  {explain.said(one, change)}")
    if len(ranked) > LISTED:
        yield Text(f"  and {len(ranked) - LISTED} more")


def sentence(ratio: Estimate | None, ranked: Sequence[difference.Difference]) -> str:
    """Say how much longer B takes than A, what accounts for most of it, and what nothing does."""
    if ratio is None:
        return "B and A have no block in common, so that their times have no ratio."
    if not ratio.known:
        return (
            f"B takes {ratio.value:.3g} times what A takes in one pair of blocks, which "
            "says nothing of the ratio's error: measure both with more --blocks."
        )
    times = (
        f"B takes {ratio.value:.3g} times what A takes "
        f"({ratio.low:.3g} to {ratio.high:.3g})"
    )
    if ratio.low <= 1 <= ratio.high:
        return f"{times}, which is no change."
    change = explain.change_of(ratio)
    shares = [(explain.accounts(one, change) or 0.0, one) for one in ranked]
    share, first = max(shares, key=lambda pair: pair[0], default=(0.0, None))
    if first is None or share <= 0:
        return (
            f"{times}; nothing that differs predicts it, so all of it is unexplained."
        )
    if share >= NEARLY:
        return f"{times}; {first.words} can account for all of it."
    left = 100 * (1 - share)
    return (
        f"{times}; {first.words} can account for {100 * share:.0f} % of it, and no single "
        f"difference for the other {left:.0f} %."
    )
