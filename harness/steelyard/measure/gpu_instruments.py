"""Per-process instruments of one GPU: clocks, a flush, stamps and floors."""

from __future__ import annotations

import functools
import statistics
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from steelyard.clocks import in_queues
from steelyard.declare.plan import Settings
from steelyard.machine import gpu_state
from steelyard.prepare.work import DeviceWork
from steelyard_device import cuda
from steelyard_device.cuda import Context, driver, graph

if TYPE_CHECKING:
    from steelyard.clocks import DeviceClock
    from steelyard.prepare.work import DeviceWork
    from steelyard_device.cuda.stamps import Stamps

WINDOWS: Final = 256
"""Of a queue at most: stamps have places for so many."""

NULLS: Final = 21
"""Odd, so that the median is a reading."""


class GpuInstruments:
    """Everything is made at its first use and kept as long as the process."""

    def __init__(self, context: cuda.Context) -> None:
        self.context = context
        self._clocks: dict[str, tuple[DeviceClock, ...]] = {}
        self._nulls: dict[str, float] = {}
        self._usual = self._set_aside()

    @functools.cached_property
    def flush(self) -> cuda.Flush:
        """A flush of twice the L2 cache."""
        return cuda.Flush(self.context)

    @functools.cached_property
    def stamps(self) -> Stamps:
        """A place for the start of each window of a queue, and one for its end."""
        from steelyard_device.cuda.stamps import Stamps

        return Stamps(self.context, WINDOWS + 1)

    def clocks(self, which: str) -> tuple[DeviceClock, ...]:
        """Return the clock asked for, then those that check it."""
        from steelyard.clocks import gpu

        if which not in self._clocks:
            self._clocks[which] = gpu.clocks(self.context, which)
        return self._clocks[which]

    def null(self, clock: DeviceClock) -> float:
        """Return the median nanoseconds that a clock reads of a kernel of nothing."""
        name = clock.facts.id
        if name not in self._nulls:
            nothing = cuda.null(self.context)
            readings = in_queues(clock, nothing, NULLS, lambda _: None)
            self._nulls[name] = float(statistics.median(r.ticks for r in readings))
        return self._nulls[name]

    def release_lines(self) -> None:
        """Let go of cache lines that someone's work asked to be kept."""
        with driver.current(self.context.handle):
            driver.call("resetting persisting lines", "cuCtxResetPersistingL2Cache")

    def persisting(self) -> int:
        """Return the bytes of the L2 cache set aside for lines to be kept since then.

        Some are from the start (11.8 MB on an H200), for whoever asks.
        """
        return max(0, self._set_aside() - self._usual)

    def _set_aside(self) -> int:
        limit = driver.attribute("CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE")
        with driver.current(self.context.handle):
            try:
                found = driver.call("asking for a limit", "cuCtxGetLimit", limit)
            except cuda.CUDAError as failure:
                if failure.lost:
                    raise
                return 0  # an older GPU keeps none
        return int(found)

    def capped(self) -> AbstractContextManager[Mapping[str, Any]]:
        """Watch, within a ``with``, for how long the clock is held back."""
        return gpu_state.capped(self.context)

    def kernels(self, work: DeviceWork) -> int:
        """Return how many activities a launch is, 0 where it cannot be recorded."""
        try:
            return graph.activities(work)
        except Exception as failure:  # whatever the work raises
            if getattr(failure, "lost", False):
                raise
            return 0


def frequencies(stamps: Stamps, windows: int) -> list[int]:
    """Return the megahertz from each window's stamp to the next.

    The last window ends at a stamp submitted now. Where a stamp was missed, the ones
    around it stand for it; 0 where there is none.
    """
    stamps.stamp(windows)
    marks = stamps.read(windows + 1)
    befores = _filled(marks[:-1])
    afters = _filled(marks[:0:-1])[::-1]
    return [_megahertz(*pair) for pair in zip(befores, afters, strict=True)]


def _filled(marks: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Replace missed marks by the last one before them."""
    filled = marks[:1]
    for mark in marks[1:]:
        filled.append(mark if mark[1] else filled[-1])
    return filled


def _megahertz(before: tuple[int, int], after: tuple[int, int]) -> int:
    cycles, nanoseconds = after[0] - before[0], after[1] - before[1]
    if not (before[1] and after[1] and cycles > 0 and nanoseconds > 0):
        return 0
    return round(1000 * cycles / nanoseconds)


METERED: Final = 0.4
"""Seconds of launches whose energy is metered: 20 of the counter's steps on an H200."""

LONGEST_STEP: Final = 200e6
"""Nanoseconds in which a counter that moves at all has moved: ten of its steps."""

STRETCH: Final = 5e6
"""Nanoseconds of launches between two readings of the counter: a hundredth of all."""

MOST: Final = 10_000
"""Launches between two readings; more would fill the queue of a tiny kernel."""


def wants_energy(how: Settings, axes: Mapping[str, Any]) -> bool:
    """Tell whether a case's energy is metered: asked for, or its inputs are compared."""
    return how.energy or "inputs" in axes


def measured_energy(
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
