"""Results as text for other programs: a format a file, named like ``--format``'s value.

A file's ``FORMAT`` is its `Format`. Packages add formats as entry points of `GROUP`,
whose names are formats and whose values name a `Format`.
"""

from __future__ import annotations

import functools
import math
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final

from steelyard_device.entries import entry_points

if TYPE_CHECKING:  # whose own modules make all of this
    from steelyard.analyse.claims import Judged
    from steelyard.analyse.compare import Comparison, Difference
    from steelyard.analyse.rows import Row
    from steelyard.analyse.stats import Estimate
    from steelyard.analyse.trial import Run, Trial
    from steelyard.gate.outcome import Outcome

GROUP: Final = "steelyard.formats"

TABLE: Final = "table"
"""What a terminal shows, which is no text for programs."""


@dataclass(frozen=True, slots=True)
class Results:
    """A run, or one case of it."""

    run: Run
    trials: Sequence[Trial]
    rows: Sequence[Row]
    across: str | None = None
    """The axis that goes across a table."""
    columns: Sequence[str] = ()
    """Those that are asked for."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Two runs side by side."""

    base: Run
    new: Run
    differences: Sequence[Difference]
    rows: Sequence[Comparison]


@dataclass(frozen=True, slots=True)
class Claims:
    """Judged claims, and the run they are judged by; without one all were skipped."""

    judged: Sequence[Judged]
    run: Run | None


@dataclass(frozen=True, slots=True)
class Format:
    """How a format writes each result; None where it cannot."""

    results: Callable[[Results], str] | None = None
    compared: Callable[[Compared], str] | None = None
    gate: Callable[[Outcome], str] | None = None
    claims: Callable[[Claims], str] | None = None
    partial: bool = False
    """Whether its results are without the rows that have no time."""


def measured(found: Results) -> Iterator[tuple[Row, Estimate]]:
    """Yield the rows that have a time and an interval."""
    for row in found.rows:
        one = row.estimate
        if one is not None and math.isfinite(one.value + one.low + one.high):
            yield row, one


def unmeasured(found: Results) -> list[Row]:
    """Return the rows that `measured` leaves out."""
    kept = [row for row, _ in measured(found)]
    return [row for row in found.rows if not any(row is one for one in kept)]


@functools.cache
def formats() -> dict[str, Format]:
    """Return every format by its name."""
    own = [module.name for module in pkgutil.iter_modules(__path__)]
    found = {
        name.replace("_", "-"): import_module(f"{__name__}.{name}").FORMAT
        for name in own
    }
    found |= {point.name: point.load() for point in entry_points(GROUP)}
    return dict(sorted(found.items()))


def names(result: str) -> tuple[str, ...]:
    """Return what ``--format`` takes of a field of `Format`."""
    return (TABLE, *(n for n, each in formats().items() if getattr(each, result)))
