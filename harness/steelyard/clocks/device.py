"""Which clocks read kernels on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from steelyard.clocks import DeviceClock
from steelyard.clocks.cupti import CuptiClock
from steelyard.clocks.events import EventsClock
from steelyard.clocks.globaltimer import GlobaltimerClock
from steelyard.clocks.graph import GraphClock
from steelyard.errors import SteelyardError
from steelyard_device import cuda
from steelyard_device.cuda import activity

CLOCKS: Final[Mapping[str, Callable[[cuda.Context], DeviceClock]]] = {
    "cupti": CuptiClock,
    "events": EventsClock,
    "graph": GraphClock,
    "globaltimer": GlobaltimerClock,
}
"""By their ids, the most trusted first."""


def clocks(context: cuda.Context, which: str) -> tuple[DeviceClock, ...]:
    """Return the clock of an id, the primary one and its check, or ``all`` there are.

    ``auto`` is CUPTI where it is, checked by events; without it events, checked by
    graphs.

    Raises:
        SteelyardError: there is no such clock, or CUPTI is asked for and is not here.
    """
    if which in CLOCKS:
        chosen: tuple[str, ...] = (which,)
        if which == "cupti" and (missing := activity.missing()):
            raise SteelyardError(f"--clock cupti cannot be used: {missing}")
    elif which in {"auto", "all"}:
        here = [name for name in CLOCKS if name != "cupti" or not activity.missing()]
        chosen = tuple(here if which == "all" else here[:2])
    else:
        known = ", ".join((*CLOCKS, "auto", "all"))
        raise SteelyardError(f"there is no clock {which}: choose one of {known}.")
    return tuple(CLOCKS[name](context) for name in chosen)
