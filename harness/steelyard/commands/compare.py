"""Print the ratios of two stored runs."""

from __future__ import annotations

import click

from steelyard.analyse import compare as comparing
from steelyard.analyse.rows import selected
from steelyard.commands import _options as options
from steelyard.errors import SteelyardError
from steelyard.report import comparison, json_report, tables
from steelyard.report.formats import Compared, formats, json


@click.command()
@click.argument("base")
@click.argument("new", required=False)
@options.option("-k pattern", "Only cases that contain it.", metavar="WORD")
@options.option(
    "--across-machines",
    "Print ratios of two machines, GPUs or drivers, labelled as such.",
    is_flag=True,
)
@options.format_option("compared")
@options.written("--json json_file", "Write the ratios to a file.", metavar="FILE|-")
@options.store_option
def command(
    *,
    base: str,
    new: str | None,
    pattern: str | None,
    across_machines: bool,
    shape: str,
    json_file: str | None,
    store: str | None,
) -> None:
    """Print the ratios of two stored runs.

    BASE is the baseline. It and NEW are named as in `show`; NEW is the latest unless it
    is given. What differs in compilers, machine, versions and settings comes first.
    """
    with options.opened(store) as opened:
        sides = opened.find(base), opened.find(new or "@-1")
        if new is None and sides[0].uid == sides[1].uid:
            raise SteelyardError(
                f"{base} is the latest run, which is NEW where none is given: name an "
                "earlier one, such as @-2."
            )
        trials = [opened.trials(side.uid) for side in sides]
        around = comparing.around(*sides, *trials)
        console = tables.console(stderr=shape != "table" or json_file == "-")
        if not across_machines:
            try:
                comparing.require_same_machine(*sides)
            except SteelyardError:
                console.print(*comparison.heading(*sides, around), sep="\n")
                raise
    every, missing = comparing.compare(*trials), "neither run has a case"
    chosen = selected(every, lambda one: one.case, pattern, missing)
    made = comparing.labelled(*sides, chosen)
    if not across_machines:
        comparing.require_same_gpu(*sides, made)
    if json_file:
        text = json.compared(Compared(*sides, around, made))
        json_report.write(json_file, text.rstrip())
    if shape != "table":
        write = formats()[shape].compared
        assert write is not None, shape
        click.echo(write(Compared(*sides, around, made)), nl=False)
    elif json_file != "-":
        for part in comparison.page(*sides, around, made):
            console.print(part)
