"""Doubts: a closed list of what may make a number wrong, each with a hint."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from steelyard import stats
from steelyard.gpu import agreement
from steelyard.trial import Trial


class Doubt(StrEnum):
    """Something seen while measuring that a reader of the number must know."""

    ABOVE_PEAK = "above-peak"
    ALLOCATES = "allocates"
    BIMODAL = "bimodal"
    BUSY_MACHINE = "busy-machine"
    CACHE_SIZED = "cache-sized"
    CLOCKS_DISAGREE = "clocks-disagree"
    COLLAPSED_INPUT = "collapsed-input"
    DISTURBED_GPU = "disturbed-gpu"
    DRIFTING = "drifting"
    EXCEEDS_CACHE = "exceeds-cache"
    FEW_SAMPLES = "few-samples"
    GAPS = "gaps"
    IDLE = "idle"
    NOT_LAUNCHED = "not-launched"
    ONE_BLOCK = "one-block"
    PREEMPTED = "preempted"
    QUANTISED = "quantised"
    REMEMBERS = "remembers"
    THROTTLED = "throttled"
    UNCHECKED = "unchecked"
    UNDER_FLOOR = "under-floor"
    UNSETTLED = "unsettled"
    WRONG_CACHE = "wrong-cache"


HINTS: Mapping[Doubt, str] = MappingProxyType(
    {
        Doubt.ABOVE_PEAK: "faster than the fastest that was measured on this machine; "
        "look whether its bytes and operations are counted right, or measure the peaks "
        "again with `steelyard peaks --again`",
        Doubt.ALLOCATES: "each launch allocates memory, which is timed with its work; "
        "give it preallocated buffers, such as out= of NumPy's functions",
        Doubt.BIMODAL: "the samples fall into two groups and no single number stands "
        "for both; look at the histogram, and for what changes between launches",
        Doubt.BUSY_MACHINE: "other work kept the cores busy; weigh again on a quiet "
        "machine, or give --budget more seconds than the run took, so that quiet "
        "moments are found",
        Doubt.CACHE_SIZED: "the working set is near the size of a cache, where the "
        "same launch takes one of two times; choose a size well below or above",
        Doubt.CLOCKS_DISAGREE: "two clocks differ by more than the error bars of both; "
        "on a GPU `--clocks all` shows them side by side with the likely cause",
        Doubt.COLLAPSED_INPUT: "inputs are zeros, denormals, infinities or one "
        "constant, or in-place updates turned them into such during the window; users "
        "have other data: weigh it cold, or give inputs that survive",
        Doubt.DISTURBED_GPU: "another process had the GPU too; end it, or choose "
        "another GPU with --gpu",
        Doubt.DRIFTING: "later samples are slower or faster than early ones; the "
        "machine or the kernel changes while it is weighed",
        Doubt.EXCEEDS_CACHE: "the working set does not fit the last-level cache, so "
        "warm launches read memory too; choose a smaller size, or weigh it cold",
        Doubt.FEW_SAMPLES: "the time ended before the interval means anything; give "
        "--budget more seconds than the run took: its turns share them, and have 0.08 s "
        "each without it",
        Doubt.GAPS: "a launch is several kernels and the time is with the gaps between "
        "them, which this clock cannot leave out; install cupti-python and weigh with "
        "--clock cupti to have the kernels alone",
        Doubt.IDLE: "the processor was idle for half of the windows and more: the work "
        "sleeps, or waits for a disk or another process, and that is no work",
        Doubt.NOT_LAUNCHED: "the code is for a target that it was not launched on, so "
        "nothing says that its result is right; launch it where there is one",
        Doubt.ONE_BLOCK: "there is one block, so the interval knows nothing of what "
        "differs between processes; raise --blocks before comparing",
        Doubt.PREEMPTED: "more than a quarter of the samples were interrupted by the "
        "scheduler; weigh again on a quiet machine",
        Doubt.QUANTISED: "the clock's tick is a visible part of the window; the "
        "estimate is a mean of ticks and its interval includes one",
        Doubt.REMEMBERS: "a launch on new data takes much longer than the same again: "
        "the work keeps results, or looks whether they are there; users have new data",
        Doubt.THROTTLED: "the GPU lowered its clock for its power or temperature, or "
        "samples ran at different clocks; let it cool down, or compare only within a "
        "run; `steelyard doctor` says what can be locked",
        Doubt.UNCHECKED: "no reference was given, so a wrong result would not be "
        "seen; add b.check(reference, ...)",
        Doubt.UNDER_FLOOR: "less than five times what the clock reads around "
        "nothing; the floor is a large part of the number",
        Doubt.UNSETTLED: "the interval is wider than 5 % to either side; raise "
        "--blocks, give --budget more seconds than the run took (its turns share them, "
        "and have 0.08 s each without it), or accept the printed interval",
        Doubt.WRONG_CACHE: "the launch does not find the cache as its mode promises: a "
        "GPU's counters or limits say so (see coldness and wrong_cache of `steelyard "
        "show`), or its data is read as fast as from cache behind the flush",
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
ABOVE: Final = 1.03
"""Share of a measured peak beyond what two measurements of it differ by."""
ALLOCATED: Final = 128 << 10
"""Bytes from which C libraries have the system map and unmap memory for each array."""
PAIRS: Final = 3
"""Pairs of launches on new data and on the same again that say anything."""
TIMES: Final = 2.0
"""How much longer new data may take: branch predictors learn data that is small."""
COLD: Final = ("kernel/cold", "per_launch/cold", "latency/cold")
GAPPED: Final = frozenset({"events", "graph"})
"""Clocks that read all of a launch, from its first kernel to its last."""
CACHED: Final = 0.4
"""Share of the way from a cold read to a cached one."""
ASTRAY: Final = 0.005
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


def raise_doubts(
    trial: Trial, last_level_cache: int, precision: float
) -> tuple[Doubt, ...]:
    """Name everything about a trial that its readers must know.

    ``last_level_cache`` are the bytes of the cache before memory where it ran: a GPU's
    L2.
    """
    samples, extra = trial.samples, trial.extra
    times = stats.corrected(trial)
    if not times:
        return ()
    summary = stats.of(trial)
    warm_kernel = trial.mode.startswith("kernel/warm")
    share = extra.get("working_set", 0) / last_level_cache
    launched = extra.get("launched", True)
    found = extra.get("audit", {})
    seen = {
        Doubt.ALLOCATES: found.get("peak_bytes", 0) >= ALLOCATED,
        Doubt.BIMODAL: two_groups(times, trial.clock.quantum / samples.launches[0]),
        Doubt.BUSY_MACHINE: extra.get("neighbours", 0.0) > NEIGHBOURS,
        Doubt.CACHE_SIZED: warm_kernel and 0.5 < share <= 1.5,
        Doubt.CLOCKS_DISAGREE: bool(
            agreement.disagree(agreement.readings(trial), trial.facts.get("kernels", 1))
        )
        or astray(extra.get("spans", (0, 0))),
        Doubt.COLLAPSED_INPUT: extra.get("collapsed", False),
        Doubt.DISTURBED_GPU: bool(of_gpu(trial, "others")),
        Doubt.DRIFTING: drifts(times),
        Doubt.EXCEEDS_CACHE: warm_kernel and share > 1.5,
        Doubt.FEW_SAMPLES: len(times) < stats.MINIMUM,
        Doubt.GAPS: trial.clock.id in GAPPED and trial.facts.get("kernels", 1) > 1,
        Doubt.IDLE: idle(trial),
        Doubt.NOT_LAUNCHED: not launched,
        Doubt.PREEMPTED: sum(map(bool, samples.preemptions)) > DISTURBED * len(times),
        Doubt.QUANTISED: summary.quantised,
        Doubt.REMEMBERS: remembers(found.get("again", ())),
        Doubt.THROTTLED: throttled(trial),
        Doubt.UNCHECKED: launched and not extra.get("checked", True),
        Doubt.UNDER_FLOOR: under_floor(trial),
        Doubt.UNSETTLED: summary.estimate.sampled > max(WIDE, precision),
        Doubt.WRONG_CACHE: extra.get("coldness") == "contradicted"
        or "wrong_cache" in extra
        or (trial.mode.startswith(COLD) and is_kept_warm(found.get("kept_warm"))),
    }
    return tuple(doubt for doubt, holds in seen.items() if holds)


def remembers(pairs: Sequence[Sequence[int]]) -> bool:
    """Tell whether launches on new data are slower than the same again, all of them."""
    if len(pairs) < PAIRS:
        return False
    new, again = zip(*pairs, strict=True)
    return bool(min(new) > TIMES * statistics.median(again))


def is_kept_warm(share: float | str | None) -> bool:
    """Tell whether data is nearer to cached than to cold when a cold window begins."""
    return isinstance(share, (int, float)) and share > CACHED


def astray(spans: Sequence[int]) -> bool:
    """Tell whether a trial took another time by its own clock than by a second one."""
    own, other = spans
    return abs(own - other) > ASTRAY * other + JITTER


def idle(trial: Trial) -> bool:
    """Tell whether a case of the CPU leaves the processor idle while it is timed.

    Its quicker windows say so, all of them: in others the machine was busy elsewhere.
    """
    if "gpu" in trial.extra or trial.mode.startswith("build"):
        return False
    samples = trial.samples
    rows = zip(samples.per_launch(), samples.ticks, samples.cpu, strict=True)
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
    """Return what a list of the GPU's facts held before or after; none if unknown."""
    gpu = trial.extra.get("gpu", {})
    lists = [gpu.get(when, {}).get(name) for when in ("before", "after")]
    return [item for each in lists if isinstance(each, (list, tuple)) for item in each]


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
