"""What several clocks of a GPU say of the same kernel, and whether they agree. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations

from steelyard import units
from steelyard.analyse import stats
from steelyard.analyse.stats import Estimate
from steelyard.analyse.trial import ClockFacts, Samples, Trial

RECORDED = "recording with CUPTI makes this kernel slower"
MANY = "CUPTI leaves out the gaps between the kernels of one launch, others read them"
LAUNCH = (
    "this kernel takes the GPU longer to launch than the delay that calibrates does"
)
NODES = "kernels of a graph follow one another, and find another state of the caches"
BUILD = (
    "the kernel that writes down its time is a build of its own, with more registers"
)
CHANGED = "the machine changed between the readings"


def views(trial: Trial) -> dict[str, Trial]:
    """Return a trial as each clock read it, by their ids; its own clock comes first."""
    found = {trial.clock.id: trial}
    for name, read in trial.extra.get("clocks", {}).items():
        ticks = tuple(read["ticks"])
        none = (0,) * len(ticks)
        samples = Samples(ticks, none, (1,) * len(ticks), none, none)
        numbers = ("quantum", "offset", "uncertainty", "drift")
        clock = ClockFacts(name, 1, floor=(), **{each: read[each] for each in numbers})
        if ticks:
            found[name] = replace(trial, clock=clock, samples=samples)
    return found


def readings(trial: Trial) -> dict[str, Estimate]:
    """Return what each clock that read a trial says of it, its own first."""
    return {name: stats.of(view).estimate for name, view in views(trial).items()}


def disagree(estimates: Mapping[str, Estimate], kernels: float = 1) -> tuple[str, ...]:
    """Return a sentence for each pair of clocks whose intervals do not meet.

    ``estimates`` are by clocks' ids, ``kernels`` how many a launch has.
    """
    return tuple(_disagreements(estimates, kernels))


def _disagreements(estimates: Mapping[str, Estimate], kernels: float) -> Iterator[str]:
    for pair in combinations(estimates.items(), 2):
        (less, low), (more, high) = sorted(pair, key=lambda each: each[1].value)
        if low.high < high.low:
            yield (
                f"{more} reads {units.duration(high.value - low.value)} more than "
                f"{less}, their error bars leave {units.duration(high.low - low.high)} "
                f"of it: {_cause(less, more, kernels)}."
            )


def _cause(less: str, more: str, kernels: float) -> str:
    """Return what most likely makes ``more`` read more than ``less``."""
    pair = {less, more}
    if "cupti" in pair and kernels > 1:
        return MANY if less == "cupti" else CHANGED
    if "globaltimer" in pair:
        return BUILD
    if "graph" in pair:
        return NODES
    if pair == {"cupti", "events"}:
        return LAUNCH if less == "cupti" else RECORDED
    return CHANGED
