"""List the commits at which cases changed, or draw one case."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import click

from steelyard.commands import _options as options
from steelyard.errors import SteelyardError
from steelyard.machine import files, git
from steelyard.report import chart, drawing, tables
from steelyard.store import series as history
from steelyard.store.imports import asv
from steelyard.store.series import History, Measured, Place

LAST: Final = 150
"""Runs that the list of commits is made of."""


@click.command()
@click.argument("case_name", metavar="[CASE]", required=False)
@options.option("-m --mode", "Default: the first it was measured in.", metavar="MODE")
@options.option("--tag", "Only runs that have this tag.")
@options.option(
    "--branch", "Only runs of commits of this branch, in the commits' order."
)
@options.option(
    "--on",
    "All machines of these kinds, each kind apart.",
    "the latest run's machine",
    multiple=True,
    metavar="gpu=H200,...|any",
)
@options.option(
    "--last",
    "Read so many of the latest runs, 0 for all.",
    f"{LAST}, all for one CASE",
    type=click.IntRange(min=0),
    metavar="RUNS",
)
@options.option("--commit at", "List every step at this commit.")
@options.option(
    "--limit",
    "Commits to list, the latest.",
    shown=True,
    type=click.IntRange(min=1),
    default=20,
)
@options.option(
    "--asv results",
    "asv's results (its results_dir) instead of the store.",
    metavar="FOLDER",
    type=options.PATH,
)
@options.written("--svg", "Draw CASE to this file too.")
@options.store_option
def command(
    *,
    case_name: str | None,
    mode: str | None,
    tag: str | None,
    branch: str | None,
    on: Sequence[str],
    last: int | None,
    at: str | None,
    limit: int,
    results: Path | None,
    svg: str | None,
    store: str | None,
) -> None:
    """Draw CASE over the stored runs, and report where it stepped.

    Without CASE, the commits at which cases stepped are listed, the latest first.
    """
    if svg is not None and case_name is None:
        raise SteelyardError("--svg draws one case: name it.")
    if at is not None and case_name is not None:
        raise SteelyardError("--commit lists all cases: give no CASE with it.")
    if svg is not None and len(on) > 1:
        raise SteelyardError("--svg draws one kind of machine: give one --on.")
    last = (0 if case_name else LAST) if last is None else last
    commits = git.commits(branch, Path.cwd()) if branch else None
    if results is not None:
        measured = _of_asv(results, case_name, tag, commits)
    else:
        with options.opened(store) as opened:
            measured = history.stored(
                *(opened, case_name, tag, commits), on=on, last=last
            )
    groups = history.by_kind(measured) if on else {"": measured}
    for kind, group in groups.items():
        if kind:
            click.echo(f"on {kind}")
        found = history.histories(group)
        if case_name is None:
            _list([one for one in found if mode in {None, one.mode}], at, limit)
            continue
        one = history.chosen(found, mode)
        _print(chart.lines(one, tables.console().width))
        if svg is not None:
            files.save(svg, drawing.svg(one))


def _list(wanted: Sequence[History], at: str | None, limit: int) -> None:
    """Print the commits at which cases stepped, or one of them."""
    width = tables.console().width
    if at is None:
        _print(chart.overview(wanted, width, limit))
    else:
        _print(chart.commit(_place(wanted, at), width))


def _place(found: Sequence[History], at: str) -> Place:
    for place in history.places(found):
        if place.point.commit.startswith(at):
            return place
    raise SteelyardError(
        f"--commit {at}: no case stepped there. `steelyard history` lists the commits "
        "at which cases did."
    )


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)


def _of_asv(
    folder: Path, case: str | None, tag: str | None, commits: list[str] | None
) -> list[Measured]:
    if tag is not None:
        raise SteelyardError("--tag is of the store's runs; asv's results have none.")
    measured = asv.measured(folder, commits)
    if not measured:
        raise SteelyardError(
            f"{folder} has no time of those commits; `asv run` makes some."
        )
    chosen = [one for one in measured if case in {None, one.case}]
    if not chosen:
        names = ", ".join(dict.fromkeys(one.case for one in measured))
        raise SteelyardError(f"{folder} has no {case!r}; it has {names}.")
    return chosen
