"""Options that commands share, and those that say how a run measures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from steelyard.clocks import gpu
from steelyard.declare import config
from steelyard.declare.config import ALL, AUTO, OFF, Config
from steelyard.machine import files

if TYPE_CHECKING:
    from steelyard.store.store import Store

FILE: Final = click.Path(dir_okay=False, path_type=Path)
PATH: Final = click.Path(path_type=Path)

Decorator = Callable[[Any], Any]
"""What gives a command an option."""


def option(name: str, text: str, shown: str | bool = False, **how: Any) -> Decorator:
    """Return an option; ``how`` is as click has it, files are called FILE."""
    if how.get("type") is FILE:
        how = {"metavar": "FILE"} | how
    return click.option(*name.split(), help=text, show_default=shown, **how)


def written(name: str, text: str, shown: str | bool = False, **how: Any) -> Decorator:
    """Return an option for a file that is written at the end, or refused before."""

    def check(
        _context: click.Context, parameter: click.Parameter, place: str | Path | None
    ) -> str | Path | None:
        if place is not None and str(place) != "-":
            files.require_writable(place, parameter.opts[0])
        return place

    return option(name, text, shown, callback=check, **({"metavar": "FILE"} | how))


def _number(name: str, text: str, shown: str, metavar: str | None = None) -> Decorator:
    kind = float if metavar else int
    return option(name, text, shown, type=kind, metavar=metavar)


store_option = option(
    "--store", "Where runs are kept; a file or an SQLAlchemy URL.", metavar="PATH|URL"
)
pattern_option = option(
    "-k pattern", "Select by words of case ids with and/or/not.", metavar="EXPR"
)
overrides_option = option(
    "-p overrides",
    "Replace an axis's values: AXIS=1,2 or AXIS=2^10:2^20:4x.",
    multiple=True,
    metavar="AXIS=1,2",
)
relative_option = option(
    "--relative-to",
    "Add each case's time over that of the case with this value.",
    metavar="AXIS=VALUE",
)
baseline_option = option(
    "--baseline",
    "Add each case's time over that of this stored run, named as in `show`.",
    metavar="RUN",
)
gpu_option = option("--gpu", "Use this GPU.", "the least used", metavar="N|UUID")
wait_option = option(
    "--wait",
    "Wait this long for a run that is measuring.",
    shown=True,
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
)
columns_option = option(
    "--columns",
    "Show these columns too: watts, joules, celsius, mhz, cpu, items, peak.",
    metavar="NAME,...",
    default="",
)
across_option = option(
    "--across",
    "One table a benchmark: a row a case, a column a value of this axis.",
    metavar="AXIS|mode",
)
plot_option = written(
    "--plot", "Draw time over the axis of --across to this SVG file too."
)
output_option = written("--output", "Write it there.", "-")
seed_option = _number("--seed", "Seed of the inputs and of the order of turns.", "0")
blocks_option = _number(
    "--blocks", "Give every case this many turns, each in a new process.", "4"
)
inputs_option = option(
    "--input inputs",
    "Fill the input X from a file.",
    multiple=True,
    metavar="X=@FILE.npy",
)
budget_option = _number(
    "--budget",
    "Share this long among all turns, and end by then; turns that settle early "
    "leave their time to the rest.",
    "0.08 s a turn",
    "SECONDS",
)
precision_option = _number(
    "--precision", "Sample until half the interval is below this.", "0.5", "PERCENT"
)
trust_option = option(
    "--trust trusted",
    "Run a capsule's code though nobody that you listed signed it.",
    is_flag=True,
)
timeout_option = _number(
    "--timeout", "Fail a case that is silent for this long.", "60", "SECONDS"
)


def modes_option(shown: str) -> Decorator:
    """Return ``--mode``; what is measured without it is shown."""
    text = "What to measure: kernel/cold, latency/warm/64, ..."
    return option("--mode modes", text, shown, multiple=True, metavar="MODE,...")


def together(*options: Decorator) -> Decorator:
    """Return what gives a command several options, in their order."""

    def decorated(command: Any) -> Any:
        for one in reversed(options):
            command = one(command)
        return command

    return decorated


tables_options = together(
    columns_option, across_option, plot_option, relative_option, baseline_option
)
turns_options = together(
    *(budget_option, precision_option, blocks_option, timeout_option, wait_option),
    *(gpu_option, store_option),
)
measuring_options = together(
    modes_option("what the benchmark asks for, else kernel/cold,kernel/warm"),
    inputs_option,
    seed_option,
    budget_option,
    precision_option,
    blocks_option,
    timeout_option,
    option(
        "--check/--no-check",
        "Check results against the benchmark's reference.",
        shown=True,
        default=True,
    ),
    option("--allocations", "Count what a launch allocates.", is_flag=True),
    wait_option,
    gpu_option,
    option(
        "--clock",
        f"Read kernels on a GPU by this clock: {', '.join(gpu.own())}.",
        "the best there is",
        metavar="ID",
    ),
    option(
        "--clocks every_clock",
        "Read kernels on a GPU by every clock, side by side.",
        type=click.Choice([ALL]),
    ),
    option(
        "--peaks",
        "Measure once what the GPU does at most, for percent of it.",
        AUTO,
        type=click.Choice([AUTO, OFF]),
    ),
)


def format_option(result: str) -> Decorator:
    """Return ``--format`` of ``results``, ``compared`` or ``gate``: see `formats`."""
    from steelyard.report import formats

    kind, usual = click.Choice(formats.names(result)), formats.TABLE
    text = "Write the result in this form."
    return option("--format shape", text, shown=True, type=kind, default=usual)


def loaded(asked: dict[str, Any], paths: Sequence[str], **fixed: Any) -> Config:
    """Return the settings of a command; ``asked`` keeps what is none.

    PATHS are the suites where there are any; ``fixed`` are settings whatever is asked.
    """
    flags = {key: asked.pop(key) for key in config.READERS.keys() & asked}
    return config.load(flags | {"suites": tuple(paths) or None} | fixed)


def url(store: str | None) -> str:
    """Return where runs are kept: what is asked for, else what is configured."""
    return config.load({"store": store}).store


def opened(store: str | None) -> Store:
    """Return the store that is asked for, else the configured one; it must be there."""
    from steelyard.store.store import Store

    return Store.open(url(store), create=False)


def places(chosen: Config, paths: Sequence[str]) -> list[str]:
    """Return what to discover; say what that is where no PATHS were given."""
    if not paths:
        click.echo(config.taken(chosen), err=True)
    return config.suites(chosen)
