"""Build kernels and report what that takes.

The command line finds it by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from steelyard.commands import _options as common
from steelyard.errors import FAILED, SteelyardError
from steelyard_kernels.building.cache import CACHES, LEVELS
from steelyard_lock.options import arrays_option, axes_option, sentences

if TYPE_CHECKING:
    from steelyard_kernels.library.examples import Spec
    from steelyard_lock.points import Axis

QUANTITIES: Final = (*CACHES, "first")

TEXTS: Final = ("program", "schedule", "loops", "llvm", "cuda", "ptx", "sass")
_SHOWN: Final = "it shows a text of a build and times nothing"
_TIMING: Final = (
    "--quantity", "--drop", "--repeat", "--timings", "--allocations", "--passes",
    "--trace", "--resources", "--json", "--nvrtc", "--candidates", "--threads",
    "--alone",
)  # fmt: skip
_COLD: Final = "it builds every candidate once and cold"
IDLE: Final = {
    "--emit": dict.fromkeys((*_TIMING, "--print-after-all"), _SHOWN),
    "--print-after-all": dict.fromkeys(_TIMING, _SHOWN),
    "--candidates": {
        **dict.fromkeys(("--quantity", "--drop", "--repeat"), _COLD),
        "--passes": "it builds many candidates",
        "--schedule": "it builds every schedule",
        "--resources": "its table has them",
    },
}
"""Options that another one leaves nothing to do, with the reason."""

NEEDS: Final = {
    "--threads": ("--candidates", "--timings"),
    "--alone": ("--candidates",),
}
"""Options that say how something is done, with those that ask for it."""

REPEAT: Final = 6
"""Builds of each row: the fewest whose extremes hold the median (`stats.MINIMUM`)."""


def _paths(
    _context: click.Context, _parameter: click.Parameter, given: str | None
) -> list[str]:
    return given.split(",") if given else [""]


def _threads(
    _context: click.Context, _parameter: click.Parameter, given: str | None
) -> tuple[int, ...]:
    counts = given.split(",") if given else []
    if not all(count.isdecimal() and int(count) for count in counts):
        raise SteelyardError(
            f"--threads {given}: expected whole numbers from 1 up, such as 1,2,4."
        )
    return tuple(map(int, counts))


def _refuse_idle(context: click.Context) -> None:
    """Refuse an option that would do nothing beside another."""
    words = click.core.ParameterSource
    given = {
        parameter.opts[0]
        for parameter in context.command.params
        if context.get_parameter_source(str(parameter.name)) is words.COMMANDLINE
    }
    for option, others in NEEDS.items():
        if option in given and not {*others, "--emit"} & given:
            raise SteelyardError(
                f"{option} does nothing without {' or '.join(others)}: one build after "
                f"the other is timed alone; leave it out, or add {others[0]}."
            )
    for chosen, idle in IDLE.items():
        for option in sorted(given & set(idle)) if chosen in given else ():
            raise SteelyardError(
                f"{option} does nothing with {chosen}: {idle[option]}; leave one of the "
                "two out."
            )


@click.command(name="compile")
@click.argument("kernels", nargs=-1, required=True, metavar="KERNEL...")
@axes_option
@arrays_option
@common.option(
    "--target targets",
    "What to make code for; no GPU is needed.",
    shown=True,
    default="cpu",
    metavar="cpu|cuda:ARCH,...",
)
@common.option(
    "--quantity",
    "Which caches a build may find; first: a fresh process.",
    "cold, with --drop warm-memory",
    type=click.Choice(QUANTITIES),
)
@common.option(
    "--drop levels",
    "Say what this level of cache saves: build with and without it, both without "
    "those above it (memory, code, disk).",
    multiple=True,
    type=click.Choice(LEVELS),
)
@common.option(
    "--repeat",
    "Builds of each row, all rows in turn.",
    shown=True,
    type=click.IntRange(1),
    default=REPEAT,
)
@common.option("--timings", "Print where the time went, nested.", is_flag=True)
@common.option("--allocations", "Count memory in --timings, slower.", is_flag=True)
@common.option(
    "--passes",
    "Print how long LLVM's passes took, once, in a fresh process.",
    is_flag=True,
)
@common.written("--trace", "Write every span for ui.perfetto.dev.")
@common.option("--resources", "Print what a GPU's code takes.", is_flag=True)
@common.option("--json as_json", "Print JSON and nothing else.", is_flag=True)
@common.option(
    "--emit text",
    "Print this text of one build and nothing else.",
    type=click.Choice(TEXTS),
)
@common.option(
    "--print-after-all", "Print what each phase of a build made.", is_flag=True
)
@common.option("--schedule", "Build this candidate.", default="", metavar="LABEL")
@common.option(
    "--launch",
    "Build one launch of a kernel of several, as they are numbered here.",
    type=click.IntRange(0),
    metavar="N",
)
@common.option("--candidates", "Build all candidates, in groups.", is_flag=True)
@common.option(
    "--threads",
    "Build --candidates, or the kernels of --timings, with so many compilers at a "
    "time, one after the other.",
    "one a processor",
    callback=_threads,
    metavar="1,2,4",
)
@common.option(
    "--alone",
    "Build --candidates also each as a program of its own, to compare.",
    is_flag=True,
)
@common.option(
    "--max-registers registers",
    "Limit the registers of a GPU's thread.",
    type=click.IntRange(0),
    default=0,
    metavar="N",
)
@common.option(
    "--nvrtc libraries",
    "Build with each of these libraries, in a process each.",
    callback=_paths,
    metavar="PATH,PATH",
)
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    text: str | None,
    print_after_all: bool,
    candidates: bool,
    libraries: list[str],
    kernels: tuple[str, ...],
    targets: str,
    axes: dict[str, list[Axis]],
    arrays: list[Spec],
    schedule: str,
    registers: int,
    launch: int | None,
    **asked: Any,
) -> int:
    """Build kernels and say what that takes and comes to.

    KERNEL is one of the library, all of it by "all", or path.py:name of a kernel, of one
    from JAX or PyTorch, or of a benchmark that launches one. Nothing is launched. The
    exit code is 2 if a build failed.
    """
    _refuse_idle(context)
    with sentences():
        from steelyard_lock import run
        from steelyard_lock.points import points

        found = points(
            kernels,
            targets,
            axes=axes,
            arrays=arrays,
            schedule=schedule,
            registers=registers,
            libraries=libraries,
            launch=launch,
        )
        if text or print_after_all:
            click.echo(run.shown_texts(found, text), nl=False)
            return 0
        how = run.CompileOptions(**asked)
        good = run.spaces(found, how) if candidates else run.rows(found, how)
        return 0 if good else FAILED
