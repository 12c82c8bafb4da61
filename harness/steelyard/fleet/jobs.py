"""Which job a free machine takes next. Pure.

Nothing here knows who drives the machines or where jobs are kept. A job may have a machine
to itself, or a part: a GPU with its share of the cores. A part is called after its machine,
such as ``box/gpu0``; who has the machine has all of its parts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
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


MACHINE: Final = "machine"
GPU: Final = "gpu"
"""What a job has to itself; as resources of Ray's each machine has one ``machine`` and
``gpu0``, ``gpu1`` and so on."""

PARTS: Final = 10_000
"""Ray counts resources in these (docs.ray.io, Resources)."""


@dataclass(frozen=True, slots=True)
class Share:
    """One GPU of a machine."""

    uuid: str
    """As ``CUDA_VISIBLE_DEVICES`` takes it: an index would depend on who counts."""
    at: int
    of: int
    """How many there are."""

    @property
    def name(self) -> str:
        """Return ``gpu0``, ``gpu1`` and so on."""
        return f"{GPU}{self.at}"

    def resources(self) -> dict[str, float]:
        """Return what of Ray's it takes: all GPUs together less than a machine."""
        return {MACHINE: PARTS // self.of / PARTS, self.name: 1}


def labels(gpus: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the facts of a machine's GPUs, of which each is a name and a UUID."""
    if not gpus:
        return {}
    found = {"gpu": gpus[0][0], "gpus": str(len(gpus))}
    for at, (name, uuid) in enumerate(gpus):
        found |= {f"{GPU}{at}": name, f"uuid{at}": uuid}
    return found


def resources(facts: Mapping[str, str]) -> dict[str, float]:
    """Return what a machine with these facts has."""
    count = int(facts.get("gpus", 0))
    return {MACHINE: 1, **{f"{GPU}{at}": 1 for at in range(count)}}


def said(facts: Mapping[str, str]) -> dict[str, str]:
    """Return a machine's facts without those of each of its GPUs."""
    count = int(facts.get("gpus", 0))
    own = {f"{what}{at}" for what in (GPU, "uuid") for at in range(count)}
    return {name: value for name, value in facts.items() if name not in own}


def parts(facts: Mapping[str, str]) -> dict[str, tuple[dict[str, str], Share | None]]:
    """Return the facts of a machine's GPUs by name; a machine without one is whole."""
    count, whole = int(facts.get("gpus", 0)), said(facts)
    if not count:
        return {facts["name"]: (whole, None)}
    found: dict[str, tuple[dict[str, str], Share | None]] = {}
    for at in range(count):
        share = Share(facts[f"uuid{at}"], at, count)
        name = f"{facts['name']}/{share.name}"
        own = {"name": name, "gpu": facts[f"{GPU}{at}"], "gpus": "1"}
        found[name] = whole | own, share
    return found


def cores(
    cpus: Collection[int], together: Collection[Sequence[int]], share: Share
) -> set[int]:
    """Return the processors of a share: whole cores, as many as any other's, in order.

    ``together`` has the groups that are threads of one core. So that two jobs do not meet
    on one, what is over stays idle; where GPUs outnumber the cores all of them are shared.
    """
    grouped = set(chain.from_iterable(together))
    every = sorted(
        [*map(sorted, together), *([one] for one in cpus if one not in grouped)]
    )
    count = len(every) // share.of
    return set(chain.from_iterable(every[share.at * count :][:count])) or set(cpus)
