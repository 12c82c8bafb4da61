"""Show a stored run, or one case of it."""

from __future__ import annotations

import click

from steelyard.commands import _options as options
from steelyard.report import columns as columns_list
from steelyard.report import details, pivot, stored, tables
from steelyard.report.formats import Results


@click.command()
@click.argument("run_name", metavar="[RUN]", required=False)
@click.argument("case_name", metavar="[CASE]", required=False)
@options.option("--runs all_runs", "List the stored runs.", is_flag=True)
@options.option("--repro", "Print only how to measure the case again.", is_flag=True)
@options.format_option("results")
@options.tables_options
@options.store_option
def command(
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
    baseline: str | None,
    store: str | None,
) -> None:
    """Show a stored run, or one case of it.

    RUN is a tag, the beginning of an id or a commit (at least 4 characters), or @-1
    for the latest (the default), @-2 for the one before.
    """
    wanted = columns_list.read(columns)
    with options.opened(store) as opened:
        if all_runs:
            runs = stored.runs_sheet(opened.runs(), opened.counts())
            tables.console().print(runs)
            return
        found, case = stored.locate(opened, run_name, case_name)
        trials = stored.of_case(opened.trials(found.uid), case)
        made = stored.rows_of(found, trials, relative_to)
        if baseline:
            base = stored.Baseline.of(opened, baseline, relative_to)
            made = base.beside(made, found, trials, stderr=shape != "table")
        if across:
            pivot.require([row.axes for row in made], across)
        if plot:
            from steelyard.report import curves, sweeps  # few runs are drawn

            curves.require([row.axes for row in made], across, plot)
            curves.write(plot, sweeps.curves(found, made, across or ""), across or "")
        if repro:
            for row in made:
                click.echo(details.reproduce(found, row))
        elif shape != "table":
            said = stored.dumps(shape, Results(found, trials, made, across, wanted))
            click.echo(said, nl=False)
        elif case is not None and not across:
            stored.print_details(found, made)
        else:
            stored.print_header(found, len(trials))
            stored.print_rows(found, made, wanted, across)
