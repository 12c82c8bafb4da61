"""Take the samples of one trial from a stream of windows, the host's or a GPU's."""

from __future__ import annotations

import gc
import random
import resource
from bisect import insort
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Final, Protocol

from steelyard.analyse import stats
from steelyard.analyse.trial import ClockFacts, Samples
from steelyard.declare.plan import Settings

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


TRIAL_BUDGET: Final = 0.08
"""Seconds of sampling in one trial unless the run has a budget: four blocks of it give a
median of 100 us kernels to a few per mille, and a suite of 100 rows in a minute."""

MAXIMUM: Final = 5000
"""Beyond this the interval of one block says nothing more: blocks differ by more."""

PATIENCE: Final = 2
"""Budgets after which a trial in turn ends with what it has: of windows that long, such as
builds of seconds, another block tells more than a second window."""

LONG: Final = 1e9
"""Nanoseconds of a window of which one is enough once the budget is spent, as above."""

ASK_EVERY: Final = 8
"""Samples between two looks at the interval once there are many; looking takes
microseconds, and looking at each sample stops too early too often."""


@dataclass(slots=True)
class Stopping:
    """Stops when the interval is narrow enough, or the budget is spent.

    ``precision`` is the half-width asked for, as a fraction; ``budget`` and ``now`` are
    in nanoseconds; a sample is nanoseconds per launch of windows of ``launches``, and
    ``pulsed`` what `stats.summarise` says.
    """

    precision: float
    budget: int
    now: Callable[[], int]
    launches: int = 1
    quantum: float = 0.0
    pulsed: bool = False
    settled: bool = False
    """Whether the interval was reached."""
    _ordered: list[float] = field(default_factory=list)
    _deadline: int = 0

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Count the budget from now on."""
        self._deadline = self.now() + self.budget

    def finished(self, sample: float) -> bool:
        """Take one more sample and say whether it was the last."""
        insort(self._ordered, sample)
        count = len(self._ordered)
        spent = self.now() >= self._deadline
        if count >= self._minimum() and (count % ASK_EVERY == 0 or spent):
            self.settled = self._half_width() <= self.precision
        if count >= MAXIMUM or self.settled:
            return True
        # Past the budget a slow case still gets three samples, for a spread at all.
        return spent and (count >= 3 or sample * self.launches >= LONG)

    @property
    def overdue(self) -> bool:
        """Whether the budget is spent several times over."""
        return self.now() >= self._deadline + (PATIENCE - 1) * self.budget

    def _minimum(self) -> int:
        step = self.quantum / self.launches
        averaged = self.pulsed or stats.is_quantised(self._ordered, step)
        return stats.QUANTISED_SAMPLES if averaged else stats.MINIMUM

    def _half_width(self) -> float:
        step = self.quantum / self.launches
        return stats.estimate(self._ordered, step, pulsed=self.pulsed).half_width


def stopping_of(settings: Settings, launches: int, clock: ClockFacts) -> Stopping:
    """Return what ends a trial whose windows have so many launches, read by a clock."""
    return Stopping(
        settings.precision,
        int((settings.budget or TRIAL_BUDGET) * 1e9),
        perf_counter_ns,
        launches,
        clock.quantum,
        pulsed=clock.pulsed,
    )
