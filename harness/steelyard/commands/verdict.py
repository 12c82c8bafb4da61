"""Show the last gate again, with its exit code."""

from __future__ import annotations

from pathlib import Path

import click

from steelyard.commands import _options as options
from steelyard.gate import document
from steelyard.gate.outcome import Outcome
from steelyard.report import gate_terminal

from_option = options.option(
    "--from source", "The JSON of a gate.", "the last one here", type=options.FILE
)


@click.command()
@from_option
@options.format_option("gate")
@options.option("--annotations", "Add GitHub's ::error lines.", is_flag=True)
@options.output_option
@options.store_option
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
    url = options.url(store)
    return document.read(document.home(url) / document.LAST)
