"""Which job a free machine takes next. Pure.

Nothing here knows who drives the machines or where jobs are kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from steelyard.analyse import kinds

MOST_FAILED: Final = 2
"""Times that a job may fail by itself before it is reported."""

MOST_LOST: Final = 10
"""Times that a job's machine may go away, beyond those of jobs that are done, before the
job is given up: it may be the job's doing. What ends a driver or keeps an agent from the
database is not: that does not count."""

GONE: Final = "lost its machine"
"""The word of a job whose agent or machine went away."""

GATE: Final = "gate"
RUN: Final = "run"
BISECT: Final = "bisect"
"""Two commits beside each other."""


@dataclass(frozen=True, slots=True)
class Job:
    """One commit's suites on one machine of a kind."""

    id: int
    commit: str
    suites: tuple[str, ...]
    on: str
    """Which kind of machine: see `kinds.accepts`."""
    repeat: int = 0
    what: str = RUN
    """``run``, or another command, whose arguments before the suites are options."""
    options: tuple[str, ...] = ()
    """Of that command."""


def planned(
    commits: Sequence[str],
    suites: Sequence[str],
    on: Sequence[str],
    repeat: int,
    *,
    options: tuple[str, ...] = (),
    what: str = RUN,
) -> Iterator[Job]:
    """Yield the jobs of a campaign, each commit once on each kind before any twice.

    What drifts from day to day is so not in the order of the commits.
    """
    points = product(range(repeat), commits, on)
    for number, (turn, commit, kind) in enumerate(points):
        yield Job(number, commit, tuple(suites), kind, turn, what, options)


class Queue:
    """Jobs that wait, by the kind of machine that they are for."""

    def __init__(self, jobs: Iterable[Job] = ()) -> None:
        self._waiting: dict[str, deque[Job]] = {}
        self._accepted: dict[str, tuple[str, ...]] = {}
        for job in jobs:
            self.put(job)

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def put(self, job: Job) -> None:
        """Add a job behind those of its kind."""
        if job.on not in self._waiting:
            self._waiting[job.on] = deque()
            self._accepted.clear()
        self._waiting[job.on].append(job)

    def take(self, facts: Mapping[str, str]) -> Job | None:
        """Return the job that a free machine is to do: the oldest that it may.

        That takes no longer the more jobs or machines there are, only the more kinds.
        """
        first = [self._waiting[on] for on in self._kinds(facts) if self._waiting[on]]
        return min(first, key=lambda jobs: jobs[0].id).popleft() if first else None

    def unserved(self, machines: Iterable[Mapping[str, str]]) -> list[str]:
        """Return the kinds that have jobs and none of these machines."""
        served = {on for facts in machines for on in self._kinds(facts)}
        return [on for on, jobs in self._waiting.items() if jobs and on not in served]

    def _kinds(self, facts: Mapping[str, str]) -> tuple[str, ...]:
        kind = kinds.text(facts)
        if kind not in self._accepted:
            self._accepted[kind] = tuple(
                on for on in self._waiting if kinds.accepts(on, facts)
            )
        return self._accepted[kind]
