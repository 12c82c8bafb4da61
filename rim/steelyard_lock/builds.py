"""Points as cases of the harness, built again and again, all rows in turn.

    Point* --prepare--> (Build, Window)* --rounds--> Row*

What is timed, and how a fresh process is, are the harness's mode `build`; here is only
who builds: this process, or one for each NVRTC that was named.
"""

from __future__ import annotations

import ast
import math
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, ExitStack
from dataclasses import astuple, dataclass, replace
from functools import partial
from multiprocessing import get_context
from typing import Any, Final, NamedTuple, Self, TypeAlias, TypeVar

from steelyard import Benchmark, Builder, benchmark
from steelyard.analyse import stats
from steelyard.clocks.host import HostClock
from steelyard.declare.handles import Call
from steelyard.declare.mode import Mode
from steelyard.declare.plan import Settings
from steelyard.measure.prepared import PreparedCase
from steelyard.measure.regions import window_of
from steelyard.measure.sampler import no_collection
from steelyard.measure.stream import launches_for
from steelyard_device.spans import Span
from steelyard_device.timings import Timings, span
from steelyard_kernels.artifact import Artifact, Failure
from steelyard_kernels.building.facts import facts_of
from steelyard_kernels.errors import KernelError
from steelyard_lock.points import Point, ready

_T = TypeVar("_T")

Record: TypeAlias = Callable[[], AbstractContextManager[Timings]]
"""What opens timings, with what they are to see."""


def build(b: Builder, point: str) -> Call:
    """Build one point, given as what `repr` says of its fields."""
    found = Point(*ast.literal_eval(point))
    return b.build(Build(found), target=found.target)


BENCHMARK: Final[Benchmark] = benchmark(point=[""])(build)
"""Found by its file and name where a fresh process builds."""


class Build:
    """A point's kernel, as the harness takes what is built and not launched."""

    def __init__(self, point: Point) -> None:
        self._point = point
        self._build: Callable[..., Artifact | Failure]
        self._made: Artifact | Failure

    def for_target(self, target: str, *_specs: object) -> Self:
        """Find the kernel and build it once.

        Raises:
            KernelError: there is no such kernel or schedule.
            DeviceError: its NVRTC cannot be loaded.
        """
        point = self._point
        if point.nvrtc:
            from steelyard_device import nvrtc

            nvrtc.load(point.nvrtc)
        kernel, arrays, schedule = ready(point)
        drop = frozenset(point.dropped)
        self._build = partial(
            kernel.build, *arrays, schedule=schedule, target=target, drop=drop
        )
        self.build("cold")
        return self

    def build(self, cache: str) -> None:
        """Build again; a failure is kept and not raised."""
        self._made = self._build(cache=cache)

    @property
    def phases(self) -> dict[str, float]:
        """The nanoseconds of each phase of the last build."""
        return dict(self._made.phases)

    @property
    def error(self) -> str | None:
        """Why there is nothing."""
        if isinstance(self._made, Artifact):
            return None
        where = f"{self._made.phase}: " if self._made.phase else ""
        return f"{where}{self._made.error}"

    def facts(self) -> dict[str, object]:
        """Return what the last build came to."""
        with span("what came of it"):
            return facts_of(self._made) if isinstance(self._made, Artifact) else {}


@dataclass(frozen=True, slots=True)
class Sample:
    """One build: what it took (ns), in all and by phase, and what it came to."""

    nanoseconds: float
    phases: Mapping[str, float]
    facts: Mapping[str, Any]
    error: str | None = None


class TimedBuild:
    """A point that is built with one of the harness's caches, in this process."""

    def __init__(self, point: Point, cache: str) -> None:
        case = BENCHMARK.case({"point": repr(astuple(point))})
        self._point = point
        self._prepared = PreparedCase(case, Settings(check=False))
        self._build: Build = self._prepared.description.call.target
        clock = HostClock()
        self._window, _ = window_of(self._prepared, Mode("build", cache), clock)
        self._fresh = cache == "first"
        self._found = cache == "warm-memory" and not point.dropped
        self._count = 1
        if self._found:  # a look into a dictionary: a read of the clock is longer
            facts = clock.facts
            floor = statistics.median(facts.floor)
            self._count = launches_for(self._window, facts.quantum, floor)
        elif not self._fresh:  # a warm build has to find something
            self._window(1)

    def sample(self) -> Sample:
        """Build in one window."""
        with no_collection(), span(self._point.label):
            start, stop = self._window(self._count)
        phases = {} if self._found else self._build.phases
        if self._fresh:
            phases = dict(self._prepared.starts[-1])
        taken = (stop - start) / self._count
        return Sample(taken, phases, self._build.facts(), self._build.error)


_TIMED: Final[dict[Point, TimedBuild]] = {}
"""What this process builds, in its parent's name if it has one."""


def _prepare(point: Point, cache: str) -> None:
    _TIMED[point] = TimedBuild(point, cache)


def _sample(point: Point) -> Sample:
    return _TIMED[point].sample()


def _recorded(point: Point, record: Record) -> tuple[Sample, tuple[Span, ...]]:
    with record() as found:
        sample = _sample(point)
    return sample, found.spans()


class Library(NamedTuple):
    """A process that has an NVRTC of its own, and the spans that it recorded."""

    path: str
    pool: ProcessPoolExecutor
    spans: list[Span]

    def call(self, function: Callable[..., _T], *arguments: object) -> _T:
        """Call a function there; raises KernelError if the process ends."""
        try:
            return self.pool.submit(function, *arguments).result()
        except BrokenProcessPool as error:
            raise KernelError(
                f"the process that builds with {self.path} ended; what it said stands "
                "above, try without that kernel."
            ) from error

    def sample(self, point: Point, record: Record | None) -> Sample:
        """Have it build a prepared point once more."""
        with span("wait for a worker"):
            if record is None:
                return self.call(_sample, point)
            sample, spans = self.call(_recorded, point, record)
        self.spans.extend(spans)
        return sample


@dataclass(frozen=True, slots=True)
class Row:
    """All builds of one point."""

    point: Point
    cache: str
    samples: tuple[Sample, ...]

    @property
    def estimate(self) -> stats.Estimate:
        """The median build in nanoseconds, with its interval: one build has none."""
        found = stats.median(sorted(self.times))
        one = len(self.times) == 1
        return replace(found, low=0.0, high=math.inf) if one else found

    @property
    def times(self) -> list[float]:
        """Of each build, in nanoseconds."""
        return [sample.nanoseconds for sample in self.samples]

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


def measured(
    points: Sequence[Point],
    cache: str,
    repeat: int,
    record: Record | None = None,
) -> tuple[list[Row], Timings | None]:
    """Build every point `repeat` times, all in turn, to and fro.

    Whatever the machine does meanwhile it does to all of them. Spans of what is timed
    are recorded if asked for, by what opens their timings.

    Raises:
        KernelError: there is no such kernel or schedule.
        SteelyardError: a fresh process could not build.
    """
    samples: dict[Point, list[Sample]] = {point: [] for point in points}
    libraries: dict[str, Library] = {}
    with ExitStack() as stack:
        stack.callback(_TIMED.clear)
        for point in samples:
            if point.nvrtc and point.nvrtc not in libraries:
                # What kernels print goes to standard error.
                pool = ProcessPoolExecutor(1, get_context("spawn"), os.dup2, (2, 1))
                stack.enter_context(pool)
                libraries[point.nvrtc] = Library(point.nvrtc, pool, [])
            library = libraries.get(point.nvrtc)
            library.call(_prepare, point, cache) if library else _prepare(point, cache)
        found = None
        if record is not None:
            found = stack.enter_context(record())
        for turn in range(repeat):
            for point in points if turn % 2 == 0 else reversed(points):
                library = libraries.get(point.nvrtc)
                samples[point].append(
                    library.sample(point, record) if library else _sample(point)
                )
        if found:
            for library in libraries.values():
                found.merge(library.spans, library.path)
    return [Row(point, cache, tuple(samples[point])) for point in points], found
