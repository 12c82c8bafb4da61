"""When a trial raises a doubt: predicates of what was seen, and their thresholds. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from steelyard.analyse import agreement, stats
from steelyard.analyse.run import UNKNOWN
from steelyard.analyse.trial import Trial

CALL: Final = 0.05
"""Share of a callable's time from which on its call is a visible part."""
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
ABOVE: Final = 1.03
"""Share of a measured peak beyond what two measurements of it differ by."""
ALLOCATED: Final = 128 << 10
"""Bytes from which C libraries have the system map and unmap memory for each array."""
PAIRS: Final = 3
"""Pairs of launches on new data and on the same again that say anything."""
TIMES: Final = 2.0
"""How much longer new data may take: branch predictors learn data that is small."""
COLD: Final = ("kernel/cold", "per_launch/cold", "latency/cold")
CACHED: Final = 0.4
"""Share of the way from a cold read to a cached one."""
HOST_CLOCKS: Final = 0.005
"""Share by which two clocks of the host may differ: one is slewed by 0.05 % at most."""
JITTER: Final = 200_000
"""Nanoseconds that may pass between the readings of two clocks, at both ends."""
AWAKE: Final = 0.5
"""Share of a window's time for which its process used a processor, or it waited."""
SHARES: Final = 3
STEADY: Final = 0.98
"""Share of the highest frequency below which a sample was taken at another clock."""
BETWEEN: Final = 0.85
"""Share of the variance between the best two groups (Otsu 1979): 0.64 for a normal
distribution, 0.75 for a uniform one, 1 for two values."""


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


def clocks_disagree(trial: Trial) -> bool:
    """Tell whether two clocks of a GPU, or two of the host, read different times."""
    kernels = trial.facts.get("kernels", 1)
    views = agreement.views(trial).values()
    read = [(view.clock, stats.of(view).estimate) for view in views]
    return bool(agreement.disagree(read, kernels)) or host_clocks_differ(
        trial.extra.get("spans", (0, 0))
    )


def wrong_cache(trial: Trial) -> bool:
    """Tell whether a launch finds its data in another cache than its mode says."""
    if trial.extra.get("coldness") == "contradicted" or "wrong_cache" in trial.extra:
        return True
    kept_warm = trial.extra.get("audit", {}).get("kept_warm")
    return trial.mode.startswith(COLD) and is_kept_warm(kept_warm)


def remembers(pairs: Sequence[Sequence[int]]) -> bool:
    """Tell whether launches on new data are slower than the same again, all of them."""
    if len(pairs) < PAIRS:
        return False
    new, again = zip(*pairs, strict=True)
    return bool(min(new) > TIMES * statistics.median(again))


def is_kept_warm(share: float | str | None) -> bool:
    """Tell whether data is nearer to cached than to cold when a cold window begins."""
    return isinstance(share, (int, float)) and share > CACHED


def host_clocks_differ(spans: Sequence[int]) -> bool:
    """Tell whether a trial took another time by its own clock than by a second one."""
    own, other = spans
    return abs(own - other) > HOST_CLOCKS * other + JITTER


def idle(trial: Trial) -> bool:
    """Tell whether a case of the CPU leaves the processor idle while it is timed.

    Its quicker windows say so, all of them, but for those that it lost to others.
    """
    if "gpu" in trial.extra or trial.mode.startswith("build"):
        return False
    samples = trial.samples
    each = zip(
        samples.per_launch(),
        samples.ticks,
        samples.cpu,
        samples.preemptions,
        strict=True,
    )
    rows = [(time, ticks, cpu) for time, ticks, cpu, lost in each if not lost]
    shares = [cpu / ticks for _, ticks, cpu in sorted(rows) if ticks > 0]
    quicker = shares[: (len(shares) + 1) // 2]
    return len(shares) >= SHARES and max(quicker) < AWAKE


def throttled(trial: Trial) -> bool:
    """Tell whether a GPU's clock was held back, or differed from sample to sample.

    NVML's counters round the samples say so. Its reasons before and after do not: they
    are of the moment, which may be another case's.
    """
    mhz = [each for each in trial.samples.mhz if each]  # 0 is not known
    uneven = bool(mhz) and min(mhz) < STEADY * max(mhz)
    held = trial.extra.get("gpu", {}).get("capped", {}).values()
    return uneven or any(isinstance(each, int) and each > 0 for each in held)


def of_gpu(trial: Trial, name: str) -> list[Any]:
    """Return a fact of the GPU before and after, of a list its parts; none if unknown."""
    gpu = trial.extra.get("gpu") or {}
    seen = [gpu.get(when, {}).get(name) for when in ("before", "after")]
    every = (one if isinstance(one, (list, tuple)) else [one] for one in seen)
    return [one for each in every for one in each if one not in (None, UNKNOWN)]


def under_floor(trial: Trial) -> bool:
    """Tell whether a window is less than five times what is read around nothing.

    A kernel on a GPU is read by the GPU, where that is the clock's tick, or by how much
    its offset may be wrong.
    """
    clock = trial.clock
    if "gpu" in trial.extra and trial.mode.startswith("kernel"):
        nothing = max(clock.uncertainty, clock.quantum)
    else:
        nothing = trial.floors.get("empty", 0.0)
    return statistics.median(trial.samples.ticks) - clock.offset < FLOORS * nothing


def calls(trial: Trial) -> bool:
    """Tell whether calling a Python callable is a visible part of its kernel's time.

    On a GPU the call is not in that time.
    """
    if "gpu" in trial.extra or "called" not in trial.extra:
        return False
    floor = trial.floors.get("call", 0.0)
    typical = statistics.median(trial.samples.per_launch())
    return trial.mode.startswith("kernel") and floor > CALL * typical


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
