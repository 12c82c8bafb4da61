"""Doubts: where data lies when a launch begins. Pure."""

from __future__ import annotations

from typing import Final

from steelyard.analyse.doubts import Act, Doubt
from steelyard.analyse.trial import Trial

COLD: Final = ("kernel/cold", "per_launch/cold", "latency/cold")
CACHED: Final = 0.4
"""Share of the way from a cold read to a cached one."""


def wrong_cache(trial: Trial) -> bool:
    """Tell whether a launch finds its data in another cache than its mode says."""
    if trial.extra.get("coldness") == "contradicted" or "wrong_cache" in trial.extra:
        return True
    kept_warm = trial.extra.get("audit", {}).get("kept_warm")
    return trial.mode.startswith(COLD) and is_kept_warm(kept_warm)


def is_kept_warm(share: float | str | None) -> bool:
    """Tell whether data is nearer to cached than to cold when a cold window begins."""
    return isinstance(share, (int, float)) and share > CACHED


CACHE_SIZED: Final = Doubt(
    "cache-sized",
    "the working set is near the size of a cache, where the same launch takes "
    "one of two times; choose a size well below or above",
    Act.PRINT,
    "both sides have the same working set",
    lambda s: s.warm and 0.5 < s.share <= 1.5,
)

EXCEEDS_CACHE: Final = Doubt(
    "exceeds-cache",
    "the working set does not fit the last-level cache, so warm launches read "
    "memory too; choose a smaller size, or measure it cold",
    Act.PRINT,
    "both sides have the same working set",
    lambda s: s.warm and s.share > 1.5,
)

WRONG_CACHE: Final = Doubt(
    "wrong-cache",
    "the launch does not find the cache as its mode promises: a GPU's counters "
    "or limits say so (see coldness and wrong_cache of `steelyard show`), or its "
    "data is read as fast as from cache behind the flush",
    Act.OPEN,
    "the time is of a cache in another state than the mode's",
    lambda s: wrong_cache(s.trial),
)
