"""What several clocks of a GPU say of the same kernel, and whether they agree. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from steelyard import units
from steelyard.analyse import stats
from steelyard.analyse.stats import Estimate
from steelyard.analyse.trial import ClockFacts, Samples, Traits, Trial

CHANGED = "the machine changed between the readings"

FACTS = ("quantum", "offset", "uncertainty", "drift", *Traits.__annotations__)
"""What a trial keeps of other clocks that read it."""


def views(trial: Trial) -> dict[str, Trial]:
    """Return a trial as each clock read it, by their ids; its own clock comes first."""
    found = {trial.clock.id: trial}
    for name, read in trial.extra.get("clocks", {}).items():
        ticks = tuple(read["ticks"])
        none = (0,) * len(ticks)
        samples = Samples(ticks, none, (1,) * len(ticks), none, none)
        facts = {each: read[each] for each in FACTS if each in read}
        clock = ClockFacts(name, 1, floor=(), **facts)
        if ticks:
            found[name] = replace(trial, clock=clock, samples=samples)
    return found


def readings(trial: Trial) -> dict[str, Estimate]:
    """Return what each clock that read a trial says of it, its own first."""
    return {name: stats.of(view).estimate for name, view in views(trial).items()}


def disagree(
    read: Sequence[tuple[ClockFacts, Estimate]], kernels: float = 1
) -> tuple[str, ...]:
    """Return a sentence for each pair of clocks whose intervals do not meet.

    ``kernels`` is how many a launch has.
    """
    return tuple(_disagreements(read, kernels))


def _disagreements(
    read: Sequence[tuple[ClockFacts, Estimate]], kernels: float
) -> Iterator[str]:
    for pair in combinations(read, 2):
        (less, low), (more, high) = sorted(pair, key=lambda each: each[1].value)
        if low.high < high.low:
            yield (
                f"{more.id} reads {units.duration(high.value - low.value)} more than "
                f"{less.id}, their error bars leave {units.duration(high.low - low.high)} "
                f"of it: {_cause(less, more, kernels)}."
            )


def _cause(less: ClockFacts, more: ClockFacts, kernels: float) -> str:
    """Return what most likely makes ``more`` read more than ``less``."""
    if kernels > 1 and less.gapped is not more.gapped:
        gaps = f"{less.id} leaves out the gaps between the kernels of one launch"
        return f"{gaps}, {more.id} reads them" if more.gapped else CHANGED
    return more.differs or less.differs or more.above or CHANGED
