"""All candidates of a point, built in groups: a bar meanwhile, then tables by schedule."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from steelyard_device.timings_print import duration
from steelyard_kernels.binary import Built, Failed
from steelyard_kernels.building.facts import facts_of
from steelyard_kernels.compiling.points import Point, limited, ready, traced
from steelyard_kernels.compiling.report import HASH, NOTHING
from steelyard_kernels.group import Batch, Candidate, Progress, build_all, candidates_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.table import Table

COLUMNS = {
    "registers": "registers",
    "estimated": "estimated_registers",
    "spills": "spill_bytes",
    "shared": "shared_bytes",
    "code bytes": "code_bytes",
    "128-bit loads": "loads_128",
    "local memory": "local_memory",
}


@dataclass(frozen=True, slots=True)
class Space:
    """What became of all candidates of a point."""

    point: Point
    batch: Batch

    @property
    def failures(self) -> tuple[Failed, ...]:
        """The candidates that came to nothing."""
        return tuple(r for r in self.batch.results if isinstance(r, Failed))

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
    _, kernel, arrays, _ = ready(point)
    traced(point, kernel, arrays)  # says what its function raises
    found = candidates_of(kernel, *arrays, target=point.target)
    if not point.registers:
        return found
    schedules = [one.schedule for one in found if one.schedule is not None]
    alike = dict.fromkeys(limited(one, point.registers) for one in schedules)
    return tuple(Candidate(one.label, found[0].program, one) for one in alike)


def build_space(
    point: Point,
    *,
    library: str = "",
    progress: Callable[[Progress], None] | None = None,
) -> Space:
    """Build every candidate of a point, cold."""
    batch = build_all(
        candidates(point),
        target=point.target,
        levels=frozenset(),
        progress=progress,
        nvrtc=library or None,
    )
    return Space(point, batch)


def build_shown(point: Point, library: str = "") -> Space:
    """Build it with a bar on standard error, where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (
        TextColumn(point.label, markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[said]}"),
    )
    shown = console.is_terminal
    with Bar(*columns, console=console, transient=True, disable=not shown) as bar:
        task = bar.add_task("", said="", total=None)

        def told(seen: Progress) -> None:
            said = (
                f"built {seen.built}, failed {seen.failed}, duplicate {seen.duplicates}"
            )
            done = seen.built + seen.failed
            bar.update(task, completed=done, total=seen.total, said=said)

        return build_space(point, library=library, progress=told)


def page(space: Space) -> Iterator[Table | str]:
    """Yield a table by schedule, the stages, and what there is to say in a line."""
    yield _by_schedule(space)
    yield _stages(space.batch)
    facts = space.facts()
    groups, wall = facts["groups"], duration(facts["wall_ns"])
    yield (
        f"{space.point.label}: {facts['candidates']} candidates, {facts['distinct']} "
        f"distinct codes, {len(space.batch.duplicates)} duplicates, "
        f"{facts['failed']} failed; {groups} groups in {wall} (sums are of workers' own "
        "clocks: those that share a processor wait in them too)"
    )


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


def _facts(result: Built | Failed) -> dict[str, Any]:
    if isinstance(result, Failed):
        return {"error": result.error, "phase": result.phase}
    return {**facts_of(result), "compile_ns": result.made.nanoseconds}


def _label(result: Built | Failed) -> str:
    return result.schedule.label if result.schedule is not None else NOTHING


def _table(*titles: str) -> Table:
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in titles:
        left = title in {"schedule", "note", "stage"}
        made.add_column(title, justify="left" if left else "right")
    return made


def _by_schedule(space: Space) -> Table:
    from rich.text import Text

    made = _table("schedule", "compile", *COLUMNS, "hash", "note")
    made.caption_justify = "left"
    made.caption = (
        "compile: in a group, a candidate's own time in ptxas and its share of the rest "
        "by the length of its text"
    )
    for number, result in enumerate(space.batch.results):
        facts = _facts(result)
        cells = [str(facts.get(name, NOTHING)) for name in COLUMNS.values()]
        made.add_row(
            Text(_label(result)),
            duration(facts["compile_ns"]) if "compile_ns" in facts else NOTHING,
            *cells,
            str(facts.get("code_hash", NOTHING))[:HASH],
            Text(_note(space.batch, number)),
        )
    return made


def _note(batch: Batch, number: int) -> str:
    result = batch.results[number]
    if isinstance(result, Failed):
        return f"failed: {result.error}"
    first = batch.duplicates.get(number)
    return "" if first is None else f"same as {_label(batch.results[first])}"


def _stages(batch: Batch) -> Table:
    made = _table("stage", "summed over workers", "wall")
    for stage in batch.stages:
        made.add_row(stage.name, duration(stage.nanoseconds), duration(stage.wall))
    made.add_row("all", NOTHING, duration(batch.wall))
    return made
