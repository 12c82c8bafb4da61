"""All candidates of a point's kernels, or one of each, built in groups."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from steelyard_kernels.artifact import Failure
from steelyard_kernels.building.build import tuned
from steelyard_kernels.expression.expr import Program
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.group import Batch, Candidate, build_all
from steelyard_kernels.group.run import LARGEST
from steelyard_kernels.schedule import strategies
from steelyard_kernels.targets import CPU, device, parse
from steelyard_lock.points import Point, limited, planned, ready, traced
from steelyard_lock.terminal import progress


@dataclass(frozen=True, slots=True)
class PointKernel:
    """A kernel of a point: the launches that run it, and what they compute."""

    program: Program
    launches: tuple[int, ...] = (0,)
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Space:
    """What became of all candidates of a point, or of its kernels as they are built."""

    point: Point
    batch: Batch
    kernels: tuple[PointKernel, ...]
    owners: tuple[int, ...]
    """Of each candidate the place of its kernel in `kernels`."""
    threads: int
    """How many compilers there were at a time."""
    alone: bool = False
    """Whether each candidate was a program of its own."""

    @property
    def label(self) -> str:
        """What tells it from others."""
        how = ", each alone" if self.alone else ""
        return f"{self.point.label}, {self.threads} at a time{how}"

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The candidates that came to nothing."""
        return tuple(r for r in self.batch.results if isinstance(r, Failure))

    def facts(self) -> dict[str, Any]:
        """Return its sizes and times (ns): of stages summed over workers, and wall."""
        return {
            "threads": self.threads,
            "alone": self.alone,
            "candidates": len(self.batch.results),
            "distinct": len(self.batch.distinct),
            "failed": len(self.failures),
            "groups": len(self.batch.groups),
            "wall_ns": self.batch.wall,
            **{f"{s.name}_ns": s.nanoseconds for s in self.batch.stages},
            **{f"{s.name}_wall_ns": s.wall for s in self.batch.stages},
        }


def kernels_of(point: Point) -> tuple[PointKernel, ...]:
    """Return the distinct kernels of a point, in the order of their first launches."""
    kernel, arrays, _ = ready(point)
    plan = planned(point) if point.launch is None else None
    if plan is None:
        return (PointKernel(traced(point, kernel, arrays)),)
    every = plan.launches
    return tuple(
        PointKernel(every[numbers[0]].program, tuple(numbers), every[numbers[0]].reason)
        for numbers in plan.distinct
    )


def launches_of(point: Point) -> tuple[Point, ...]:
    """Return a point for each distinct kernel of one of several launches, else none."""
    kernels = kernels_of(point)
    if len(kernels) == 1 and not kernels[0].reason:
        return ()
    return tuple(replace(point, launch=kernel.launches[0]) for kernel in kernels)


def candidates(point: Point, kernel: PointKernel) -> tuple[Candidate, ...]:
    """Return every candidate of a kernel, each once, with its limit of registers."""
    machine = device(parse(point.target))
    every = strategies.candidates(simplify(kernel.program), machine)
    if point.registers:
        every = tuple(dict.fromkeys(limited(one, point.registers) for one in every))
    return tuple(Candidate(one.label, kernel.program, one) for one in every)


def chosen(point: Point, kernel: PointKernel) -> tuple[Candidate]:
    """Return a kernel as it is built where nobody says how."""
    found = tuned(kernel.program, parse(point.target), aligned=True)
    return (Candidate(kernel.program.name, kernel.program, found),)


def build_space(
    point: Point,
    threads: int | None = None,
    *,
    alone: bool = False,
    most: int = 0,
    choose: Callable[[Point, PointKernel], Sequence[Candidate]] | None = None,
) -> Space:
    """Build what is chosen of a point's kernels, cold, in groups or each `alone`.

    By default that is every candidate, or of more than `most` (0: any) every second,
    third, ... in their place. So many `threads` compile at a time, in processes of their
    own where threads gain nothing; by default one a processor, where that is worth
    starting them. A terminal is told how far it is.
    """
    processes = True if threads and threads > 1 and point.target == CPU else None
    threads = threads or len(os.sched_getaffinity(0))
    kernels = kernels_of(point)
    every = [
        (n, one)
        for n, kernel in enumerate(kernels)
        for one in (choose or candidates)(point, kernel)
    ]
    every = every[:: -(-len(every) // most) if most else 1]
    batch = build_all(
        [one for _, one in every],
        target=point.target,
        threads=threads,
        processes=processes,
        levels=frozenset(),
        largest=1 if alone else LARGEST,
        progress=lambda seen: progress(
            f"{point.label}: {seen.failed} failed, {seen.duplicates} duplicates,",
            seen.built + seen.failed,
            seen.total,
        ),
        nvrtc=point.nvrtc or None,
    )
    owners = tuple(number for number, _ in every)
    return Space(point, batch, kernels, owners, threads, alone)
