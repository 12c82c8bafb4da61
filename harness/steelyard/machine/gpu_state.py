"""The state of a GPU as NVML reports it; nothing is set.

What cannot be read is ``unknown``. Asking costs milliseconds: never within a window.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from steelyard.analyse.trial import UNKNOWN

if TYPE_CHECKING:
    from steelyard_device.cuda import Context
    from steelyard_device.nvml import Monitor


@functools.cache
def monitor(uuid: str) -> Monitor:
    """Return what reads a GPU's state, one for each of them."""
    from steelyard_device.nvml import Monitor

    return Monitor(uuid)


def settings(uuid: str) -> dict[str, Any]:
    """Return how a GPU is set up: driver, modes, limits."""
    return dict(monitor(uuid).settings())


def now(uuid: str) -> dict[str, Any]:
    """Return a GPU's clocks, power, heat, memory and all its processes, just now."""
    return dict(monitor(uuid).moment())


def before(context: Context) -> dict[str, Any]:
    """Return a GPU's clocks, power, heat, memory, and who else uses it, just now."""
    found = now(context.device.uuid)
    return found | {"others": others(found.pop("processes"), os.getpid())}


def after(context: Context, start: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a trial keeps of its GPU: how it was at its start, and is now."""
    return {"before": dict(start), "after": before(context)}


@contextmanager
def capped(context: Context) -> Iterator[dict[str, Any]]:
    """Give what is filled at the end: nanoseconds for which the clock was held back.

    By the reason; ``unknown`` where NVML does not count it.
    """
    found: dict[str, Any] = {}
    counted = monitor(context.device.uuid)
    before = counted.held_back()
    yield found
    found |= grown(before, counted.held_back())


def grown(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return by how much each counter grew, as far as it was known both times."""
    return {
        name: end - before[name]
        if isinstance(end, int) and isinstance(before.get(name), int)
        else UNKNOWN
        for name, end in after.items()
    }


def others(processes: Any, own: int) -> Any:
    """Return the processes of a GPU but for our own, which has a context there.

    ``unknown`` where we are not among those listed: what a container sees has other
    numbers, or nothing at all.
    """
    if not isinstance(processes, (list, tuple)):
        return UNKNOWN
    rest = [one for one in processes if one.get("pid") != own]
    return rest if len(rest) < len(processes) else UNKNOWN


def use(uuid: str) -> tuple[float, ...]:
    """Return how busy a GPU is, to be compared: its work, then its memory."""
    found = now(uuid)
    known = [found[name] for name in ("gpu_use", "memory_used")]
    return tuple(float(v) if isinstance(v, (int, float)) else 0.0 for v in known)
