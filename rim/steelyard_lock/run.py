"""What `steelyard compile` does once it is known what was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import click

from steelyard.errors import SteelyardError
from steelyard.machine import files
from steelyard_kernels.building.cache import CACHES, LEVELS
from steelyard_lock.terminal import show

if TYPE_CHECKING:
    from steelyard_lock.builds import Record, Row
    from steelyard_lock.points import Point
    from steelyard_lock.spaces import Space


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """How builds are timed, and what is printed of them."""

    quantity: str | None
    levels: tuple[str, ...]
    repeat: int
    timings: bool
    allocations: bool
    passes: bool
    trace: str | None
    resources: bool
    as_json: bool
    threads: tuple[int, ...]
    alone: bool = False

    @property
    def cache(self) -> str:
        """The quantity: by default where there is most to see."""
        return self.quantity or ("warm-memory" if self.levels else "cold")

    @property
    def printed(self) -> bool:
        """Whether spans are printed."""
        return self.timings or self.allocations

    @property
    def record(self) -> Record | None:
        """What records spans, if anything does."""
        from steelyard_device.timings import timings

        if not self.printed and self.trace is None:
            return None
        return partial(timings, allocations=self.allocations)


def shown_texts(points: Sequence[Point], text: str | None) -> str:
    """Return one text of the one build there is, or what each phase of all made."""
    from steelyard_lock import texts

    if text is None:
        return "\n".join(map(texts.after_all, points))
    if len(points) != 1:
        raise SteelyardError(
            f"--emit {text} shows one build, these are {len(points)}; name one kernel, "
            "one value of each axis and one target."
        )
    return texts.emitted(points[0], text)


def spaces(points: Sequence[Point], asked: CompileOptions) -> bool:
    """Build all candidates, print what became of them, and say if all is well."""
    from steelyard_lock import space_report
    from steelyard_lock import spaces as building

    with ExitStack() as stack:
        spans = None
        if asked.record is not None:
            spans = stack.enter_context(asked.record())
        made = [
            building.build_space(point, threads, alone=alone)
            for point in points
            for threads in asked.threads or (None,)
            for alone in ((False, True) if asked.alone else (False,))
        ]
    if asked.trace and spans:
        files.save(asked.trace, spans.chrome_trace(), "--trace")
    if asked.as_json:
        click.echo(space_report.space_dumps(made))
    elif len(asked.threads) > 1 or asked.alone:
        show(space_report.sweep_page(made))
    else:
        show(part for space in made for part in space_report.space_page(space))
    if spans and asked.printed and not asked.as_json:
        click.echo(spans.table(), nl=False)
    return not any(space.failures for space in made)


def rows(points: Sequence[Point], asked: CompileOptions) -> bool:
    """Build again and again, print what that took, and say if all is well."""
    from steelyard_kernels.building.facts import keeps_nothing
    from steelyard_lock import builds, report, space_report, texts

    _check(asked)
    passes = {p.label: texts.passes(p) for p in points} if asked.passes else {}
    found, spans = builds.measured(
        [replace(p, dropped=drop) for p in points for drop in dropped(asked)],
        asked.cache,
        asked.repeat,
        asked.record,
    )
    for row in found:  # named for a cache on disk that kept nothing: it was cold
        kept = CACHES.get(row.cache, frozenset()) - set(row.point.dropped)
        if kept == {"disk"} and "emit" in row.phases and not row.error:
            raise keeps_nothing(row.point.label)
    if asked.trace and spans:
        files.save(asked.trace, spans.chrome_trace(), "--trace")
    shown = spans if asked.printed else None
    sheets = _sheets(found, asked) if asked.printed else []
    if asked.as_json:
        click.echo(report.dumps(found, shown, passes, sheets))
    else:
        show(report.tables(found))
        show(report.launches(found))
        if asked.resources:
            if any("registers" in row.facts for row in found):
                click.echo()
            else:
                click.echo("no resources: they are of cuda targets", err=True)
            show(report.resources(found))
        show(report.passes(passes))
        show(space_report.sheets(sheets))
        if shown is not None:
            click.echo(f"\n{shown.table()}", nl=False)
        for row in found:
            if row.error:
                click.echo(f"failed: {row.point.label}: {row.error}", err=True)
    return not any(row.error for row in found)


def _sheets(rows: Sequence[Row], asked: CompileOptions) -> list[Space]:
    """Build the kernels of several launches, cold, with each number of compilers."""
    from steelyard_lock import spaces as building

    planned = [row.point for row in rows if "launches" in row.facts]
    several = dict.fromkeys(replace(point, dropped=()) for point in planned)
    if asked.threads and not several:
        raise SteelyardError(
            "--threads is of kernels that are built beside each other, and "
            f"{rows[0].point.label} is one; leave it out, or add --candidates."
        )
    return [
        building.build_space(point, threads, choose=building.chosen)
        for point in several
        for threads in asked.threads or (None,)
    ]


def _check(asked: CompileOptions) -> None:
    """Refuse what would measure something else than was asked for."""
    from steelyard_device import disk

    known = CACHES.get(asked.cache, frozenset())
    for level in asked.levels:
        if level not in known:
            raise SteelyardError(
                f"--drop {level}: a {asked.cache} build has no such level to drop, "
                f"expected one of {', '.join(sorted(known)) or 'none'}."
            )
    if asked.cache == "warm-disk" and disk.default_directory() is None:
        raise SteelyardError(
            "--quantity warm-disk reads the cache on disk and STEELYARD_CACHE=off says "
            "that there is none; unset it, or name a folder."
        )
    if asked.cache == "first" and asked.record is not None:
        raise SteelyardError(
            "--timings, --allocations and --trace see into builds of a process that "
            "stays, first starts a new one each time; leave one of the two out."
        )


def dropped(asked: CompileOptions) -> list[tuple[str, ...]]:
    """Return the levels to leave out of each row, so that neighbours differ by one.

    What a level saves shows only where no level above it has the build already: those
    are left out of both rows.
    """
    known = [level for level in LEVELS if level in CACHES.get(asked.cache, ())]
    places = {known.index(level) for level in asked.levels}
    counts = places | {place + 1 for place in places} or {0}
    return [tuple(known[:count]) for count in sorted(counts)]
