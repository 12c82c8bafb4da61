"""What is said of a point's kernels that were built together: tables, or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from steelyard.report.grid import grid
from steelyard.units import NOTHING
from steelyard_device.timings_print import duration
from steelyard_kernels.artifact import Artifact, Failure
from steelyard_kernels.building.facts import facts_of
from steelyard_kernels.group import Batch
from steelyard_lock import drivers
from steelyard_lock.spaces import Space

if TYPE_CHECKING:
    from rich.console import RenderableType

HASH: Final = 8  # digits shown: enough to tell the rows of a table apart

RESOURCES: Final = {
    "registers": "registers",
    "estimated": "estimated_registers",
    "error": "",
    "stack": "stack_bytes",
    "spills": "spill_bytes",
    "shared": "shared_bytes",
    "code bytes": "code_bytes",
    "blocks/SM": "blocks_resident",
    "128-bit loads": "loads_128",
    "tensor core": "tensor_core",
    "local memory": "local_memory",
}

OF_CANDIDATES: Final = (
    *("registers", "estimated", "spills", "shared", "code bytes"),
    *("128-bit loads", "local memory"),
)


def space_page(space: Space) -> Iterator[RenderableType]:
    """Yield a table by schedule, the stages, and what there is to say in a line."""
    titles = ("compile", *OF_CANDIDATES, "hash", "note")
    several = len(space.kernels) > 1
    lines = tuple(
        (
            *([str(space.kernels[owner].launches[0])] * several),
            *_line(space.batch, number),
        )
        for number, owner in enumerate(space.owners)
    )
    heads = (*("launch",) * several, "schedule")
    yield grid(space.label, heads, titles, lines)
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
    yield grid("stages", ("stage",), sums, tuple(stages))
    facts = space.facts()
    yield (
        f"\n{space.label}: {facts['candidates']} candidates, {facts['distinct']} "
        f"distinct codes, {len(space.batch.duplicates)} duplicates, "
        f"{facts['failed']} failed; {facts['groups']} groups in "
        f"{duration(facts['wall_ns'])} (sums are of workers' own clocks: those that "
        "share a processor wait in them too)\n"
    )
    if said := drivers.sentence(space):
        yield f"{said}\n"


LOWERING: Final = ("simplify", "schedule", "lower", "verify")
"""Phases that take a program to loops: "lower" of a sheet."""


def sheets(spaces: Sequence[Space]) -> Iterator[RenderableType | str]:
    """Yield what each kernel's builds took, the last time, and all with each number."""
    for point in dict.fromkeys(space.point for space in spaces):
        own = [space for space in spaces if space.point == point]
        yield from _kernels(own[-1])
        if len(own) > 1:
            yield from sweep_page(own)


def _kernels(space: Space) -> Iterator[RenderableType]:
    """Yield a line a kernel, and all of them: summed over workers, and by the wall."""
    lines, sums = [], [0, 0, 0, 0]
    seen: set[int] = set()  # kernels of one text are compiled once
    for number, kernel in enumerate(space.kernels):
        own = [
            result
            for owner, result in zip(space.owners, space.batch.results, strict=True)
            if owner == number
        ]
        phases = [(name, taken) for each in own for name, taken in each.phases]
        made = {id(e.code): e.code for e in own if isinstance(e, Artifact)}
        codes = {key: code for key, code in made.items() if key not in seen}
        seen |= made.keys()
        times = [
            sum(taken for name, taken in phases if name in LOWERING),
            sum(taken for name, taken in phases if name == "emit"),
            sum(code.nanoseconds for code in codes.values()),
        ]
        times.append(sum(times))
        sums = [a + b for a, b in zip(sums, times, strict=True)]
        first, *more = kernel.launches
        which = f"{first} and {len(more)} more" if more else str(first)
        cells = [duration(time) if time else NOTHING for time in times]
        lines.append((which, kernel.reason, str(len(own)), *cells))
    wall = {stage.name: stage.wall for stage in space.batch.stages}
    walls = [
        sum(wall.get(name, 0) for name in LOWERING),
        wall.get("emit", 0),
        wall["compile"],
        space.batch.wall,
    ]
    count = str(len(space.owners))
    lines.append(("all", "summed", count, *map(duration, sums)))
    lines.append(("all", "wall", count, *map(duration, walls)))
    titles = "candidates", "lower", "emit", "compile", "all"
    title = f"kernels of {space.label}"
    yield grid(title, ("launch", "computes"), titles, tuple(lines))


def sweep_page(spaces: Sequence[Space]) -> Iterator[RenderableType]:
    """Yield a line a space: stages summed over workers and by the wall, failures."""
    beside = {
        stage.name
        for space in spaces
        for stage in space.batch.stages
        if stage.wall != stage.nanoseconds
    }
    found = [dict(_sweep_cells(space, beside)) for space in spaces]
    lines = tuple(tuple(cells.values()) for cells in found)
    titles = tuple(found[0])
    yield grid("stages, summed over workers", titles[:3], titles[3:], lines)
    for space in spaces:
        if said := drivers.sentence(space):
            yield f"{space.label}: {said}"


def _sweep_cells(space: Space, beside: AbstractSet[str]) -> Iterator[tuple[str, str]]:
    """Yield titles and cells; `beside`: the stages that workers share."""
    yield "space", space.point.label
    yield "threads", str(space.threads)
    yield "built", "each alone" if space.alone else "in groups"
    for stage in space.batch.stages:
        yield stage.name, duration(stage.nanoseconds)
        if stage.name in beside:
            yield f"{stage.name}, wall", duration(stage.wall)
    yield "all, wall", duration(space.batch.wall)
    yield "candidates", str(len(space.batch.results))
    yield "failed", str(len(space.failures))


def _line(batch: Batch, number: int) -> Iterator[str]:
    result = batch.results[number]
    facts = _facts(result)
    yield _label(result)
    yield duration(facts["compile_ns"]) if "compile_ns" in facts else NOTHING
    yield from (str(facts.get(RESOURCES[name], NOTHING)) for name in OF_CANDIDATES)
    yield str(facts.get("code_hash", NOTHING))[:HASH]
    first = batch.duplicates.get(number)
    if isinstance(result, Failure):
        yield f"failed: {result.error}"
    else:
        yield "" if first is None else f"same as {_label(batch.results[first])}"


def space_dumps(spaces: Sequence[Space]) -> str:
    """Return all that is known as JSON; times are nanoseconds."""
    made = {"schema": 1, "spaces": [plain(space) for space in spaces]}
    return json.dumps(made, indent=2)


def plain(space: Space) -> dict[str, Any]:
    """Return a space with all its builds as JSON has it; times are nanoseconds."""
    batch = space.batch
    return {
        **asdict(space.point),
        "axes": dict(space.point.axes),
        **space.facts(),
        "results": [
            {"schedule": _label(result), **_facts(result)}
            | {"duplicate_of": batch.duplicates.get(number)}
            | {"launches": space.kernels[space.owners[number]].launches}
            for number, result in enumerate(batch.results)
        ],
    }


def _facts(result: Artifact | Failure) -> dict[str, Any]:
    if isinstance(result, Failure):
        return {"error": result.error, "phase": result.phase}
    return {**facts_of(result), "compile_ns": result.code.nanoseconds}


def _label(result: Artifact | Failure) -> str:
    return result.schedule.label if result.schedule is not None else NOTHING
