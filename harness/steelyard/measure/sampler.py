"""Take the samples of one trial; nothing else happens inside a window."""

from __future__ import annotations

import gc
import math
import random
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import (
    CLOCK_MONOTONIC_RAW,
    clock_gettime_ns,
    perf_counter_ns,
    process_time_ns,
)
from typing import Final

from steelyard.analyse.stats import QUANTISED_SHARE
from steelyard.analyse.trial import Samples
from steelyard.errors import BenchmarkError
from steelyard_device.cpu import pool_used

LONGEST_WARM_UP: Final = 1_000_000
"""Nanoseconds a launch may take to be repeated untimed before each warm window; a longer
one warms its own caches within the window."""

OCTAVE: Final = 8
"""Of the timed outputs the first is checked, then one drawn at random from each stretch
that is so many times as long as all before: a few in any trial, and never none of it."""

STILL: Final = 3_000
"""Times that a window may take longer by another clock than by its own: with a clock of
50 ns that is 0.03 s for what it reads as less than 10 us."""

MANY: Final = 1 << 24
"""Launches that no machine does in a window's time."""

Window = Callable[[int], tuple[int, int]]
"""One timed window of so many units of work: both readings of the clock."""


@dataclass(frozen=True, slots=True)
class Steps:
    """What happens in and around each window of a trial."""

    restore: Callable[[], None]
    """Gives in-place arguments their data again."""
    touch: Callable[[], None]
    """Warms the caches again by an untimed launch, where that is asked for."""
    settle: Callable[[], None]
    """Makes the caches cold where that is asked for, and wakes the threads."""
    window: Window
    count: int
    """Units of work in a window."""
    unit: int
    """Launches in a unit."""
    finished: Callable[[float], bool]
    """Takes nanoseconds per launch; says whether that was the last."""
    poison: Callable[[], None]
    check: Callable[[int], None]
    """Checks the outputs of a window of so many launches; raises if they are wrong."""


@dataclass(slots=True)
class Record:
    """Samples while they are taken."""

    ticks: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    launches: list[int] = field(default_factory=list)
    cpu: list[int] = field(default_factory=list)
    preemptions: list[int] = field(default_factory=list)
    mhz: list[int] = field(default_factory=list)
    """Of a GPU; empty on the CPU."""
    began: int = 0
    """Before the first window, by a clock that nobody sets or slews."""
    ended: int = 0
    """By the same, after the last."""

    def add(self, start: int, stop: int, launches: int, cpu: int, lost: int) -> float:
        """Append a window; return its nanoseconds per launch."""
        self.ticks.append(stop - start)
        self.starts.append(start)
        self.launches.append(launches)
        self.cpu.append(cpu)
        self.preemptions.append(lost)
        return (stop - start) / launches

    def spans(self) -> list[int]:
        """Return what the clock says the trial took, and what another clock says."""
        if not self.ticks:
            return [0, 0]
        taken = self.starts[-1] + self.ticks[-1] - self.starts[0]
        return [taken, self.ended - self.began]

    def samples(self) -> Samples:
        """Return them, starts relative to the first."""
        first = self.starts[0] if self.starts else 0
        return Samples(
            tuple(self.ticks),
            tuple(start - first for start in self.starts),
            tuple(self.launches),
            tuple(self.cpu),
            tuple(self.preemptions),
            tuple(self.mhz),
        )


def sample(steps: Steps, record: Record, seed: int) -> None:
    """Fill ``record`` until the steps say it was the last.

    Whatever a window or a check raises passes through; the record keeps what it had.
    """
    checked = draw(seed)
    last = False
    while not last:
        chosen = next(checked)
        steps.restore()
        steps.touch()
        # Between the two: the untimed launch must not write what is then checked, and
        # cold caches must not hold the poison.
        if chosen:
            steps.poison()
        steps.settle()
        lost = preemptions()
        pool = pool_used()
        cpu = process_time_ns()
        record.began = record.began or other_clock()
        start, stop = steps.window(steps.count)
        record.ended = other_clock()
        cpu = _of_work(process_time_ns() - cpu, pool, pool_used())
        lost = preemptions() - lost
        launches = steps.count * steps.unit
        require_forward(record, start, stop)
        taken = record.add(start, stop, launches, cpu, lost)
        if chosen:
            steps.check(launches)
        last = steps.finished(taken)


def _of_work(spent: int, before: tuple[int, int], after: tuple[int, int]) -> int:
    """Return the processor time of a window without what our pool's threads idled.

    They flushed the caches before it and looked for more; if the work launched on the
    pool, their time is its. It is read around the process's, so may be more than that.
    """
    return max(0, spent - (after[1] - before[1]) * (before[0] == after[0]))


def other_clock() -> int:
    """Read the clock that the one of the windows is held against."""
    return clock_gettime_ns(CLOCK_MONOTONIC_RAW)


def require_forward(record: Record, start: int, stop: int) -> None:
    """Refuse a window of a clock that steps back, in it or since the last.

    Raises:
        BenchmarkError: it does.
    """
    last = record.starts[-1] if record.starts else start
    back = max(start - stop, last - start)
    if back > 0:
        raise BenchmarkError(
            f"the clock stepped back by {back} ns; no time can be read from it. Look "
            "for what sets the clock of this machine."
        )


@contextmanager
def no_collection() -> Iterator[Callable[[], int]]:
    """Keep the garbage collector out of the windows; tell the nanoseconds it still took."""
    spent, began = [0], [0]

    def watch(phase: str, _info: dict[str, int]) -> None:
        now = perf_counter_ns()
        if phase == "start":
            began[0] = now
        else:
            spent[0] += now - began[0]

    was_on = gc.isenabled()
    gc.disable()
    gc.callbacks.append(watch)
    try:
        yield lambda: spent[0]
    finally:
        gc.callbacks.remove(watch)
        if was_on:
            gc.enable()


def launches_for(window: Window, quantum: float, floor: float) -> int:
    """Return how many launches make a window long enough.

    The clock's quantum, and what it reads around nothing, are then at most
    `QUANTISED_SHARE` of the window.
    """
    wanted = max(quantum, floor) / QUANTISED_SHARE
    if wanted == math.inf:
        raise stands_still()
    count = 1
    while True:
        windows = [_twice_timed(window, count) for _ in range(3)]
        taken, _ = min(windows)
        # All of them: in one the process may have been held up between two readings.
        if all(other > STILL * max(wanted, own) for own, other in windows):
            raise stands_still()
        if taken >= wanted:
            return count
        if count >= MANY:
            raise BenchmarkError(
                f"{count} launches take {taken} ns, as few do: the work does not launch "
                "as often as it is asked to. Look at what its launch does with count."
            )
        # Half as much again as the last window promises: the first are cold.
        count = max(count + 1, int(min(100 * count, 1.5 * count * wanted / taken)))


def _twice_timed(window: Window, count: int) -> tuple[int, int]:
    """Return the nanoseconds (at least 1) of a window by its own clock and another."""
    began = other_clock()
    start, stop = window(count)
    return max(1, stop - start), other_clock() - began


def stands_still() -> BenchmarkError:
    """Return the error of a clock that does not move."""
    return BenchmarkError(
        "the clock stands still while launches run; no time can be read from it. "
        "Choose another clock, or look at the clock source of this machine."
    )


def draw(seed: int) -> Iterator[bool]:
    """Say of each sample whether it is checked: the first, then one of each octave."""
    drawn = random.Random(seed)  # noqa: S311 # not a secret
    yield True
    first = 1
    while True:
        chosen = drawn.randrange(first, OCTAVE * first)
        yield from (index == chosen for index in range(first, OCTAVE * first))
        first *= OCTAVE


def preemptions() -> int:
    """Return how often this process has lost its processor to another."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
