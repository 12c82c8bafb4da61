"""Options that commands share, and those that say how a run measures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from steelyard.clocks import gpu
from steelyard.declare import config
from steelyard.declare.config import ALL, AUTO, OFF, Config

store_option = click.option(
    "--store",
    metavar="PATH|URL",
    help="Where runs are kept; a file or an SQLAlchemy URL.",
)
pattern_option = click.option(
    "-k", "pattern", metavar="EXPR", help="Select by words of case ids with and/or/not."
)
overrides_option = click.option(
    "-p",
    "overrides",
    multiple=True,
    metavar="AXIS=1,2",
    help="Replace an axis's values: AXIS=1,2 or AXIS=2^10:2^20:4x.",
)
relative_option = click.option(
    "--relative-to",
    metavar="AXIS=VALUE",
    help="Add each case's time over that of the case with this value.",
)
gpu_option = click.option(
    "--gpu",
    metavar="N|UUID",
    help="Use this GPU.",
    show_default="the least used",
)
wait_option = click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="Wait this long for a run that is measuring.",
    show_default=True,
)
columns_option = click.option(
    "--columns",
    metavar="NAME,...",
    default="",
    help="Show these columns too: watts, joules, celsius, mhz, cpu, items, peak.",
)

across_option = click.option(
    "--across",
    metavar="AXIS|mode",
    help="One table a benchmark: a row a case, a column a value of this axis.",
)

plot_option = click.option(
    "--plot",
    metavar="FILE",
    help="Draw time over the axis of --across to this SVG file too.",
)


def measuring_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command every option that says what is measured and how."""
    for option in reversed(_MEASURING):
        command = option(command)
    return command


_MEASURING = (
    click.option(
        "--mode",
        "modes",
        multiple=True,
        metavar="MODE,...",
        help="What to measure: kernel/cold, latency/warm/64, ...",
        show_default="what the benchmark asks for, else kernel/cold,kernel/warm",
    ),
    click.option(
        "--input",
        "inputs",
        multiple=True,
        metavar="X=@FILE.npy",
        help="Fill the input X from a file.",
    ),
    click.option(
        "--seed",
        type=int,
        help="Seed of the inputs and of the order of turns.",
        show_default="0",
    ),
    click.option(
        "--budget",
        type=float,
        metavar="SECONDS",
        help="Share this long among all turns, and end by then; turns that settle early "
        "leave their time to the rest.",
        show_default="0.08 s a turn",
    ),
    click.option(
        "--precision",
        type=float,
        metavar="PERCENT",
        help="Sample until half the interval is below this.",
        show_default="0.5",
    ),
    click.option(
        "--blocks",
        type=int,
        help="Give every case this many turns, each in a new process.",
        show_default="4",
    ),
    click.option(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="Fail a case that is silent for this long.",
        show_default="60",
    ),
    click.option(
        "--check/--no-check",
        default=True,
        help="Check results against the benchmark's reference.",
        show_default=True,
    ),
    click.option("--allocations", is_flag=True, help="Count what a launch allocates."),
    wait_option,
    gpu_option,
    click.option(
        "--clock",
        metavar="ID",
        help=f"Read kernels on a GPU by this clock: {', '.join(gpu.own())}.",
        show_default="the best there is",
    ),
    click.option(
        "--clocks",
        "every_clock",
        type=click.Choice([ALL]),
        help="Read kernels on a GPU by every clock, side by side.",
    ),
    click.option(
        "--peaks",
        type=click.Choice([AUTO, OFF]),
        help="Measure once what the GPU does at most, for percent of it.",
        show_default=AUTO,
    ),
)


def format_option(result: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return ``--format`` of ``results``, ``compared`` or ``gate``: see `formats`."""
    from steelyard.report import formats

    return click.option(
        "--format",
        "shape",
        type=click.Choice(formats.names(result)),
        default=formats.TABLE,
        help="Write the result in this form.",
        show_default=True,
    )


def places(chosen: Config, paths: Sequence[str]) -> list[str]:
    """Return what to discover; say what that is where no PATHS were given."""
    if not paths:
        click.echo(config.taken(chosen), err=True)
    return config.suites(chosen)
