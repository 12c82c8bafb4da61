"""Doubts: a closed list of what may make a number wrong, each with a hint."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class Doubt(StrEnum):
    """Something seen while measuring that a reader of the number must know."""

    BIMODAL = "bimodal"
    BUSY_MACHINE = "busy-machine"
    CACHE_SIZED = "cache-sized"
    COLLAPSED_INPUT = "collapsed-input"
    DRIFTING = "drifting"
    FEW_SAMPLES = "few-samples"
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
        Doubt.FEW_SAMPLES: "the budget ended before the interval means anything; "
        "raise --budget",
        Doubt.PREEMPTED: "more than a quarter of the samples were interrupted by the "
        "scheduler; weigh again on a quiet machine",
        Doubt.QUANTISED: "the clock's tick is a visible part of the window; the "
        "estimate is the mean of the middle half and its interval includes the tick",
        Doubt.UNCHECKED: "no reference was given, so a wrong result would not be "
        "seen; add b.check(reference, ...)",
        Doubt.UNDER_FLOOR: "less than five times what the clock reads around "
        "nothing; the floor is a large part of the number",
        Doubt.UNSETTLED: "the interval is still wider than asked when the budget "
        "ended; raise --budget or accept the printed interval",
    }
)
