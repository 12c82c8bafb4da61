"""Doubts: what else the machine did. Pure."""

from __future__ import annotations

from typing import Any, Final

from steelyard.analyse.doubts import Act, Doubt
from steelyard.analyse.trial import UNKNOWN, Trial

NEIGHBOURS: Final = 0.25
"""Processors kept busy by others while a trial ran."""
STEADY: Final = 0.98
"""Share of the highest frequency below which a sample was taken at another clock."""


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


BUSY_MACHINE: Final = Doubt(
    "busy-machine",
    "other work kept the cores busy; measure again on a quiet machine, or give "
    "--budget more seconds than the run took, so that quiet moments are found",
    Act.PRINT,
    "both sides' windows stand in turn and meet the same",
    lambda s: s.extra.get("neighbours", 0.0) > NEIGHBOURS,
)

DISTURBED_GPU: Final = Doubt(
    "disturbed-gpu",
    "another process had the GPU too; end it, or choose another GPU with --gpu",
    Act.PRINT,
    "both sides meet the other process",
    lambda s: bool(of_gpu(s.trial, "others")),
)

LOGGED_IN: Final = Doubt(
    "logged-in",
    "somebody's terminal was at work on this machine of a fleet; measure again "
    "when nobody is logged in",
    Act.PRINT,
    "both sides' windows stand in turn and meet the same",
    lambda s: s.extra.get("terminals", 0) > 0,
)

THROTTLED: Final = Doubt(
    "throttled",
    "the GPU lowered its clock for its power or temperature, or samples ran at "
    "different clocks; let it cool down, or compare only within a run; "
    "`steelyard doctor` says what can be locked",
    Act.PRINT,
    "a change of the clock alone is told apart by cycles",
    lambda s: throttled(s.trial),
)
