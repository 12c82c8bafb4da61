"""Doubts: what clocks read, and how far each can be trusted. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

from steelyard.analyse import agreement, stats
from steelyard.analyse.doubts import Act, Doubt
from steelyard.analyse.trial import Trial

CALL: Final = 0.05
"""Share of a callable's time from which on its call is a visible part."""
FLOORS: Final = 5
"""In a window shorter than this many floors the clock is a fifth and more."""
ABOVE: Final = 1.03
"""Share of a measured peak beyond what two measurements of it differ by."""
HOST_CLOCKS: Final = 0.005
"""Share by which two clocks of the host may differ: one is slewed by 0.05 % at most."""
JITTER: Final = 200_000
"""Nanoseconds that may pass between the readings of two clocks, at both ends."""


def clocks_disagree(trial: Trial) -> bool:
    """Tell whether two clocks of a GPU, or two of the host, read different times."""
    kernels = trial.facts.get("kernels", 1)
    views = agreement.views(trial).values()
    read = [(view.clock, stats.of(view).estimate) for view in views]
    return bool(agreement.disagree(read, kernels)) or host_clocks_differ(
        trial.extra.get("spans", (0, 0))
    )


def host_clocks_differ(spans: Sequence[int]) -> bool:
    """Tell whether a trial took another time by its own clock than by a second one."""
    own, other = spans
    return abs(own - other) > HOST_CLOCKS * other + JITTER


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


ABOVE_PEAK: Final = Doubt(
    "above-peak",
    "faster than the fastest that was measured on this machine; look whether its "
    "bytes and operations are counted right, or measure the peaks again with "
    "`steelyard peaks --again`",
    Act.PRINT,
    "the count of bytes is in doubt, not the time of either side",
)

CLOCKS_DISAGREE: Final = Doubt(
    "clocks-disagree",
    "two clocks differ by more than the error bars of both; on a GPU `--clocks "
    "all` shows them side by side with the likely cause",
    Act.OPEN,
    "one of two clocks is wrong and nobody knows which",
    lambda s: clocks_disagree(s.trial),
)

GAPS: Final = Doubt(
    "gaps",
    "a launch is several kernels and the time is with the gaps between them, "
    "which this clock cannot leave out; install cupti-python and measure with "
    "--clock cupti to have the kernels alone",
    Act.PRINT,
    "the gaps are part of both sides' launches",
    lambda s: s.trial.clock.gapped and s.trial.facts.get("kernels", 1) > 1,
)

PYTHON_CALL: Final = Doubt(
    "python-call",
    "calling it takes more than 5 % of the time, which is therefore not the "
    "kernel's alone; the floor is an empty callable of its kind. Give it more to "
    "do in a call, or launch a compiled kernel",
    Act.PRINT,
    "a change of the call is a change of what its user waits for",
    lambda s: calls(s.trial),
)

QUANTISED: Final = Doubt(
    "quantised",
    "the clock's tick is a visible part of the window; the estimate is a mean of "
    "ticks and its interval includes one",
    Act.PRINT,
    "the interval includes the tick",
    lambda s: s.summary.quantised,
)

UNDER_FLOOR: Final = Doubt(
    "under-floor",
    "less than five times what the clock reads around nothing; the floor is a "
    "large part of the number",
    Act.PRINT,
    "the floor hides part of a change and makes none",
    lambda s: under_floor(s.trial),
)
