"""`steelyard compile`: build kernels, and say what that takes and comes to.

The command line finds it by name; a user's mistake is one of click's exceptions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from steelyard_device.errors import DeviceError
from steelyard_kernels.cache import CACHES, LEVELS
from steelyard_kernels.errors import KernelError

if TYPE_CHECKING:
    from rich.console import Console

    from steelyard_device.timings import Timings
    from steelyard_kernels.compiling.builders import Builder, Row
    from steelyard_kernels.compiling.points import Axis, Point
    from steelyard_kernels.library.examples import Spec

QUANTITIES: Final = (*CACHES, "first")
TEXTS: Final = ("program", "schedule", "loops", "llvm", "cuda", "ptx", "sass")
BUILD_FAILED: Final = 2
"""The exit code when a build came to nothing; the harness' for a failed benchmark."""

REPEAT: Final = 5
"""Builds of each row: a median of fewer is one disturbance away from another."""


def _axes(
    _context: click.Context, _parameter: click.Parameter, given: Sequence[str]
) -> dict[str, list[Axis]]:
    """Read ``axis=1,2``."""
    found: dict[str, list[Axis]] = {}
    for text in given:
        name, equals, values = text.partition("=")
        if not equals or not values:
            raise click.ClickException(
                f"-p {text}: expected AXIS=VALUE,..., such as -p n=1000,65536."
            )
        found[name] = [_value(name, word) for word in values.split(",")]
    return found


def _value(axis: str, word: str) -> Axis:
    if axis == "dtype":
        return word
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if not (0 <= number < math.inf and number.is_integer()):
        raise click.ClickException(
            f"-p {axis}={word}: expected a whole number from 0 up."
        )
    return int(number)


def _arrays(
    _context: click.Context, _parameter: click.Parameter, given: Sequence[str]
) -> list[Spec]:
    """Read ``1024x768:float16``."""
    return [_array(text) for text in given]


def _array(text: str) -> Spec:
    shape, _, dtype = text.partition(":")
    lengths = shape.split("x") if shape else []
    if not all(length.isdecimal() for length in lengths):
        raise click.ClickException(
            f"--arg {text}: expected SHAPE:DTYPE, such as 1024x768:float16."
        )
    return tuple(map(int, lengths)), dtype or "float32"


def _paths(
    _context: click.Context, _parameter: click.Parameter, given: str | None
) -> list[str]:
    return given.split(",") if given else []


@click.command(name="compile")
@click.argument("kernels", nargs=-1, required=True, metavar="KERNEL...")
@click.option(
    "-p",
    "axes",
    multiple=True,
    callback=_axes,
    metavar="AXIS=1,2",
    help="Replace an axis's values: n, rows, hidden, dtype.",
)
@click.option(
    "--arg",
    "arrays",
    multiple=True,
    callback=_arrays,
    metavar="SHAPE:DTYPE",
    help="An array parameter, in order: 1024x768:float16.",
)
@click.option(
    "--target",
    "targets",
    default="cpu",
    metavar="cpu|cuda:ARCH,...",
    help="What to make code for; no GPU is needed.",
    show_default=True,
)
@click.option(
    "--quantity",
    type=click.Choice(QUANTITIES),
    help="Which caches a build may find; first: a fresh process.",
    show_default="cold, with --drop warm-memory",
)
@click.option(
    "--drop",
    "levels",
    multiple=True,
    type=click.Choice(LEVELS),
    help="Also build without this level of cache; repeated: without all so far.",
)
@click.option(
    "--repeat",
    type=click.IntRange(1),
    default=REPEAT,
    help="Builds of each row, all rows in turn.",
    show_default=True,
)
@click.option("--timings", is_flag=True, help="Print where the time went, nested.")
@click.option(
    "--allocations", is_flag=True, help="Count memory blocks in --timings, slower."
)
@click.option(
    "--trace",
    "trace_file",
    type=click.Path(dir_okay=False, writable=True),
    metavar="FILE",
    help="Write every span for ui.perfetto.dev.",
)
@click.option("--resources", is_flag=True, help="Print what a GPU's code takes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
@click.option(
    "--emit",
    "text",
    type=click.Choice(TEXTS),
    help="Print this text of one build and nothing else.",
)
@click.option(
    "--print-after-all", is_flag=True, help="Print what each phase of a build made."
)
@click.option("--schedule", default="", metavar="LABEL", help="Build this candidate.")
@click.option("--candidates", is_flag=True, help="Build all candidates, in groups.")
@click.option(
    "--max-registers",
    "registers",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Limit the registers of a GPU's thread.",
)
@click.option(
    "--nvrtc",
    "libraries",
    callback=_paths,
    metavar="PATH,PATH",
    help="Build with each of these libraries, in a process each.",
)
def compile_(
    *,
    kernels: tuple[str, ...],
    targets: str,
    text: str | None,
    print_after_all: bool,
    candidates: bool,
    axes: dict[str, list[Axis]],
    arrays: list[Spec],
    schedule: str,
    registers: int,
    **asked: Any,
) -> int:
    """Build kernels and say what that takes and comes to.

    KERNEL is one of the library, or path.py:name. Nothing is launched. The exit code is
    2 if a build failed.
    """
    with _sentences():
        from steelyard_kernels.compiling.points import points

        found = points(
            kernels,
            targets,
            axes=axes,
            arrays=arrays,
            schedule=schedule,
            registers=registers,
        )
        if text:
            return _emit(found, text)
        if print_after_all:
            return _print_after_all(found)
        if candidates:
            return _build_spaces(found, Asked(**asked))
        return _weigh(found, Asked(**asked))


@contextmanager
def _sentences() -> Iterator[None]:
    """Turn our users' mistakes into click's."""
    try:
        yield
    except (KernelError, DeviceError) as error:
        raise click.ClickException(str(error)) from error


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


def _emit(points: Sequence[Point], text: str) -> int:
    from steelyard_kernels.compiling import texts

    if len(points) != 1:
        raise click.ClickException(
            f"--emit {text} shows one build, these are {len(points)}; name one kernel, "
            "one value of each axis and one target."
        )
    click.echo(texts.emitted(points[0], text), nl=False)
    return 0


def _print_after_all(points: Sequence[Point]) -> int:
    from steelyard_kernels.compiling import texts

    click.echo("\n".join(texts.after_all(point) for point in points), nl=False)
    return 0


def _build_spaces(points: Sequence[Point], asked: Asked) -> int:
    from steelyard_kernels.compiling import spaces

    made = [
        spaces.build_shown(point, library)
        for point in points
        for library in asked.libraries or [""]
    ]
    if asked.as_json:
        click.echo(spaces.dumps(made))
    else:
        console = _console()
        for part in (part for space in made for part in (*spaces.page(space), "")):
            console.print(part, markup=False)
    return BUILD_FAILED if any(space.failures for space in made) else 0


def _weigh(points: Sequence[Point], asked: Asked) -> int:
    _check(points, asked)
    rows, recorded = _measured(points, asked)
    if asked.trace_file and recorded:
        _write(asked.trace_file, recorded.chrome_trace())
    shown = asked.timings or asked.allocations
    _show(rows, recorded if shown else None, asked)
    return BUILD_FAILED if any(row.error for row in rows) else 0


def _check(points: Sequence[Point], asked: Asked) -> None:
    """Refuse what would measure something else than was asked for."""
    from steelyard_kernels import disk

    known = CACHES.get(asked.cache, frozenset())
    for level in asked.levels:
        if level not in known:
            raise click.ClickException(
                f"--drop {level}: a {asked.cache} build has no such level to drop, "
                f"expected one of {', '.join(sorted(known)) or 'none'}."
            )
    if asked.cache == "warm-disk" and disk.default_directory() is None:
        raise click.ClickException(
            "--quantity warm-disk reads the cache on disk and STEELYARD_CACHE=off says "
            "that there is none; unset it, or name a folder."
        )
    if asked.libraries and all(point.target == "cpu" for point in points):
        raise click.ClickException(
            "--nvrtc chooses the compiler of cuda targets and there is none; add "
            "--target cuda:sm_90a."
        )
    if asked.trace_file and not Path(asked.trace_file).parent.is_dir():
        raise click.ClickException(
            f"--trace {asked.trace_file}: {Path(asked.trace_file).parent} is no folder; "
            "name a file in one that exists."
        )
    if asked.cache == "first" and asked.recording:
        raise click.ClickException(
            "--timings sees into builds of a process that stays, first starts a new one "
            "each time; leave one of the two out."
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
    drops = [asked.levels[:count] for count in range(len(asked.levels) + 1)]
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
    return rows, spans


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
    console.print(report.table(rows))
    taken = report.resources(rows) if asked.resources else None
    if asked.resources and taken is None:
        click.echo("no resources: they are of cuda targets", err=True)
    if taken is not None:
        console.print()
        console.print(taken)
    if spans is not None:
        click.echo()
        click.echo(spans.table(), nl=False)
    for sentence in report.failures(rows):
        click.echo(sentence, err=True)


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(
            f"--trace {path} cannot be written: {error.strerror}. Name another file."
        ) from error


def _console() -> Console:
    """Return a console as wide as its terminal, or wide enough where there is none."""
    from rich.console import Console

    from steelyard_kernels.compiling.report import PAGE

    made = Console(highlight=False)
    return made if made.is_terminal else Console(highlight=False, width=PAGE)
