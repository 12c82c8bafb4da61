"""`steelyard export` and `steelyard import`: runs as files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO

import click

from steelyard import config
from steelyard.cli_options import store_option
from steelyard.errors import SteelyardError
from steelyard.storing.store import Store


@click.command()
@click.argument("run_name", metavar="[RUN]", default="@-1")
@click.argument("file", metavar="[FILE]", type=click.File("wb", lazy=True), default="-")
@store_option
def export(run_name: str, file: IO[bytes], store: str | None) -> None:
    """Write a run with all its samples to a file."""
    with Store.open(_url(store), create=False) as opened:
        data = opened.export(opened.find(run_name).uid)
    try:
        file.write(data)
        file.flush()
    except OSError as error:
        raise SteelyardError(
            f"{file.name}: {error.strerror}. Name another file."
        ) from error


@click.command(name="import")
@click.argument("files", nargs=-1, required=True, type=click.File("rb"))
@store_option
def import_(files: Sequence[IO[bytes]], store: str | None) -> None:
    """Add exported runs to the store.

    What is already there stays as it is.
    """
    with Store.open(_url(store)) as opened:
        for file in files:
            try:
                loaded = opened.load(file.read())
            except SteelyardError as error:
                raise SteelyardError(f"{file.name}: {error}") from error
            click.echo(
                f"run {loaded.uid[:8]}: {loaded.added} trials added, {loaded.present} "
                "were already here"
            )


def _url(store: str | None) -> str:
    return config.load({"store": store}).store
