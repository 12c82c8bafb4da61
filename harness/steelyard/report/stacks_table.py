"""Where a program's stacks were sampled, function by function."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from steelyard import units
from steelyard.process.stacks import Stacks
from steelyard.report.grid import sheet_of

LISTED: Final = 15

TITLES: Final = ("function", "own", "share", "with what it calls", "share of all")


def samples(count: float) -> str:
    """Write a number of samples."""
    return f"{count:.0f} samples"


def page(found: Stacks) -> Iterator[RenderableType]:
    """Yield the functions in which most of the time was spent."""
    write, total = units.duration if found.timed else samples, found.total
    every = found.functions()
    yield Text(f"\nsampled stacks: {write(total)} in {len(every)} functions")
    lines = [
        (
            name,
            write(own),
            f"{100 * own / total:.1f} %",
            write(within),
            f"{100 * within / total:.1f} %",
        )
        for name, own, within in every[:LISTED]
    ]
    yield ""
    yield sheet_of(TITLES, lines, right=TITLES[1:], folds={"function"})
