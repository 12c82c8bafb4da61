"""Take the samples of one trial on a GPU, in queues that nobody waits within.

A queue is a few milliseconds of windows, submitted at once and waited for at its end:
between what leads to a window and its launch the GPU waits for no host.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import process_time_ns
from typing import TYPE_CHECKING, Final, Protocol

from steelyard.clocks import DeviceClock, Expired, Reading
from steelyard.measure import sampler

if TYPE_CHECKING:
    from steelyard.prepare.work import DeviceWork

EXPIRIES: Final = 8
"""Queues that may outlast their spin before the trial fails: each costs its seconds, and
halves all that follow. A clock that sees no kernels takes a launch for one of them."""


class Stamps(Protocol):
    """Where a multiprocessor writes down its cycles and the time."""

    def stamp(self, place: int) -> None:
        """Submit a stamp."""
        ...

    def read(self, count: int) -> list[tuple[int, int]]:
        """Return cycles and nanoseconds of the first places; waits for them."""
        ...


@dataclass(frozen=True, slots=True)
class Steps:
    """What is submitted for each window of a trial; none of it waits."""

    work: DeviceWork
    clock: DeviceClock
    stamps: Stamps
    windows: int
    """In a queue, at most; each has one launch."""
    lead: Callable[[], None]
    """Loads the GPU before the first window of a queue; see `device_steps.LEAD`."""
    touch: Callable[[], None]
    """Warms the caches by an untimed launch, where that is asked for."""
    restore: Callable[[], None]
    settle: Callable[[], None]
    """Makes the caches cold, where that is asked for."""
    finished: Callable[[float], bool]
    """Takes nanoseconds per launch; says whether that was enough."""
    poison: Callable[[], None]
    check: Callable[[int], None]
    """Checks the outputs of a window of so many launches; raises if they are wrong."""


@dataclass(slots=True)
class QueueStats:
    """What a trial's queues tell beside its samples."""

    expired: int = 0
    """Queues that were thrown away: the host had not filled them in time."""
    room: int = sys.maxsize
    """Windows of a queue that are not too many, as far as is known."""
    kernels: int = 0
    """Activities of the GPU in a window, where the clock sees them."""


def sample(steps: Steps, record: sampler.Record, seed: int, told: QueueStats) -> None:
    """Fill ``record`` until the steps say it is enough; all of a queue is kept.

    Whatever a queue or a check raises passes through; the record keeps what it had.
    """
    offset = steps.clock.facts.offset
    for windows, chosen in queues(seed, steps.windows):
        readings = _queue(steps, windows, record, told, poison=chosen)
        if chosen:
            steps.check(1)
        enough = False
        for reading in readings:
            enough = steps.finished(max(reading.ticks - offset, 0.0)) or enough
        if enough:
            return


def queues(seed: int, longest: int) -> Iterator[tuple[int, bool]]:
    """Say of each queue how many windows it has and whether it is checked.

    A window that is checked stands alone: its outputs are poisoned before and must not
    be written by another's launches before they are looked at.
    """
    windows = 0
    for chosen in sampler.draw(seed):
        if not chosen and windows + 1 < longest:
            windows += 1
            continue
        if not chosen:
            yield windows + 1, False
        else:
            if windows:
                yield windows, False
            yield 1, True
        windows = 0


def _queue(
    steps: Steps,
    windows: int,
    record: sampler.Record,
    told: QueueStats,
    *,
    poison: bool,
) -> list[Reading]:
    """Take one queue into the record, in parts where it outlasts its spin."""
    if windows > told.room:
        some = told.room
        return [
            *_queue(steps, some, record, told, poison=poison),
            *_queue(steps, windows - some, record, told, poison=poison),
        ]
    lost, cpu = sampler.preemptions(), process_time_ns()
    try:
        readings = steps.clock.read(steps.work, windows, ahead(steps, poison=poison))
    except Expired:
        told.expired += 1
        if told.expired == EXPIRIES or windows == 1:
            raise
        told.room = windows // 2
        return _queue(steps, windows, record, told, poison=poison)
    cpu, lost = process_time_ns() - cpu, sampler.preemptions() - lost
    record.mhz += frequencies(steps.stamps, windows)
    for place, reading in enumerate(readings):
        # What the host was interrupted is nobody's window: the first stands for all.
        record.add(
            reading.start,
            reading.start + reading.ticks,
            1,
            cpu // windows,
            0 if place else lost,
        )
    told.kernels = readings[-1].kernels
    return readings


def ahead(steps: Steps, *, poison: bool = False) -> Callable[[int], None]:
    """Return what submits all that leads to a window.

    The warming launch comes first: it may change what is restored, and must not write
    what is then checked. Poison lies under the flush.
    """

    def submit(place: int) -> None:
        if not place:
            steps.lead()
        steps.stamps.stamp(place)
        steps.touch()
        steps.restore()
        if poison:
            steps.poison()
        steps.settle()

    return submit


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
