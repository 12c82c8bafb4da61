"""Take the samples of one trial from a stream of windows, the host's or a GPU's."""

from __future__ import annotations

import gc
import random
import resource
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Final, Protocol

from steelyard.analyse.trial import Samples
from steelyard.measure.stopping import Stopping

OCTAVE: Final = 8
"""Of the timed outputs the first is checked, then one drawn at random from each stretch
that is so many times as long as all before: a few in any trial, and never none of it."""


class Stream(Protocol):
    """Takes the windows of a case in queues: a clock of the host's reads one at a time."""

    count: int
    """Units of work in a window."""
    room: int
    """Windows in a queue, at most."""

    def take(self, windows: int, record: Record, *, poison: bool) -> list[float]:
        """Add a queue of windows to the record; return each one's nanoseconds per launch.

        With ``poison`` outputs hold what no work leaves before the first.
        """
        ...

    def check(self) -> None:
        """Check the outputs of the last window; raises if they are wrong."""
        ...


@dataclass(slots=True)
class Sampling:
    """A trial whose windows are taken one queue after another; see `sample`."""

    stopping: Stopping
    count: int
    """Units of work in a window: what is set before the first holds."""
    enough: bool = False
    """Whether the samples are enough by themselves."""
    last: bool = False
    """Set before the next one is asked for: then there is none."""

    @property
    def over(self) -> bool:
        """Whether the samples are enough, or the budget is spent several times over."""
        return self.enough or self.stopping.overdue


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


def sample(
    stream: Stream, record: Record, seed: int, stopping: Stopping
) -> Generator[Sampling]:
    """Fill ``record``: yield before the first window, and after each queue of them.

    It goes on until whoever iterates says which was the last, so that a loop can have
    the windows of two trials taken in turn. Whatever a window or a check raises passes
    through; the record keeps what it had.
    """
    sampling = Sampling(stopping, stream.count)
    yield sampling
    stream.count = sampling.count
    stopping.begin()
    for windows, chosen in queues(seed, stream.room):
        times = stream.take(windows, record, poison=chosen)
        if chosen:
            stream.check()
        sampling.enough = any([stopping.finished(time) for time in times])  # noqa: C419 # all are told
        yield sampling
        if sampling.last:
            return


def queues(seed: int, longest: int) -> Iterator[tuple[int, bool]]:
    """Say of each queue how many windows it has and whether it is checked.

    A window that is checked stands alone: its outputs are poisoned before and must not
    be written by another's launches before they are looked at.
    """
    windows = 0
    for chosen in draw(seed):
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
