"""Remove a run from the store."""

from __future__ import annotations

import click

from steelyard.commands._options import store_option
from steelyard.declare import config
from steelyard.store.store import Store


@click.group()
def command() -> None:
    """Change what the store keeps."""


@command.command()
@click.argument("run_name", metavar="RUN")
@click.option("--yes", is_flag=True, help="Do not ask.")
@store_option
def remove(run_name: str, *, yes: bool, store: str | None) -> None:
    """Remove a run and all its trials, also one that cannot be read any more.

    RUN is named as in `show`. A run that still measures is refused.
    """

    def agree(what: str, trials: int) -> bool:
        question = f"Remove {what}, with {trials} trials?"
        return yes or click.confirm(question, err=True)

    with Store.open(config.load({"store": store}).store, create=False) as opened:
        uid = opened.remove(run_name, agree)
    click.echo(f"run {uid[:8]} was removed" if uid else "nothing was removed")
