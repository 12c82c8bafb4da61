"""Doubts: what the samples and the blocks of a trial look like. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

from steelyard.analyse import stats
from steelyard.analyse.doubts import Act, Doubt

WIDE: Final = 0.05
"""An interval whose half-width is above this share leaves the second figure open."""
DISTURBED: Final = 0.25
"""Share of samples with an involuntary context switch."""
DRIFT: Final = 0.02
SEPARATION: Final = 0.05
"""Two groups of samples nearer than this are one for every purpose."""
BETWEEN: Final = 0.85
"""Share of the variance between the best two groups (Otsu 1979): 0.64 for a normal
distribution, 0.75 for a uniform one, 1 for two values."""


def drifts(times: Sequence[float]) -> bool:
    """Tell whether the first and last third differ beyond their intervals."""
    third = len(times) // 3
    if third < stats.MINIMUM:
        return False
    first = stats.median(sorted(times[:third]))
    last = stats.median(sorted(times[-third:]))
    apart = last.low > first.high or last.high < first.low
    return apart and abs(last.value - first.value) > DRIFT * first.value


def two_groups(times: Sequence[float], step: float = 0.0) -> bool:
    """Tell whether the samples, but for the slowest tenth, are two groups.

    Neighbouring ticks of the clock, ``step`` apart, are not.
    """
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
        and high - low > max(SEPARATION * low, 2 * step)
        and min(cut, count - cut) > 0.15 * count
    )


BIMODAL: Final = Doubt(
    "bimodal",
    "the samples fall into two groups and no single number stands for both; look "
    "at the histogram, and for what changes between launches",
    Act.PRINT,
    "the spread between blocks holds what it does to a change",
    lambda s: two_groups(s.times, s.trial.clock.quantum / s.trial.samples.launches[0]),
)

DEPENDENT_BLOCKS: Final = Doubt(
    "dependent-blocks",
    "a block is like the one before it, so that a few in a row say less than so "
    "many; gate again on a quieter machine",
    Act.PRINT,
    "a change counts only if three times its error does not explain it",
)

DRIFTING: Final = Doubt(
    "drifting",
    "later samples are slower or faster than early ones; the machine or the "
    "kernel changes while it is measured",
    Act.PRINT,
    "both sides drift alike, or their blocks differ",
    lambda s: drifts(s.times),
)

FEW_SAMPLES: Final = Doubt(
    "few-samples",
    "the time ended before the interval means anything; give --budget more "
    "seconds than the run took: its turns share them, and have 0.08 s each "
    "without it",
    Act.PRINT,
    "a change is judged by blocks, not by samples",
    lambda s: len(s.times) < stats.MINIMUM,
)

IMPORTED: Final = Doubt(
    "imported",
    "another tool measured it: caches, clock and statistics are that tool's, and "
    "nothing was checked here; compare it with numbers of the same tool alone",
    Act.OPEN,
    "a stored number of another tool is no side of a gate",
)

NOISY_MEAN: Final = Doubt(
    "noisy-mean",
    "a change of some calls alone would not show; gate again on a quieter machine",
    Act.PRINT,
    "the quickest windows are the same, and most changes are in these too",
)

ONE_BLOCK: Final = Doubt(
    "one-block",
    "there is one block, so the interval knows nothing of what differs between "
    "processes; raise --blocks before comparing",
    Act.PRINT,
    "a change of one block is unresolved by itself",
)

PREEMPTED: Final = Doubt(
    "preempted",
    "more than a quarter of the samples were interrupted by the scheduler; "
    "measure again on a quiet machine",
    Act.PRINT,
    "the spread between blocks holds what it does to a change",
    lambda s: sum(map(bool, s.trial.samples.preemptions)) > DISTURBED * len(s.times),
)

UNSETTLED: Final = Doubt(
    "unsettled",
    "the interval is wider than 5 % to either side; raise --blocks, give "
    "--budget more seconds than the run took (its turns share them, and have "
    "0.08 s each without it), or accept the printed interval",
    Act.PRINT,
    "a change is judged by blocks, not by one interval",
    lambda s: s.summary.estimate.sampled > max(WIDE, s.precision),
)
