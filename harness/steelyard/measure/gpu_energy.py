"""The energy of a launch on a GPU, as NVML counts it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from time import perf_counter_ns
from typing import Any, Final

from steelyard.declare.settings import Settings
from steelyard.machine import gpu_state
from steelyard.prepare.work import DeviceWork
from steelyard_device.cuda import Context

METERED: Final = 0.4
"""Seconds of launches whose energy is metered: 20 of the counter's steps on an H200."""

LONGEST_STEP: Final = 200e6
"""Nanoseconds in which a counter that moves at all has moved: ten of its steps."""

STRETCH: Final = 5e6
"""Nanoseconds of launches between two readings of the counter: a hundredth of all."""

MOST: Final = 10_000
"""Launches between two readings; more would fill the queue of a tiny kernel."""


def wanted(how: Settings, axes: Mapping[str, Any]) -> bool:
    """Tell whether a case's energy is metered: asked for, or its inputs are compared."""
    return how.energy or "inputs" in axes


def measure(
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
        submit, gpu_state.monitor(context.device.uuid).energy_mj, perf_counter_ns, count
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
