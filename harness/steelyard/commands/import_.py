"""Add exported runs to the store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from steelyard.commands._options import store_option
from steelyard.declare import config
from steelyard.errors import SteelyardError
from steelyard.machine import files
from steelyard.store.store import Store

LARGEST: Final = 1 << 30
"""Bytes of an exported file: a run of 100,000 trials has a quarter of that."""


@click.command()
@click.argument(
    "paths",
    metavar="FILES...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path),
)
@store_option
def command(paths: Sequence[Path], store: str | None) -> None:
    """Add exported runs to the store.

    What is already there stays as it is: a run that ended here gets no more trials, and
    none is taken back how it ended.
    """
    with Store.open(config.load({"store": store}).store) as opened:
        for path in paths:
            try:
                loaded = opened.load(_content(path))
            except SteelyardError as error:
                raise SteelyardError(f"{path}: {error}") from error
            click.echo(
                f"run {loaded.uid[:8]}: {loaded.added} trials added, {loaded.present} "
                "were already here"
            )


def _content(path: Path) -> bytes:
    if str(path) == "-":
        with click.open_file("-", "rb") as given:
            found: bytes = given.read(LARGEST)
        return found
    try:
        return files.read(path, limit=LARGEST)
    except OSError as error:
        raise SteelyardError(f"{error.strerror}. Name an exported run.") from error
