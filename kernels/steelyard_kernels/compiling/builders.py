"""Building points again and again: in this process, in workers, in fresh processes.

Every builder answers with a `Sample`; rounds go over all rows, so that whatever the
machine does meanwhile it does to all of them.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import repeat
from time import monotonic_ns, perf_counter_ns
from typing import Any, Final, NamedTuple, Protocol

from steelyard_device.timings import Timings, span, timings
from steelyard_kernels.binary import Failed
from steelyard_kernels.building.facts import facts_of
from steelyard_kernels.compiling.points import Point, ready
from steelyard_kernels.errors import KernelError

FROM_MEMORY: Final = 1000
"""Builds of a sample where each is a look into a dictionary: a clock read is longer."""


START: Final = (
    "from time import monotonic_ns; began = monotonic_ns(); "
    "from steelyard_kernels.compiling import worker; worker.main(began)"
)
"""What a worker runs: its clock is read before anything of ours is imported."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One build: what it took (ns), in all and by phase, and what it came to."""

    nanoseconds: float
    phases: Mapping[str, float]
    facts: Mapping[str, Any]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """All builds of one point in one way."""

    point: Point
    cache: str
    drop: tuple[str, ...]
    library: str
    samples: tuple[Sample, ...]

    @property
    def median(self) -> float:
        """The median build, in nanoseconds."""
        return statistics.median(s.nanoseconds for s in self.samples)

    @property
    def best(self) -> float:
        """The fastest."""
        return min(s.nanoseconds for s in self.samples)

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the last build came to."""
        return self.samples[-1].facts

    @property
    def error(self) -> str | None:
        """Why there is nothing."""
        return self.samples[-1].error

    @property
    def phases(self) -> dict[str, float]:
        """The median of each phase, in nanoseconds."""
        names = dict.fromkeys(name for s in self.samples for name in s.phases)
        return {
            name: statistics.median(s.phases.get(name, 0.0) for s in self.samples)
            for name in names
        }


class Builder(Protocol):
    """Somebody who builds points, by their numbers."""

    library: str
    """The NVRTC it was told to take; empty: the one that is found."""

    def build(self, number: int, cache: str, drop: Sequence[str]) -> Sample:
        """Build once, with the caches of a name less those dropped."""
        ...


class Here:
    """Builds in this process."""

    library = ""

    def __init__(self, points: Iterable[Point]) -> None:
        self._ready = [ready(point) for point in points]

    def build(self, number: int, cache: str, drop: Sequence[str]) -> Sample:
        """Build once; from memory a thousand times, and give the mean."""
        point, kernel, arrays, schedule = self._ready[number]
        dropped = frozenset(drop)
        count = FROM_MEMORY if cache == "warm-memory" and not drop else 1
        once = partial(
            kernel.build,
            *arrays,
            schedule=schedule,
            target=point.target,
            cache=cache,
            drop=dropped,
        )
        gc.disable()  # what it collects are other builds' leavings
        with span(point.label):
            start = perf_counter_ns()
            built = once()
            for _ in repeat(None, count - 1):
                built = once()
            taken = perf_counter_ns() - start
        gc.enable()
        if isinstance(built, Failed):
            where = f"{built.phase}: " if built.phase else ""
            return Sample(taken, dict(built.phases), {}, f"{where}{built.error}")
        phases = dict(built.phases) if count == 1 else {}
        with span("what came of it"):
            return Sample(taken / count, phases, facts_of(built))


class Worker:
    """Builds in a process of its own, which has an NVRTC of its own."""

    def __init__(
        self,
        points: Sequence[Point],
        library: str = "",
        *,
        cached: bool = True,
    ) -> None:
        self.library = library
        off = {} if cached else {"STEELYARD_CACHE": "off"}
        command = [sys.executable, "-c", START]
        self.started = monotonic_ns()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | off,
        )
        hello = {"points": [asdict(point) for point in points], "library": library}
        try:
            self.said = self._ask(hello)
        except KernelError:
            self.end()
            raise

    def build(self, number: int, cache: str, drop: Sequence[str]) -> Sample:
        """Have it build once."""
        asked = {"build": number, "cache": cache, "drop": list(drop)}
        with span("wait for a worker"):
            return Sample(**self._ask(asked))

    def record(self, *, allocations: bool) -> None:
        """Have it record spans from now on."""
        self._ask({"record": True, "allocations": allocations})

    def spans(self) -> list[Any]:
        """Return what it recorded; it records no more."""
        found: list[Any] = self._ask({"spans": True})["spans"]
        return [(tuple(path), *rest) for path, *rest in found]

    def end(self) -> None:
        """Close its input: it ends then."""
        self._process.communicate()

    def _ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
            answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        except (OSError, ValueError) as error:
            code = self._process.wait()
            ended = (
                f"was killed by signal {-code}; run it again"
                if code < 0
                else f"ended with exit code {code}; what it said stands above, try "
                "without that kernel"
            )
            raise KernelError(
                f"the process that builds {self.library or 'here'} {ended}."
            ) from error
        if "refused" in answer:
            raise KernelError(answer["refused"])
        return answer


class Fresh:
    """Builds each time in a fresh process that finds no cache: from its start on."""

    def __init__(self, points: Sequence[Point], library: str = "") -> None:
        self._points = points
        self.library = library

    def build(self, number: int, cache: str, drop: Sequence[str]) -> Sample:
        """Start a process and have it build twice; the second is told beside."""
        del cache, drop  # there are none to find
        worker = Worker([self._points[number]], self.library, cached=False)
        try:
            first, second = (worker.build(0, "cold", ()) for _ in range(2))
        finally:
            worker.end()
        said = worker.said
        parts = {
            "interpreter": said["began"] - worker.started,
            "import": said["ready"] - said["began"],
            "first kernel": first.nanoseconds,
        }
        phases = {**parts, "second kernel": second.nanoseconds}
        return Sample(sum(parts.values()), phases, first.facts, first.error)


class Way(NamedTuple):
    """One row to be: what is built, by whom, with which caches."""

    number: int
    drop: tuple[str, ...]
    builder: Builder

    def build(self, cache: str) -> Sample:
        """Build once."""
        return self.builder.build(self.number, cache, self.drop)


def ways(
    points: Sequence[Point],
    builders: Sequence[Builder],
    drops: Sequence[tuple[str, ...]],
) -> list[Way]:
    """Return every point x dropped levels x builder."""
    return [
        Way(number, drop, builder)
        for number in range(len(points))
        for drop in drops
        for builder in builders
    ]


def measure(every: Sequence[Way], cache: str, repeat: int) -> list[tuple[Sample, ...]]:
    """Build every way `repeat` times, all in turn, to and fro."""
    samples: list[list[Sample]] = [[] for _ in every]
    for turn in range(repeat):
        order = range(len(every))
        for place in order if turn % 2 == 0 else reversed(order):
            samples[place].append(every[place].build(cache))
    return [tuple(found) for found in samples]


def recorded(
    every: Sequence[Way], cache: str, repeat: int, *, allocations: bool
) -> tuple[list[tuple[Sample, ...]], Timings]:
    """Do the same and record spans meanwhile, of workers each on a track of its own."""
    workers = {w.builder for w in every if isinstance(w.builder, Worker)}
    with timings(allocations=allocations) as found:
        for worker in workers:
            worker.record(allocations=allocations)
        samples = measure(every, cache, repeat)
        for worker in workers:
            found.merge(worker.spans(), worker.said["compiler"])
    return samples, found
