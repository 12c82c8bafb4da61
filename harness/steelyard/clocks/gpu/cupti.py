"""CUPTI's clock: when each activity of the GPU began and ended, as the GPU saw it.

It has no offset: what it says a kernel took is what the other clocks are held against.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Final

from steelyard.analyse.trial import ClockFacts, Traits
from steelyard.clocks import DeviceClock, Reading, offsets
from steelyard.clocks.gpu import Kind
from steelyard.errors import BenchmarkError
from steelyard.machine.ticks import common_tick
from steelyard.prepare.work import DeviceWork
from steelyard_device import cuda
from steelyard_device.cuda import activity

FLOOR: Final = 30
"""Windows of nothing, and null kernels among what shows its tick."""

TRAITS: Final[Traits] = {
    "pulsed": True,
    "above": "recording with CUPTI makes this kernel slower",
}


class CuptiClock(DeviceClock):
    """The GPU's busy time in a window, whatever the host does meanwhile."""

    def __init__(self, context: cuda.Context) -> None:
        self._context = context
        self._recorder = activity.Recorder(context)
        self._spin = cuda.Spin(context, seconds=offsets.SPIN_SECONDS)
        self._windows = 0
        """Of all reads so far: a window's number is never used again."""

    @functools.cached_property
    def facts(self) -> ClockFacts:
        """Its floor is that of empty windows, its tick of null kernels and delays."""
        null = cuda.null(self._context)
        delays = offsets.delays(self._context)
        launches = [*[null.launch] * FLOOR, *[each.launch for each in delays] * 4]
        nothing = [lambda: None] * FLOOR
        found = self._record(lambda _: None, [*nothing, *launches])
        times = [_busy(acts) for acts in found]
        tick, floor = common_tick(times[FLOOR:]), tuple(times[:FLOOR])
        return ClockFacts("cupti", 1, tick, floor, drift=offsets.DRIFT, **TRAITS)

    def capacity(self, kernels: int) -> int:
        """Return how many windows of so many kernels fit behind a spin."""
        return max(1, cuda.QUEUE // (kernels + offsets.AHEAD))

    def read(
        self, work: DeviceWork, windows: int, ahead: Callable[[int], None]
    ) -> list[Reading]:
        """Read windows behind a spin, so that launches stand back to back; one needs none.

        Raises:
            Expired: they were not queued in time.
            BenchmarkError: a window has no activity, one of another stream, or goes
                through the host.
        """
        found = self._record(ahead, [lambda: work.launch(1)] * windows)
        for acts in found:
            self._check(acts)
        return [Reading(_busy(acts), acts[0].start, len(acts)) for acts in found]

    def _record(
        self, ahead: Callable[[int], None], windows: Sequence[Callable[[], object]]
    ) -> list[tuple[activity.Activity, ...]]:
        """Return the activities of each window."""
        first = self._windows
        self._windows += len(windows)
        alone = len(windows) == 1
        with self._recorder.recording():
            with nullcontext() if alone else offsets.queued(self._context, self._spin):
                for place, window in enumerate(windows):
                    ahead(place)
                    with self._recorder.window(first + place):
                        window()
            self._context.wait()
        found = self._recorder.collect()
        return [found.get(first + place, ()) for place in range(len(windows))]

    def _check(self, acts: Sequence[activity.Activity]) -> None:
        if not acts:
            raise BenchmarkError(
                "a launch did nothing on the GPU that CUPTI saw: launch a kernel, or "
                "measure the case in latency modes."
            )
        if {"in", "out"} <= {each.way for each in acts}:
            raise BenchmarkError(
                "a launch copies from the GPU to the host and back: what the host does "
                "in between is work that the kernel's time leaves out. Measure the case "
                "in latency modes."
            )
        ours = self._recorder.stream
        elsewhere = {each.name for each in acts if each.stream != ours}
        if elsewhere:
            raise BenchmarkError(
                f"{', '.join(sorted(elsewhere))} ran on another stream than ours, where "
                "nothing orders it with what is measured: launch on b.stream, or let "
                "as_= hand its library our stream."
            )


def busy(intervals: Iterable[tuple[int, int]]) -> int:
    """Return how long any of the intervals lasted: overlaps once, gaps not at all."""
    total, until = 0, None
    for start, end in sorted(intervals):
        if until is None or start > until:
            until = start
        total += max(0, end - until)
        until = max(until, end)
    return total


def _busy(acts: Sequence[activity.Activity]) -> int:
    return busy((each.start, each.end) for each in acts)


def _missing() -> str | None:
    return activity.missing()


CLOCK: Final = Kind(CuptiClock, 0, TRAITS, _missing)
