"""Build many candidates at once: compiled in groups, failures attributed, sums told.

    batch = build_all(candidates_of(adam, *specs, target="cuda:sm_90a"),
                      target="cuda:sm_90a")
    for built in batch.results: ...

Candidate* --prepare--> Source* --plan--> groups of texts --workers--> Code* --> Built*
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from steelyard_device.timings import span
from steelyard_kernels import group_plan, group_worker
from steelyard_kernels.build import ALL_LEVELS
from steelyard_kernels.group_batch import Batch, Candidate, Collector, Progress, Stage
from steelyard_kernels.group_plan import Costs
from steelyard_kernels.group_run import Group, Work, run
from steelyard_kernels.targets import CPU, CUDA, parse

if TYPE_CHECKING:
    from steelyard_kernels.function import KernelFunction

__all__ = [
    "Batch",
    "Candidate",
    "Group",
    "Progress",
    "Stage",
    "build_all",
    "candidates_of",
]

COSTS: Final = {
    CUDA: Costs(program=0.016, character=2.7e-6, division=6.5e-4),
    CPU: Costs(program=0.001, character=3e-7, kernel=0.002),
}
"""Fitted to processor time of single candidates on the 2-core machine of FACTS.md: of 67
pointwise ones for sm_90a the median error is 8 %, the ninth decile 18 %; of 60 for its
own processor 5 % and 16 %. LLVM compiles each alone: a program there is a message."""

SPAWN: Final = 0.5
"""Seconds that worker processes must save to be started: what starting them takes."""


def candidates_of(
    kernel: KernelFunction, *arrays: Any, target: str = CPU
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
) -> Batch:
    """Build candidates for a target; what goes wrong with one is that one's result.

    `seconds` limits the compilation of each. `threads` (by default one a processor)
    compile at the same time, in `processes` of their own where this process cannot
    stop its compiler or gains nothing from threads, or with the library `nvrtc`, whose
    builds no cache keeps. `progress` is called on this thread.

    Raises:
        KernelError: there is no such target.
    """
    started = perf_counter_ns()
    if nvrtc is not None:
        levels = frozenset()
    collector = Collector(candidates, parse(target), levels, progress, aligned=aligned)
    collector.prepare()
    begun = perf_counter_ns()
    work, groups, workers = _arranged(
        collector, threads or len(os.sched_getaffinity(0)), seconds, processes, nvrtc
    )
    with span("groups"):
        done = run(work, groups, workers, collector.settle) if groups else ()
    wall = perf_counter_ns() - begun
    return collector.batch(done, wall, started)


def _arranged(
    collector: Collector,
    threads: int,
    seconds: float | None,
    processes: bool | None,
    nvrtc: str | None,
) -> tuple[Work, tuple[tuple[int, ...], ...], list[group_worker.Worker]]:
    """Plan what is left to be compiled, and who does it."""
    costs = COSTS[collector.target.kind]
    texts = list(collector.waiting)
    weights = tuple(costs.weight(text) for text in texts)
    named = group_plan.entries(
        (collector.candidates[owners[0]].name, text)
        for text, owners in collector.waiting.items()
    )
    if processes is None:
        saved = sum(weights) * (1 - 1 / threads)
        alone = collector.target.kind == CPU and (seconds is not None or saved > SPAWN)
        processes = nvrtc is not None or alone
    if collector.target.kind == CPU and not processes:
        threads = 1  # LLVM's locks let no two overlap
    groups = group_plan.plan(weights, threads, costs.program)
    parts = tuple((named[text], text) for text in texts)
    command = group_worker.command(nvrtc)
    workers: list[group_worker.Worker] = [
        group_worker.Process(command) if processes else group_worker.Here()
        for _ in range(threads)
    ]
    return Work(parts, weights, collector.target, costs, seconds), groups, workers
