"""Doubts: a closed list of what may make a number wrong, each with a hint."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from steelyard import stats
from steelyard.trial import Trial


class Doubt(StrEnum):
    """Something seen while measuring that a reader of the number must know."""

    BIMODAL = "bimodal"
    BUSY_MACHINE = "busy-machine"
    CACHE_SIZED = "cache-sized"
    COLLAPSED_INPUT = "collapsed-input"
    DRIFTING = "drifting"
    EXCEEDS_CACHE = "exceeds-cache"
    FEW_SAMPLES = "few-samples"
    NOT_LAUNCHED = "not-launched"
    ONE_BLOCK = "one-block"
    PREEMPTED = "preempted"
    QUANTISED = "quantised"
    UNCHECKED = "unchecked"
    UNDER_FLOOR = "under-floor"
    UNSETTLED = "unsettled"


HINTS: Mapping[Doubt, str] = MappingProxyType(
    {
        Doubt.BIMODAL: "the samples fall into two groups and no single number stands "
        "for both; look at the histogram, and for what changes between launches",
        Doubt.BUSY_MACHINE: "other work kept the cores busy; weigh again on a quiet "
        "machine, or raise --budget so that quiet moments are found",
        Doubt.CACHE_SIZED: "the working set is near the size of a cache, where the "
        "same launch takes one of two times; choose a size well below or above",
        Doubt.COLLAPSED_INPUT: "in-place updates turned an input into zeros, "
        "denormals, infinities or one constant during the window; such data is not "
        "what users have: weigh it cold, or give inputs that survive",
        Doubt.DRIFTING: "later samples are slower or faster than early ones; the "
        "machine or the kernel changes while it is weighed",
        Doubt.EXCEEDS_CACHE: "the working set does not fit the last-level cache, so "
        "warm launches read memory too; choose a smaller size, or weigh it cold",
        Doubt.FEW_SAMPLES: "the budget ended before the interval means anything; "
        "raise --budget",
        Doubt.NOT_LAUNCHED: "the code is for a target that it was not launched on, so "
        "nothing says that its result is right; launch it where there is one",
        Doubt.ONE_BLOCK: "there is one block, so the interval knows nothing of what "
        "differs between processes; raise --blocks before comparing",
        Doubt.PREEMPTED: "more than a quarter of the samples were interrupted by the "
        "scheduler; weigh again on a quiet machine",
        Doubt.QUANTISED: "the clock's tick is a visible part of the window; the "
        "estimate is the mean of the middle half and its interval includes the tick",
        Doubt.UNCHECKED: "no reference was given, so a wrong result would not be "
        "seen; add b.check(reference, ...)",
        Doubt.UNDER_FLOOR: "less than five times what the clock reads around "
        "nothing; the floor is a large part of the number",
        Doubt.UNSETTLED: "the interval is wider than 5 % to either side; raise "
        "--budget or --blocks, or accept the printed interval",
    }
)

FLOORS: Final = 5
"""In a window shorter than this many floors the clock is a fifth and more."""
WIDE: Final = 0.05
"""An interval whose half-width is above this share leaves the second figure open."""
DISTURBED: Final = 0.25
"""Share of samples with an involuntary context switch."""
NEIGHBOURS: Final = 0.25
"""Processors kept busy by others while a trial ran."""
DRIFT: Final = 0.02
SEPARATION: Final = 0.05
"""Two groups of samples nearer than this are one for every purpose."""
BETWEEN: Final = 0.85
"""Share of the variance between the best two groups (Otsu 1979): 0.64 for a normal
distribution, 0.75 for a uniform one, 1 for two values."""


def raise_doubts(
    trial: Trial, last_level_cache: int, precision: float
) -> tuple[Doubt, ...]:
    """Name everything about a trial that its readers must know."""
    samples, extra = trial.samples, trial.extra
    times = samples.per_launch()
    if not times:
        return ()
    summary = stats.summarise(times, samples.launches[0], trial.clock.quantum)
    warm_kernel = trial.mode.startswith("kernel/warm")
    share = extra.get("working_set", 0) / last_level_cache
    launched = extra.get("launched", True)
    seen = {
        Doubt.BIMODAL: two_groups(times),
        Doubt.BUSY_MACHINE: extra.get("neighbours", 0.0) > NEIGHBOURS,
        Doubt.CACHE_SIZED: warm_kernel and 0.5 < share <= 1.5,
        Doubt.COLLAPSED_INPUT: extra.get("collapsed", False),
        Doubt.DRIFTING: drifts(times),
        Doubt.EXCEEDS_CACHE: warm_kernel and share > 1.5,
        Doubt.FEW_SAMPLES: len(times) < stats.MINIMUM,
        Doubt.NOT_LAUNCHED: not launched,
        Doubt.PREEMPTED: sum(map(bool, samples.preemptions)) > DISTURBED * len(times),
        Doubt.QUANTISED: summary.quantised,
        Doubt.UNCHECKED: launched and not extra.get("checked", True),
        Doubt.UNDER_FLOOR: statistics.median(samples.ticks)
        < FLOORS * trial.floors.get("empty", 0.0),
        Doubt.UNSETTLED: summary.estimate.half_width > max(WIDE, precision),
    }
    return tuple(doubt for doubt, holds in seen.items() if holds)


def drifts(times: Sequence[float]) -> bool:
    """Tell whether the first and last third differ beyond their intervals."""
    third = len(times) // 3
    if third < stats.MINIMUM:
        return False
    first = stats.median(sorted(times[:third]))
    last = stats.median(sorted(times[-third:]))
    apart = last.low > first.high or last.high < first.low
    return apart and abs(last.value - first.value) > DRIFT * first.value


def two_groups(times: Sequence[float]) -> bool:
    """Tell whether the samples, but for the slowest tenth, are two groups."""
    ordered = sorted(times)[: max(1, round(0.9 * len(times)))]
    if len(ordered) < 16 or ordered[0] == ordered[-1]:
        return False
    total, count = sum(ordered), len(ordered)
    spread = statistics.pvariance(ordered) * count
    below, best, cut = 0.0, 0.0, 0
    for index, value in enumerate(ordered[:-1], 1):
        below += value
        gap = below / index - (total - below) / (count - index)
        between = gap * gap * index * (count - index) / count
        if between > best:
            best, cut = between, index
    low = sum(ordered[:cut]) / cut
    high = sum(ordered[cut:]) / (count - cut)
    return (
        best > BETWEEN * spread
        and high - low > SEPARATION * low
        and min(cut, count - cut) > 0.15 * count
    )
