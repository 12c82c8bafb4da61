"""Doubts: what may make a number wrong, each a row with its hint and its symptom.

A file here has rows of one kind, which are found by being there. Packages add doubts as
entry points of `GROUP`, whose names are the doubts' and whose values name a `Doubt`.
"""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from importlib import import_module
from typing import Any, Final

from steelyard.analyse import stats
from steelyard.analyse.trial import Trial
from steelyard_device.entries import entry_points

GROUP: Final = "steelyard.doubts"


class Act(Enum):
    """What a gate does with a case of which it has a doubt."""

    PRINT = "print"
    """It prints the doubt; the verdict stands."""
    FASTER = "faster"
    """It does not believe that the case became faster: that is unresolved."""
    OPEN = "open"
    """The case is unresolved, unless it became slower."""
    FAIL = "fail"
    """The case fails if head has the doubt, and is unresolved if only base has it."""


@dataclass(frozen=True)
class Seen:
    """A trial and what its doubts are raised from."""

    trial: Trial
    last_level_cache: int
    precision: float

    @cached_property
    def times(self) -> list[float]:
        """Nanoseconds of a launch in each window."""
        return list(stats.corrected(self.trial))

    @cached_property
    def summary(self) -> stats.Summary:
        """Estimate and interval."""
        return stats.of(self.trial)

    @property
    def extra(self) -> Mapping[str, Any]:
        """What was noted beside the samples."""
        return self.trial.extra

    @property
    def audited(self) -> Mapping[str, Any]:
        """What the audit of its case found."""
        found: Mapping[str, Any] = self.extra.get("audit", {})
        return found

    @property
    def warm(self) -> bool:
        """Whether its launches should find their data in a cache."""
        return self.trial.mode.startswith("kernel/warm")

    @property
    def share(self) -> float:
        """Its working set over the last-level cache."""
        return float(self.extra.get("working_set", 0) / self.last_level_cache)


def _elsewhere(_: Seen) -> bool:
    """Hold for no trial: such a doubt is of several, or of a row, and is raised there."""
    return False


@dataclass(frozen=True, slots=True)
class Doubt:
    """Something seen while measuring that a reader of the number must know."""

    name: str
    hint: str
    """What it means and what to do, as a clause."""
    act: Act
    reason: str
    """Why a gate does that."""
    holds: Callable[[Seen], bool] = _elsewhere
    """When a trial raises it."""

    def __str__(self) -> str:
        return self.name


@functools.cache
def known() -> Mapping[str, Doubt]:
    """Return every doubt by its name, in that order."""
    files = (f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__))
    rows = (row for file in files for row in vars(import_module(file)).values())
    found = {row.name: row for row in rows if isinstance(row, Doubt)}
    found |= {point.name: point.load() for point in entry_points(GROUP)}
    return dict(sorted(found.items()))


def raise_doubts(
    trial: Trial, last_level_cache: int, precision: float
) -> tuple[str, ...]:
    """Name everything about a trial that its readers must know.

    ``last_level_cache`` are the bytes of the cache before memory where it ran: a GPU's
    L2.
    """
    seen = Seen(trial, last_level_cache, precision)
    if not seen.times:
        return ()
    return tuple(name for name, doubt in known().items() if doubt.holds(seen))
