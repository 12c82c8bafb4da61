"""Where the time of a program on a GPU went: kernels, gaps, copies, memory and waits. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

KINDS: Final = ("kernel", "copy", "fill", "memory", "wait")
"""Of events, in the order of their numbers."""

LONGEST: Final = 2000
"""Launches of an iteration that is looked for."""

LOOKED: Final = 20_000
"""Launches that are looked at, the last ones: programs begin with others."""

SAME: Final = 0.98
"""The share of launches that are as in the iteration before."""

REPEATS: Final = 3
"""Iterations at least."""

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Events:
    """What a program had a GPU do, by start; nanoseconds."""

    kind: NDArray[np.int8]
    name: NDArray[np.int32]
    start: Ints
    end: Ints
    stream: Ints
    nbytes: Ints
    names: Sequence[str]
    about: Mapping[str, Any]
    """When it began and ended, its exit code, and what is missing and why."""

    def of(self, kind: str, name: str | None = None) -> NDArray[np.intp]:
        """Return the places of the events of a kind, and of a name of these."""
        found = self.kind == KINDS.index(kind)
        if name is not None:
            numbers = [i for i, each in enumerate(self.names) if each == name]
            found = found & np.isin(self.name, numbers)
        return np.flatnonzero(found)

    def count(self, kind: str, name: str | None = None) -> int:
        """Return how many events there are of a kind."""
        return len(self.of(kind, name))

    def total(self, kind: str, name: str | None = None) -> int:
        """Return the nanoseconds of events, one after another."""
        at = self.of(kind, name)
        return int((self.end[at] - self.start[at]).sum())

    def bytes(self, kind: str, name: str | None = None) -> int:
        """Return the bytes of events."""
        return int(self.nbytes[self.of(kind, name)].sum())


@dataclass(frozen=True, slots=True)
class Kernel:
    """All launches of one kernel."""

    name: str
    count: int
    total: int
    gap: float
    """Median nanoseconds before one in which no kernel runs."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """Where the time went, from the first kernel's start to the last one's end."""

    span: int
    busy: int
    """Nanoseconds in which some kernel runs."""
    launches: int
    kernels: Sequence[Kernel]
    """The longest in all first."""
    iteration: int
    """Launches after which the same kernels come again; 0 where they do not."""
    apart: float
    """Median nanoseconds from one launch's start on the GPU to the next."""

    @property
    def idle(self) -> float:
        """The share of the time in which no kernel runs."""
        return 1 - self.busy / self.span if self.span else 0.0


def ledger(events: Events) -> Ledger:
    """Add up a program's kernels and the gaps between them."""
    at = events.of("kernel")
    if not len(at):
        return Ledger(0, 0, 0, (), 0, 0.0)
    start, end, name = events.start[at], events.end[at], events.name[at]
    reached = np.maximum.accumulate(end)
    before = np.concatenate((start[:1], reached[:-1]))
    gaps = np.maximum(start - before, 0)
    span = int(reached[-1] - start[0])
    kernels = [
        Kernel(
            events.names[int(number)],
            int(mine.sum()),
            int((end - start)[mine].sum()),
            float(np.median(gaps[mine])),
        )
        for number in np.unique(name)
        for mine in [name == number]
    ]
    return Ledger(
        span,
        span - int(gaps.sum()),
        len(at),
        sorted(kernels, key=lambda one: -one.total),
        period(name[-LOOKED:]),
        float(np.median(np.diff(start))) if len(start) > 1 else 0.0,
    )


def period(names: NDArray[np.int32]) -> int:
    """Return after how many launches the same come again; 0 where they do not.

    It is the least number for which they do: of the second half of the launches, since a
    program begins with others.
    """
    late = names[len(names) // 2 :]
    for length in range(1, min(LONGEST, len(late) // REPEATS) + 1):
        if np.mean(late[length:] == late[:-length]) >= SAME:
            return length
    return 0
