"""What is tuned of a point: schedules of a kernel, or partitions of several launches."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

from steelyard.declare.plan import Settings
from steelyard_kernels.artifact import Artifact, Failure
from steelyard_kernels.building.programs import build
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.group import Batch, Candidate, Progress, build_all
from steelyard_kernels.group.batch import duplicates
from steelyard_kernels.plan.alternatives import alternatives
from steelyard_kernels.schedule import strategies
from steelyard_kernels.schedule.model import Prediction
from steelyard_kernels.schedule.schedule import Schedule
from steelyard_kernels.targets import device, parse
from steelyard_lock.options import MODES
from steelyard_lock.points import Point, planned
from steelyard_lock.tuning_cases import Tuned


@dataclass(frozen=True, slots=True)
class Space:
    """All that a recipe tried of a point: candidates by their prediction, and refusals."""

    point: Point
    tuned: Tuned
    ranked: tuple[tuple[Schedule, Prediction], ...]
    refused: tuple[tuple[Schedule, str], ...]
    heuristic: Schedule
    words: Mapping[str, str] = field(default_factory=dict)
    """What labels mean, of partitions: how they differ from the heuristic's."""

    @classmethod
    def of(cls, point: Point) -> Space:
        """Propose schedules; raises KernelError where there are none to choose of."""
        found = Tuned.of(point)
        program, machine = simplify(found.program), device(parse(point.target))
        refused: list[tuple[Schedule, str]] = []

        def refuse(*each: Any) -> None:
            refused.append(each)

        if point.launch is None and planned(point):
            every = [*alternatives(program, machine, refuse)]
            ranked = sorted([each[:2] for each in every], key=lambda e: e[1].total)
            words = {schedule.label: how for schedule, _, how in every}
            first, *_ = every[0]
            return cls(point, found, tuple(ranked), tuple(refused), first, words)
        ranked = strategies.rank(program, machine, refuse=refuse)
        heuristic = strategies.heuristic(program, machine)
        return cls(point, found, tuple(ranked), tuple(refused), heuristic)

    def best(self, count: int | None) -> tuple[Candidate, ...]:
        """Return the best predicted, the heuristic's among them."""
        chosen = [schedule for schedule, _ in self.ranked[:count]]
        if self.heuristic not in chosen:
            chosen.append(self.heuristic)
        return tuple(Candidate(s.label, self.tuned.program, s) for s in chosen)

    def built(self, how: How) -> Batch:
        """Build these, for the processes that measure."""
        every, levels = self.best(how.top), frozenset({"disk"})
        target, threads = self.point.target, how.threads or len(os.sched_getaffinity(0))
        if not self.heuristic.launches:
            return build_all(
                every,
                target=target,
                threads=threads,
                levels=levels,
                progress=how.built,
            )
        began, results = perf_counter_ns(), list[Artifact | Failure]()
        for each in every:
            results.append(
                build(each.program, each.schedule, target=target, levels=levels)
            )
            failed = sum(isinstance(result, Failure) for result in results)
            done = len(results) - failed
            how.built(Progress(done, failed, 0, len(every)))
        same = duplicates(results)
        return Batch(tuple(results), same, (), (), perf_counter_ns() - began)


@dataclass(frozen=True, slots=True)
class How:
    """How a tuning measures, and what it is told of meanwhile."""

    settings: Settings
    gpu: Mapping[str, Any]
    store: str
    top: int | None = None
    """How many of the best predicted are built; None: all."""
    blocks: int = 4
    """Of the finalists, each a process."""
    threads: int | None = None
    wait: float = 0.0
    built: Callable[[Progress], None] = lambda _: None
    measured: Callable[[str, int, int], None] = lambda *_: None
    mode: str = MODES[0]
    """What all of it measures, one of `MODES`."""
    seconds: float = math.inf
    """After which it takes the shortest way to its end."""
