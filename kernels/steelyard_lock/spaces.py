"""All candidates of a point, built in groups."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from steelyard_kernels.artifact import Failure
from steelyard_kernels.group import Batch, Candidate, build_all, candidates_of
from steelyard_kernels.group.plan import LARGEST
from steelyard_kernels.targets import CPU
from steelyard_lock.points import Point, limited, ready, traced
from steelyard_lock.terminal import progress


@dataclass(frozen=True, slots=True)
class Space:
    """What became of all candidates of a point."""

    point: Point
    batch: Batch
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


def candidates(point: Point) -> tuple[Candidate, ...]:
    """Return every candidate of a point, each once, with its limit of registers."""
    kernel, arrays, _ = ready(point)
    traced(point, kernel, arrays)  # says what its function raises
    found = candidates_of(kernel, *arrays, target=point.target)
    if not point.registers:
        return found
    schedules = [one.schedule for one in found if one.schedule is not None]
    alike = dict.fromkeys(limited(one, point.registers) for one in schedules)
    return tuple(Candidate(one.label, found[0].program, one) for one in alike)


def build_space(
    point: Point, threads: int | None = None, *, alone: bool = False, most: int = 0
) -> Space:
    """Build every candidate of a point, cold, and say how far it is: in groups, or `alone`.

    Of more candidates than `most` (0: any) every second, third, ... stands for them. So many `threads` compile at a time, in processes of their own where threads gain
    nothing; by default one a processor, where that is worth starting them.
    """
    processes = True if threads and threads > 1 and point.target == CPU else None
    threads = threads or len(os.sched_getaffinity(0))
    every = candidates(point)
    batch = build_all(
        every[:: -(-len(every) // most) if most else 1],
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
    return Space(point, batch, threads, alone)
