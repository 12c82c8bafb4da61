"""All candidates of a point, built in groups: a bar meanwhile, then tables by schedule."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from steelyard.report.grid import Grid, fitting
from steelyard.report.text import NOTHING
from steelyard_device.timings_print import duration
from steelyard_kernels.artifact import Artifact, Failure
from steelyard_kernels.building.facts import facts_of
from steelyard_kernels.group import Batch, Candidate, build_all, candidates_of
from steelyard_lock.points import Point, limited, ready, traced
from steelyard_lock.report import HASH, RESOURCES
from steelyard_lock.terminal import progress

if TYPE_CHECKING:
    from rich.console import RenderableType

COLUMNS = (
    *("registers", "estimated", "spills", "shared", "code bytes"),
    *("128-bit loads", "local memory"),
)


@dataclass(frozen=True, slots=True)
class Space:
    """What became of all candidates of a point."""

    point: Point
    batch: Batch

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The candidates that came to nothing."""
        return tuple(r for r in self.batch.results if isinstance(r, Failure))

    def facts(self) -> dict[str, Any]:
        """Return its sizes and times (ns): of stages summed over workers, and wall."""
        return {
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


def build_space(point: Point) -> Space:
    """Build every candidate of a point, cold, and say how far it is."""
    batch = build_all(
        candidates(point),
        target=point.target,
        levels=frozenset(),
        progress=lambda seen: progress(
            f"{point.label}: {seen.failed} failed, {seen.duplicates} duplicates,",
            seen.built + seen.failed,
            seen.total,
        ),
        nvrtc=point.nvrtc or None,
    )
    return Space(point, batch)


def page(space: Space, width: int) -> Iterator[RenderableType]:
    """Yield a table by schedule, the stages, and what there is to say in a line."""
    titles = ("compile", *COLUMNS, "hash", "note")
    numbers = range(len(space.batch.results))
    lines = tuple(tuple(_line(space.batch, number)) for number in numbers)
    whole = Grid(space.point.label, ("schedule",), titles, lines)
    yield from (part.shown() for part in fitting(whole, width))
    yield (
        "compile: in a group, a candidate's own time in ptxas and its share of the rest "
        "by the length of its text"
    )
    stages = [
        (stage.name, duration(stage.nanoseconds), duration(stage.wall))
        for stage in space.batch.stages
    ]
    stages.append(("all", NOTHING, duration(space.batch.wall)))
    sums = ("summed over workers", "wall")
    yield Grid("stages", ("stage",), sums, tuple(stages)).shown()
    facts = space.facts()
    yield (
        f"\n{space.point.label}: {facts['candidates']} candidates, {facts['distinct']} "
        f"distinct codes, {len(space.batch.duplicates)} duplicates, "
        f"{facts['failed']} failed; {facts['groups']} groups in "
        f"{duration(facts['wall_ns'])} (sums are of workers' own clocks: those that "
        "share a processor wait in them too)\n"
    )


def _line(batch: Batch, number: int) -> Iterator[str]:
    result = batch.results[number]
    facts = _facts(result)
    yield _label(result)
    yield duration(facts["compile_ns"]) if "compile_ns" in facts else NOTHING
    yield from (str(facts.get(RESOURCES[name], NOTHING)) for name in COLUMNS)
    yield str(facts.get("code_hash", NOTHING))[:HASH]
    first = batch.duplicates.get(number)
    if isinstance(result, Failure):
        yield f"failed: {result.error}"
    else:
        yield "" if first is None else f"same as {_label(batch.results[first])}"


def dumps(spaces: Sequence[Space]) -> str:
    """Return all that is known as JSON; times are nanoseconds."""
    made = {"schema": 1, "spaces": [_plain(space) for space in spaces]}
    return json.dumps(made, indent=2)


def _plain(space: Space) -> dict[str, Any]:
    batch = space.batch
    return {
        **asdict(space.point),
        "axes": dict(space.point.axes),
        **space.facts(),
        "results": [
            {"schedule": _label(result), **_facts(result)}
            | {"duplicate_of": batch.duplicates.get(number)}
            for number, result in enumerate(batch.results)
        ],
    }


def _facts(result: Artifact | Failure) -> dict[str, Any]:
    if isinstance(result, Failure):
        return {"error": result.error, "phase": result.phase}
    return {**facts_of(result), "compile_ns": result.code.nanoseconds}


def _label(result: Artifact | Failure) -> str:
    return result.schedule.label if result.schedule is not None else NOTHING
