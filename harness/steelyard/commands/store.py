"""Remove runs from the store, or the samples of old ones."""

from __future__ import annotations

from collections.abc import Sequence

import click

from steelyard.commands import _options as options
from steelyard.errors import SteelyardError
from steelyard.machine.writer import now
from steelyard.store import places
from steelyard.store.run import said_of, too_old
from steelyard.store.store import Store


@click.group()
def command() -> None:
    """Change what the store keeps."""


@command.command()
@click.argument("run_name", metavar="RUN")
@options.option("--yes", "Do not ask.", is_flag=True)
@options.store_option
def remove(run_name: str, *, yes: bool, store: str | None) -> None:
    """Remove a run and all its trials, also one that cannot be read any more.

    RUN is named as in `show`. A run that still measures is refused.
    """

    def agree(what: str, trials: int) -> bool:
        question = f"Remove {what}, with {trials} trials?"
        return yes or click.confirm(question, err=True)

    with options.opened(store) as opened:
        uid = opened.remove(run_name, agree)
    click.echo(f"run {uid[:8]} was removed" if uid else "nothing was removed")


@command.command()
@options.option(
    "--samples",
    "Remove the samples of older runs; `history` keeps what they came to.",
    type=click.IntRange(min=1),
    metavar="DAYS",
)
@options.option(
    "--runs", "Remove older runs.", type=click.IntRange(min=1), metavar="DAYS"
)
@options.option(
    "--keep", "Leave runs with this tag as they are.", multiple=True, metavar="TAG"
)
@options.option("--yes", "Remove it; without, only say what.", is_flag=True)
@options.store_option
def prune(
    *,
    samples: int | None,
    runs: int | None,
    keep: Sequence[str],
    yes: bool,
    store: str | None,
) -> None:
    """Say what is older than the limits; remove it with --yes.

    Runs that still measure, and the latest of each kind of machine and set of tags, stay
    as they are.
    """
    if samples is None and runs is None:
        raise SteelyardError("name a limit in days: --samples 90, --runs 730, or both.")
    url = options.url(store)
    with Store.open(url, create=False) as opened:
        found = too_old(opened.heads(), now(), samples, runs, keep)
        for line in said_of(found):
            click.echo(line)
        if not yes:
            click.echo("nothing was removed; give --yes to do so")
            return
        for head in found.runs:
            opened.remove(head.uid, lambda *_: True)
        for head in found.samples:
            opened.prune(head.uid)
    places.shrink(url)
