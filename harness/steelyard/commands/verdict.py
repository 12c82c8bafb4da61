"""Show the last gate again, with its exit code."""

from __future__ import annotations

from pathlib import Path

import click

from steelyard.commands._options import format_option, output_option, store_option
from steelyard.declare import config
from steelyard.gate import document
from steelyard.gate.outcome import Outcome
from steelyard.report import gate_terminal

from_option = click.option(
    "--from",
    "source",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The JSON of a gate.",
    show_default="the last one here",
)


@click.command()
@from_option
@format_option("gate")
@click.option("--annotations", is_flag=True, help="Add GitHub's ::error lines.")
@output_option
@store_option
def command(
    *,
    source: Path | None,
    shape: str,
    annotations: bool,
    output: str | None,
    store: str | None,
) -> int:
    """Show what the last gate came to, and end as it did.

    Nothing is measured, and the policy is the one of then.
    """
    outcome = outcome_of(source, store)
    gate_terminal.write(outcome, shape, output, annotations=annotations)
    return outcome.exit_code


def outcome_of(source: Path | None, store: str | None) -> Outcome:
    """Return the outcome in a file, or the last one beside a store."""
    if source is not None:
        return document.read(source)
    url = config.load({"store": store}).store
    return document.read(document.home(url) / document.LAST)
