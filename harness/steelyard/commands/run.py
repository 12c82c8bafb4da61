"""Measure the cases of PATHS and keep the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from steelyard.analyse import rows
from steelyard.commands import _options as options
from steelyard.declare import plan
from steelyard.errors import SteelyardError
from steelyard.report import columns as columns_list
from steelyard.report import json_report, pivot, progress, stored
from steelyard.report.stored import Baseline
from steelyard.store import places as stores
from steelyard.store import session
from steelyard.store.store import Store


@click.command()
@click.argument("paths", nargs=-1)
@options.pattern_option
@options.overrides_option
@options.measuring_options
@options.option(
    "--profile",
    "Read Nsight Compute's counters of one launch of each case on a GPU.",
    type=click.Choice(["ncu"]),
)
@options.written(
    "--trace", "Write a trace of some launches of each case, for ui.perfetto.dev."
)
@options.option("--dry-run", "Print the plan and measure nothing.", is_flag=True)
@options.option("--tag tags", "Name the run, to find it by.", multiple=True)
@options.written("--json json_file", "Write the results to a file.", metavar="FILE|-")
@options.tables_options
@options.store_option
def command(
    *,
    paths: tuple[str, ...],
    json_file: str | None,
    dry_run: bool,
    check: bool,
    allocations: bool,
    columns: str,
    across: str | None,
    plot: str | None,
    relative_to: str | None,
    baseline: str | None,
    **asked: Any,
) -> int:
    """Measure the cases of PATHS and keep the results.

    PATHS are files, folders or modules; without any they are the configured suites,
    else ./suites, else a small built-in suite. Of a folder those .py files are imported
    that mention steelyard.
    """
    wanted = columns_list.read(columns)
    every = asked.pop("every_clock")
    if every and asked["clock"]:
        raise SteelyardError("--clock and --clocks exclude each other: give one.")
    asked["clock"] = every or asked["clock"]
    of_gpu = {"--gpu": asked["gpu"], "--clocks" if every else "--clock": asked["clock"]}
    chosen = options.loaded(asked, paths)
    request = session.Request(
        places=options.places(chosen, paths), blocks=chosen.blocks, **asked
    )
    settings = session.settings(
        chosen,
        request,
        check=check,
        allocations=allocations,
        energy=not {"watts", "joules"}.isdisjoint(wanted),
    )
    turns, left, broken = session.planned(request, chosen)
    if left:
        click.echo(f"left out: {left}", err=True)
    if said := session.unused(turns, of_gpu):
        click.echo(said, err=True)
    points = [turn.case.axes for turn in plan.once(turns)]
    _require_axes(points, across, relative_to, plot)
    stores.require_place(chosen.store)
    base = _baseline(chosen.store, baseline, relative_to)
    if dry_run:
        progress.plan(turns)
        return broken.exit_code if broken else 0
    settings, device = session.on_gpu(turns, settings, chosen)
    if device and device["peaks"] is None:
        click.echo(
            f"measuring once what {device['name']} does at most: about 8 s, or give "
            "--peaks off",
            err=True,
        )
    outcome = progress.measured(
        turns,
        settings,
        request,
        chosen.store,
        device,
        header_to_stderr=json_file == "-",
    )
    made = stored.rows_of(outcome.run, outcome.trials, relative_to)
    if base:
        made = base.beside(made, outcome.run, outcome.trials, stderr=json_file == "-")
    if json_file:
        text = json_report.dumps(outcome.run, outcome.trials, made)
        json_report.write(json_file, text)
    if json_file != "-":
        stored.print_rows(outcome.run, made, wanted, across)
    if plot and across:
        from steelyard.report import curves, sweeps  # few runs are drawn

        curves.write(plot, sweeps.curves(outcome.run, made, across), across)
    outcome.problem = outcome.problem or broken
    progress.ending(outcome, chosen.store)
    return outcome.exit_code


def _baseline(url: str, name: str | None, relative: str | None) -> Baseline | None:
    """Return the run of --baseline as it is named before this one is stored."""
    if not name:
        return None
    with Store.open(url, create=False) as opened:
        return Baseline.of(opened, name, relative)


def _require_axes(
    points: Sequence[Mapping[str, Any]],
    across: str | None,
    relative: str | None,
    plot: str | None,
) -> None:
    if across:
        pivot.require(points, across)
    if plot:
        from steelyard.report import curves

        curves.require(points, across, plot)
    if relative:
        rows.reference(points, relative)
