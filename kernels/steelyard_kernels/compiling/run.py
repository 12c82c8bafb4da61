"""What `steelyard compile` does once it is known what was asked for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from steelyard_kernels.building.cache import CACHES, LEVELS
from steelyard_kernels.building.facts import keeps_nothing
from steelyard_kernels.errors import KernelError
from steelyard_kernels.targets import CUDA, parse

if TYPE_CHECKING:
    from rich.console import Console

    from steelyard_device.timings import Timings
    from steelyard_kernels.compiling.builders import Builder, Row
    from steelyard_kernels.compiling.points import Point


@dataclass(frozen=True, slots=True)
class Asked:
    """How builds are weighed, and what is printed of them."""

    quantity: str | None
    levels: tuple[str, ...]
    repeat: int
    timings: bool
    allocations: bool
    trace_file: str | None
    resources: bool
    as_json: bool
    libraries: list[str]

    @property
    def cache(self) -> str:
        """The quantity: by default where there is most to see."""
        return self.quantity or ("warm-memory" if self.levels else "cold")

    @property
    def recording(self) -> bool:
        """Whether spans are recorded."""
        return self.timings or self.allocations or self.trace_file is not None


def emit(points: Sequence[Point], text: str) -> None:
    """Print one text of the one build there is."""
    from steelyard_kernels.compiling import texts

    if len(points) != 1:
        raise KernelError(
            f"--emit {text} shows one build, these are {len(points)}; name one kernel, "
            "one value of each axis and one target."
        )
    click.echo(texts.emitted(points[0], text), nl=False)


def print_after_all(points: Sequence[Point]) -> None:
    """Print what each phase of every build made."""
    from steelyard_kernels.compiling import texts

    click.echo("\n".join(texts.after_all(point) for point in points), nl=False)


def spaces(points: Sequence[Point], asked: Asked) -> bool:
    """Build all candidates, print what became of them, and say if all is well."""
    from steelyard_device.timings import timings
    from steelyard_kernels.compiling import spaces as building

    _check_libraries(points, asked)
    _check_trace(asked)
    with ExitStack() as stack:
        spans = None
        if asked.recording:
            spans = stack.enter_context(timings(allocations=asked.allocations))
        made = [
            building.build_shown(point, library)
            for point in points
            for library in asked.libraries or [""]
        ]
    if asked.trace_file and spans:
        _write(asked.trace_file, spans.chrome_trace())
    if asked.as_json:
        click.echo(building.dumps(made))
    else:
        console = _console()
        for part in (part for space in made for part in (*building.page(space), "")):
            console.print(part, markup=False)
        if spans and (asked.timings or asked.allocations):
            click.echo(spans.table(), nl=False)
    return not any(space.failures for space in made)


def weigh(points: Sequence[Point], asked: Asked) -> bool:
    """Build again and again, print what that took, and say if all is well."""
    _check(points, asked)
    rows, recorded = _measured(points, asked)
    if asked.trace_file and recorded:
        _write(asked.trace_file, recorded.chrome_trace())
    shown = asked.timings or asked.allocations
    _show(rows, recorded if shown else None, asked)
    return not any(row.error for row in rows)


def _check(points: Sequence[Point], asked: Asked) -> None:
    """Refuse what would measure something else than was asked for."""
    from steelyard_device import disk

    known = CACHES.get(asked.cache, frozenset())
    for level in asked.levels:
        if level not in known:
            raise KernelError(
                f"--drop {level}: a {asked.cache} build has no such level to drop, "
                f"expected one of {', '.join(sorted(known)) or 'none'}."
            )
    if asked.cache == "warm-disk" and disk.default_directory() is None:
        raise KernelError(
            "--quantity warm-disk reads the cache on disk and STEELYARD_CACHE=off says "
            "that there is none; unset it, or name a folder."
        )
    _check_libraries(points, asked)
    _check_trace(asked)
    if asked.cache == "first" and asked.recording:
        raise KernelError(
            "--timings, --allocations and --trace see into builds of a process that "
            "stays, first starts a new one each time; leave one of the two out."
        )


def _check_libraries(points: Sequence[Point], asked: Asked) -> None:
    others = [point for point in points if parse(point.target).kind != CUDA]
    if asked.libraries and others:
        raise KernelError(
            f"--nvrtc chooses the compiler of cuda targets, {others[0].label} is of "
            "LLVM's; name cuda targets only, such as --target cuda:sm_90a."
        )


def _check_trace(asked: Asked) -> None:
    if asked.trace_file and not Path(asked.trace_file).parent.is_dir():
        raise KernelError(
            f"--trace {asked.trace_file}: {Path(asked.trace_file).parent} is no folder; "
            "name a file in one that exists."
        )


def _measured(
    points: Sequence[Point], asked: Asked
) -> tuple[list[Row], Timings | None]:
    """Build everything; return the rows and what was recorded meanwhile.

    Each row is first built once untimed, but for fresh processes: a cold build should
    not pay for imports, and a warm one has to find something.
    """
    from steelyard_kernels.compiling import builders

    cache, repeat = asked.cache, asked.repeat
    drops = dropped(cache, asked.levels)
    spans = None
    with ExitStack() as stack:
        every = builders.ways(points, _builders(points, asked, stack), drops)
        if cache != "first":
            builders.measure(every, cache, 1)
        if asked.recording:
            samples, spans = builders.recorded(
                every, cache, repeat, allocations=asked.allocations
            )
        else:
            samples = builders.measure(every, cache, repeat)
    rows = [
        builders.Row(points[way.number], cache, way.drop, way.builder.library, found)
        for way, found in zip(every, samples, strict=True)
    ]
    _check_found(rows)
    return rows, spans


def _check_found(rows: Sequence[Row]) -> None:
    """Refuse rows that name a cache on disk which kept nothing: they were cold."""
    for row in rows:
        kept = CACHES.get(row.cache, frozenset()) - set(row.drop)
        if kept == {"disk"} and "emit" in row.phases and not row.error:
            raise keeps_nothing(row.point.label)


def dropped(cache: str, asked: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the levels to leave out of each row, so that neighbours differ by one.

    What a level saves shows only where no level above it has the build already: those
    are left out of both rows.
    """
    known = [level for level in LEVELS if level in CACHES.get(cache, ())]
    counts = {0} if not asked else set[int]()
    for level in asked:
        counts |= {known.index(level), known.index(level) + 1}
    return [tuple(known[:count]) for count in sorted(counts)]


def _builders(
    points: Sequence[Point], asked: Asked, stack: ExitStack
) -> Sequence[Builder]:
    from steelyard_kernels.compiling import builders

    if asked.cache == "first":
        return [builders.Fresh(points, path) for path in asked.libraries or [""]]
    if not asked.libraries:
        return [builders.Here(points)]
    workers = []
    for path in asked.libraries:
        workers.append(builders.Worker(points, path))
        stack.callback(workers[-1].end)
    return workers


def _show(rows: Sequence[Row], spans: Timings | None, asked: Asked) -> None:
    from steelyard_kernels.compiling import report

    if asked.as_json:
        click.echo(report.dumps(rows, spans))
        return
    console = _console()
    for place, made in enumerate(report.tables(rows, console.width)):
        console.print(*([""] if place else []), made, sep="\n")
    taken = report.resources(rows, console.width) if asked.resources else []
    if asked.resources and not taken:
        click.echo("no resources: they are of cuda targets", err=True)
    for made in taken:
        console.print()
        console.print(made)
    if spans is not None:
        click.echo()
        click.echo(spans.table(), nl=False)
    for sentence in report.failures(rows):
        click.echo(sentence, err=True)


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise KernelError(
            f"--trace {path} cannot be written: {error.strerror}. Name another file."
        ) from error


def _console() -> Console:
    """Return a console as wide as its terminal or COLUMNS says, or wide enough."""
    from rich.console import Console

    from steelyard_kernels.compiling.report import PAGE

    made = Console(highlight=False)
    told = made.is_terminal or "COLUMNS" in os.environ
    return made if told else Console(highlight=False, width=PAGE)
