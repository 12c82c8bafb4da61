"""The command line. What a command needs is imported when it runs, not before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from steelyard.commands.lazy import Lazy
from steelyard.declare.options import (
    across_option,
    columns_option,
    format_option,
    gpu_option,
    measuring_options,
    overrides_option,
    pattern_option,
    plot_option,
    relative_option,
    store_option,
)
from steelyard.errors import SteelyardError

if TYPE_CHECKING:
    from steelyard.analyse.rows import Row
    from steelyard.analyse.run import Run
    from steelyard.analyse.trial import Trial
    from steelyard.declare.config import Config
    from steelyard.store.store import Store


@click.group(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="steelyard", message="steelyard %(version)s")
def main() -> None:
    """Measure kernels: the kernel and nothing else.

    `run` and `list` take files, folders or modules with benchmarks. Without any they take
    `suites` of [tool.steelyard] or STEELYARD_SUITES, else ./suites, else a small built-in
    suite, and say which.
    """


@main.command()
@click.argument("paths", nargs=-1)
@pattern_option
@overrides_option
@measuring_options
@click.option(
    "--profile",
    type=click.Choice(["ncu"]),
    help="Read Nsight Compute's counters of one launch of each case on a GPU.",
)
@click.option(
    "--trace",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write a trace of some launches of each case, for ui.perfetto.dev.",
)
@click.option("--dry-run", is_flag=True, help="Print the plan and measure nothing.")
@click.option("--tag", "tags", multiple=True, help="Name the run, to find it by.")
@click.option(
    "--json", "json_file", metavar="FILE|-", help="Write the results to a file."
)
@columns_option
@across_option
@plot_option
@relative_option
@store_option
def run(
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
    **asked: Any,
) -> int:
    """Measure the cases of PATHS and keep the results.

    PATHS are files, folders or modules; without any they are the configured suites,
    else ./suites, else a small built-in suite. Of a folder those .py files are imported
    that mention steelyard.
    """
    from steelyard.declare import config, plan
    from steelyard.report import columns as columns_
    from steelyard.report import curves, json_report, progress
    from steelyard.store import session

    wanted = columns_.read(columns)
    every = asked.pop("every_clock")
    if every and asked["clock"]:
        raise SteelyardError("--clock and --clocks exclude each other: give one.")
    asked["clock"] = every or asked["clock"]
    flags: dict[str, Any] = {
        key: asked.pop(key) for key in config.READERS.keys() & asked
    } | {"suites": paths or None}
    chosen = config.load(flags)
    request = session.Asked(
        places=_places(chosen, paths), blocks=chosen.blocks, **asked
    )
    settings = session.settings(
        chosen,
        request,
        check=check,
        allocations=allocations,
        energy=not {"watts", "joules"}.isdisjoint(wanted),
    )
    turns, left, broken = session.planned(request, chosen.seed)
    if left:
        click.echo(f"left out: {left}", err=True)
    of_gpu = {
        "--gpu": flags["gpu"],
        "--clocks" if every else "--clock": flags["clock"],
    }
    if said := session.unused(turns, of_gpu):
        click.echo(said, err=True)
    points = [turn.case.axes for turn in plan.once(turns)]
    _require_axes(points, across, relative_to)
    if plot:
        curves.require(points, across, plot)
    _require_writable(json_file, request.trace, chosen.store)
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
    shown = progress.Progress(len(turns), header_to_stderr=json_file == "-")
    outcome = session.weigh(
        turns,
        settings,
        request,
        chosen.store,
        device=device,
        on_start=shown.start,
        on_turn=shown.turn,
        say=lambda line: click.echo(line, err=True),
    )
    shown.end()
    made = _rows(outcome.run, outcome.trials, relative_to)
    if json_file:
        text = json_report.dumps(outcome.run, outcome.trials, made)
        json_report.write(json_file, text)
    if json_file != "-":
        _print_rows(outcome.run, made, wanted, across)
    if plot and across:
        curves.write(plot, made, across)
    outcome.problem = outcome.problem or broken
    progress.ending(outcome, chosen.store)
    return outcome.exit_code


def _require_axes(
    points: Sequence[Mapping[str, Any]], across: str | None, relative: str | None
) -> None:
    from steelyard.analyse import rows
    from steelyard.report import pivot

    if across:
        pivot.require(points, across)
    if relative:
        rows.reference(points, relative)


def _require_writable(json_file: str | None, trace: str | None, store: str) -> None:
    """Refuse files that could not be written once everything is measured."""
    from pathlib import Path

    from steelyard.process import tracing
    from steelyard.report import json_report
    from steelyard.store import places

    if json_file:
        json_report.require_writable(json_file)
    if trace:
        tracing.require_writable(Path(trace))
    places.require_place(store)


def _places(chosen: Config, paths: Sequence[str]) -> list[str]:
    """Return what to discover; say what that is where no PATHS were given."""
    from steelyard.declare import config

    places = config.suites(chosen)
    if not paths:
        click.echo(config.taken(chosen), err=True)
    return places


def _rows(run: Run, trials: Sequence[Trial], relative: str | None) -> list[Row]:
    from steelyard.analyse import rows

    made = rows.with_peaks(rows.rows(trials), run.peaks)
    return rows.relative_to(made, relative) if relative else made


def _print_rows(
    run: Run, made: Sequence[Row], wanted: Sequence[str], across: str | None
) -> None:
    from steelyard.declare import config
    from steelyard.report import clocks_table, pivot, tables

    console = tables.console()
    if across:
        shown = pivot.page(made, across, console.width, wanted)
    else:
        shown = tables.page(made, console.width, wanted)
    for part in shown:
        console.print(part)
    if run.settings.get("clock") == config.ALL:
        for part in clocks_table.page(made):
            console.print(part)


@main.command(name="list")
@click.argument("paths", nargs=-1)
@pattern_option
@overrides_option
def list_(
    paths: tuple[str, ...], pattern: str | None, overrides: Sequence[str]
) -> None:
    """List the cases of PATHS, their modes, and which run on a GPU.

    Without PATHS they are those of the configured suites, else of ./suites, else of a
    small built-in suite.
    """
    from steelyard.declare import config, plan
    from steelyard.store import session

    chosen = config.load({"suites": paths or None})
    for case in session.find(_places(chosen, paths), pattern, overrides):
        where = "  on a GPU" * plan.needs_gpu(case)
        click.echo(f"{case.id}  {' '.join(map(str, case.modes()))}{where}")


@main.command()
@click.argument("run_name", metavar="[RUN]", required=False)
@click.argument("case_name", metavar="[CASE]", required=False)
@click.option("--runs", "all_runs", is_flag=True, help="List the stored runs.")
@click.option("--repro", is_flag=True, help="Print only how to measure the case again.")
@format_option
@columns_option
@across_option
@plot_option
@relative_option
@store_option
def show(
    *,
    run_name: str | None,
    case_name: str | None,
    all_runs: bool,
    repro: bool,
    shape: str,
    columns: str,
    across: str | None,
    plot: str | None,
    relative_to: str | None,
    store: str | None,
) -> None:
    """Show a stored run, or one case of it.

    RUN is the beginning of an id, a tag, the beginning of a commit, or @-1 for the
    latest (the default), @-2 for the one before.
    """
    from steelyard.report import columns as columns_
    from steelyard.report import curves, pivot, stored

    wanted = columns_.read(columns)
    with _store(store) as opened:
        if all_runs:
            stored.print_runs(opened)
            return
        found, case = stored.locate(opened, run_name, case_name)
        trials = stored.of_case(opened.trials(found.uid), case)
        made = _rows(found, trials, relative_to)
        if across:
            pivot.require([row.axes for row in made], across)
        if plot:
            curves.require([row.axes for row in made], across, plot)
            curves.write(plot, made, across or "")
        if repro:
            stored.print_reproduction(found, made)
        elif shape != "table":
            said = stored.dumps(
                shape, found, trials, made, across=across, wanted=wanted
            )
            click.echo(said, nl=False)
        elif case is not None and not across:
            stored.print_details(found, made)
        else:
            stored.print_header(found, len(trials))
            _print_rows(found, made, wanted, across)


def _store(url: str | None) -> Store:
    from steelyard.store.store import Store

    return Store.open(_config(url).store, create=False)


def _config(store: str | None) -> Config:
    from steelyard.declare import config

    return config.load({"store": store})


@main.command()
@click.option("--again", is_flag=True, help="Measure them again.")
@gpu_option
def peaks(*, again: bool, gpu: str | None) -> None:
    """Show what a GPU does at most: copies by size, operations by dtype.

    They are measured once for each GPU and driver, and kept.
    """
    from steelyard.declare import config
    from steelyard.machine import gpu_choice as gpus
    from steelyard.machine import lock
    from steelyard.measure import gpu_peaks
    from steelyard.report import peaks_table, tables

    index = gpus.choose(config.load({"gpu": gpu}).gpu)
    table = gpus.facts(index)["peaks"]
    if again or not table:
        with lock.measuring():
            table = gpu_peaks.in_its_process(index)
    tables.console().print(*peaks_table.page(table), sep="\n")


@main.command()
@store_option
def doctor(store: str | None) -> None:
    """Say what on this machine makes numbers lie."""
    from pathlib import Path

    from steelyard.machine import doctor as looking
    from steelyard.machine import gpu_doctor as doctor_gpu
    from steelyard.report import diagnosis, tables

    url = _config(store).store
    folder = Path.cwd() if "://" in url else Path(url).parent
    found = [*looking.findings(folder), *doctor_gpu.findings()]
    console = tables.console()
    console.print(diagnosis.page(found, console.width))
