"""List the cases of PATHS, their modes, and which run on a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import click

from steelyard.commands import _options as options
from steelyard.declare import config, discovery, plan


@click.command()
@click.argument("paths", nargs=-1)
@options.pattern_option
@options.overrides_option
def command(
    paths: tuple[str, ...], pattern: str | None, overrides: Sequence[str]
) -> None:
    """List the cases of PATHS, their modes, and which run on a GPU.

    Without PATHS they are those of the configured suites, else of ./suites, else of a
    small built-in suite.
    """
    chosen = config.load({"suites": paths or None})
    for case in discovery.find(
        options.places(chosen, paths), pattern, overrides, seconds=chosen.timeout
    ):
        where = "  on a GPU" * plan.needs_gpu(case)
        click.echo(f"{case.id}  {' '.join(map(str, case.modes()))}{where}")
