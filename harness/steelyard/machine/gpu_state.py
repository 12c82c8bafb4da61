"""The state of a GPU as NVML tells it, and the energy of a launch; nothing is set.

What cannot be read is ``unknown``. Asking costs milliseconds: never within a window.
"""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from steelyard.machine.facts import UNKNOWN

if TYPE_CHECKING:
    from steelyard.declare.settings import Settings
    from steelyard.prepare.work import DeviceWork
    from steelyard_device.cuda import Context
    from steelyard_device.nvml import Monitor

METERED: Final = 0.4
"""Seconds of launches whose energy is metered: 20 of the counter's steps on an H200."""

LONGEST_STEP: Final = 200e6
"""Nanoseconds in which a counter that moves at all has moved: ten of its steps."""

STRETCH: Final = 5e6
"""Nanoseconds of launches between two readings of the counter: a hundredth of all."""

MOST: Final = 10_000
"""Launches between two readings; more would fill the queue of a tiny kernel."""


@functools.cache
def _monitor(uuid: str) -> Monitor:
    from steelyard_device.nvml import Monitor

    return Monitor(uuid)


def settings(uuid: str) -> dict[str, Any]:
    """Return how a GPU is set up: driver, modes, limits."""
    return dict(_monitor(uuid).settings())


def now(uuid: str) -> dict[str, Any]:
    """Return a GPU's clocks, power, heat, memory and all its processes, just now."""
    return dict(_monitor(uuid).moment())


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
    monitor = _monitor(context.device.uuid)
    before = monitor.held_back()
    yield found
    found |= grown(before, monitor.held_back())


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


def wants_energy(how: Settings, axes: Mapping[str, Any]) -> bool:
    """Tell whether a case's energy is metered: asked for, or its inputs are compared."""
    return how.energy or "inputs" in axes


def energy(
    context: Context, work: DeviceWork, launch_ns: float
) -> dict[str, float] | None:
    """Meter launches back to back, each of about ``launch_ns``; None if NVML cannot.

    Inputs are not restored in between.
    """
    from steelyard_device import cuda

    count = min(MOST, max(1, round(STRETCH / max(launch_ns, 1.0))))
    marks = deque[cuda.Event]()

    def submit() -> None:
        """Give the GPU a stretch, and wait for the one before the last."""
        work.launch(count)
        marks.append(cuda.Event(context))
        marks[-1].record(work.stream)
        if len(marks) > 2:
            marks.popleft().wait()

    found = metered(
        submit, _monitor(context.device.uuid).energy_mj, perf_counter_ns, count
    )
    work.wait()
    return found


def metered(
    submit: Callable[[], object],
    counter: Callable[[], Any],
    clock: Callable[[], int],
    count: int,
    *,
    seconds: float = METERED,
) -> dict[str, float] | None:
    """Return joules of a launch and watts between two steps of a counter.

    ``submit`` gives the GPU ``count`` launches more and waits for earlier ones, so that
    it is never idle while the counter is asked. The counter, in millijoules, moves in
    steps of many milliseconds; it is asked for one at the start and one at the end
    alone, because asking slows a GPU's memory down. None where it did not move.
    """
    launches = 0

    def step() -> tuple[int, int, int] | None:
        """Go on until the counter moves: when, to what, after how many launches."""
        nonlocal launches
        began, seen = clock(), counter()
        while clock() - began < LONGEST_STEP:
            submit()
            launches += count
            found = counter()
            if isinstance(found, int) and found != seen:
                return clock(), found, launches
        return None

    first = step()
    if first is None:
        return None
    while clock() - first[0] < seconds * 1e9:
        submit()
        launches += count
    last = step()
    if last is None:
        return None
    elapsed, millijoules, done = (b - a for a, b in zip(first, last, strict=True))
    return {
        "joules_per_launch": millijoules / 1e3 / done,
        "watts": millijoules * 1e6 / elapsed,
        "launches": float(done),
        "seconds": elapsed / 1e9,
    }
