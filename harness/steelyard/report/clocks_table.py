"""The table of `--clocks all`: one kernel by every clock, with the parts of the bars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from steelyard import units
from steelyard.analyse import agreement, stats
from steelyard.analyse.rows import Row, combined
from steelyard.analyse.stats import Estimate
from steelyard.analyse.trial import Trial
from steelyard.report.grid import Line, Sheet, grid, sheet_of

PARTS: Final = ("sampling", "quantum", "offset", "drift")
"""Of half an interval, as `stats.budget` names them."""


READ: Final = ("kernel", "±", *(f"± {part}" for part in PARTS))


def page(made: Sequence[Row]) -> Iterator[RenderableType]:
    """Yield the table of the rows that more than one clock read, and who disagrees."""
    found = [(row, by_clock(row)) for row in made]
    group = [(row, clocks) for row, clocks in found if len(clocks) > 1]
    if group:
        yield _sheet(group)
    for row, clocks in group:
        read = [(trials[-1].clock, together(trials)) for trials in clocks.values()]
        kernels = max(trial.facts.get("kernels", 1) for trial in row.trials)
        for sentence in agreement.disagree(read, kernels):
            yield Text(f"{row.case} {row.mode}: {sentence}")


def by_clock(row: Row) -> dict[str, tuple[Trial, ...]]:
    """Return a row's trials as each clock read them, by the clocks' ids."""
    views = [agreement.views(trial) for trial in row.trials]
    names = dict.fromkeys(chain.from_iterable(views))
    return {n: tuple(view[n] for view in views if n in view) for n in names}


def together(trials: Sequence[Trial]) -> Estimate:
    """Return what one clock read over all blocks."""
    estimate = combined([stats.of(trial).estimate for trial in trials])
    assert estimate is not None, "a clock is named by a trial that it read"
    return estimate


def _sheet(group: Sequence[tuple[Row, Mapping[str, Sequence[Trial]]]]) -> Sheet[Line]:
    lines: list[Line] = []
    for row, clocks in group:
        where = (row.case, row.mode)
        for name, trials in clocks.items():
            lines.append((*where, name, *_bar(trials)))
            where = ("", "")
    titles = ("case", "mode", "clock", *READ)
    return sheet_of(titles, lines, title="clocks", names=3, right=READ, folds={"case"})


def beside(title: str, clocks: Mapping[str, Sequence[Trial]]) -> Sheet[Line]:
    """Return the clocks of one row, a line each."""
    lines = ((name, *_bar(trials)) for name, trials in clocks.items())
    return grid(title, ("clock",), READ, lines)


def _bar(trials: Sequence[Trial]) -> Iterator[str]:
    """Yield a clock's estimate, half its interval, and the parts of the last block's."""
    estimate = together(trials)
    yield units.duration(estimate.value)
    yield units.duration((estimate.high - estimate.low) / 2)
    parts = stats.budget(trials[-1])
    for part in PARTS:
        yield units.duration(parts[part])
