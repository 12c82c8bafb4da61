"""Build many candidates at once: compiled in groups, failures attributed, sums told.

    batch = build_all(candidates_of(adam, *specs, target="cuda:sm_90a"),
                      target="cuda:sm_90a")
    for built in batch.results: ...

Candidate* --prepare--> Source* --plan--> groups of texts --workers--> Code* --> Artifact*
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any, Final, Protocol

from steelyard_device.timings import span
from steelyard_kernels.artifact import digest
from steelyard_kernels.building.build import ALL_LEVELS
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import Program
from steelyard_kernels.group.batch import Batch, Candidate, Collector, Progress
from steelyard_kernels.group.run import LARGEST, Group, Outcome, Work, plan, run
from steelyard_kernels.group.worker import Here, Process, Worker, command
from steelyard_kernels.schedule.schedule import Schedule
from steelyard_kernels.targets import CPU, CUDA, Target, parse
from steelyard_kernels.toolchains import toolchain


class Proposing(Protocol):
    """A kernel that can be traced, and says which schedules are worth trying."""

    def program(self, *arrays: Any) -> Program:
        """Trace it for arrays of these shapes and dtypes."""
        ...

    def candidates(self, *arrays: Any, target: str) -> tuple[Schedule, ...]:
        """Return every legal schedule worth trying."""
        ...


SPAWN: Final = 0.5
"""Seconds that worker processes must save to be started: what starting them takes."""


def candidates_of(
    kernel: Proposing, *arrays: Any, target: str = CPU
) -> tuple[Candidate, ...]:
    """Return all of a kernel's candidates for arrays, or specs, of these shapes."""
    program = kernel.program(*arrays)
    schedules = kernel.candidates(*arrays, target=target)
    return tuple(Candidate(each.label, program, each) for each in schedules)


def build_all(
    candidates: Sequence[Candidate],
    *,
    target: str = CPU,
    threads: int | None = None,
    seconds: float | None = None,
    aligned: bool = True,
    levels: frozenset[str] = ALL_LEVELS,
    progress: Callable[[Progress], None] | None = None,
    processes: bool | None = None,
    nvrtc: str | None = None,
    largest: int = LARGEST,
) -> Batch:
    """Build candidates for a target; what goes wrong with one is that one's result.

    `seconds` limits the compilation of each; waiting for a processor does not count.
    `threads` (by default one a processor) compile at the same time, in `processes` of
    their own under a limit, where threads gain nothing, or with the library `nvrtc`,
    whose builds no cache keeps. `progress` is called on this thread. At most `largest`
    are compiled together: with 1, each is a program of its own, to compare with.

    Raises:
        KernelError: there is no such target, nvrtc is not its compiler, or a number is
            none that can be.
    """
    started = perf_counter_ns()
    where = parse(target)
    if nvrtc is not None and where.kind != CUDA:
        raise KernelError(
            f"build_all: an NVRTC is the compiler of cuda targets, {target} is none; "
            "leave nvrtc out."
        )
    threads = _checked(threads, seconds, largest)
    levels = ALL_LEVELS & levels if nvrtc is None else frozenset()
    collector = Collector(candidates, where, levels, progress, aligned=aligned)
    collector.prepare()
    begun = perf_counter_ns()
    done = compile_texts(
        tuple(collector.waiting),
        where,
        collector.settle,
        threads=threads,
        seconds=seconds,
        processes=processes,
        nvrtc=nvrtc,
        largest=largest,
    )
    wall = perf_counter_ns() - begun
    return collector.batch(done, wall, started)


def compile_texts(
    texts: Sequence[str],
    target: Target,
    settle: Callable[[Outcome], None],
    *,
    threads: int | None = None,
    seconds: float | None = None,
    processes: bool | None = None,
    nvrtc: str | None = None,
    largest: int = LARGEST,
) -> tuple[Group, ...]:
    """Compile different texts, as `build_all`; `settle` hears of each, by its place."""
    costs = toolchain(target).COSTS
    parts = tuple((f"k_{digest(text.encode())}", text) for text in texts)
    work = Work(parts, tuple(map(costs.weight, texts)), target, costs, seconds)
    if threads is None:
        threads = len(os.sched_getaffinity(0))
    workers = _workers(work, threads, processes, nvrtc)
    marked = [bool(costs.apart) and costs.apart in text for text in texts]
    mixed = plan(work.weights, len(workers), costs.program, largest)
    alike = (
        [n for n in g if marked[n] is kind] for g in mixed for kind in (True, False)
    )
    groups = tuple(tuple(group) for group in alike if group)
    with span("groups"):
        return run(work, groups, workers, settle)


def _checked(threads: int | None, seconds: float | None, largest: int) -> int:
    """Return how many threads there are; raises KernelError for a number that is off."""
    if threads is None:
        threads = len(os.sched_getaffinity(0))
    numbers: dict[str, tuple[float, int]] = {
        "threads": (threads, 1),
        "largest": (largest, 1),
    }
    if seconds is not None:
        numbers["seconds"] = (seconds, 0)
    for name, (value, least) in numbers.items():
        if not value >= least:  # nor is NaN
            raise KernelError(
                f"build_all: {name} is {value}, expected {least} or more; "
                f"leave {name} out for the default."
            )
    return threads


def _workers(
    work: Work, threads: int, processes: bool | None, nvrtc: str | None
) -> Sequence[Worker]:
    """Decide who compiles."""
    overlap = toolchain(work.target).THREADS
    if processes is None:
        saved = sum(work.weights) * (1 - 1 / threads)
        limited = work.seconds is not None and len(work.parts) > 0
        needed = limited or (not overlap and saved > SPAWN)
        processes = needed or nvrtc is not None
    if processes:
        return [Process(command(work.target.kind, nvrtc)) for _ in range(threads)]
    return [Here()] * (threads if overlap else 1)
