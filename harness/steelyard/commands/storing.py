"""`steelyard export`, `steelyard import` and `steelyard store`: runs as files, or gone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from steelyard.declare import config
from steelyard.declare.options import store_option
from steelyard.errors import SteelyardError
from steelyard.machine import files
from steelyard.store.store import Store

LARGEST: Final = 1 << 30
"""Bytes of an exported file: a run of 100,000 trials has a quarter of that."""


@click.command()
@click.argument("run_name", metavar="[RUN]", default="@-1")
@click.argument("file", metavar="[FILE]", type=click.Path(path_type=Path), default="-")
@click.option(
    "--with-paths",
    is_flag=True,
    help="Keep absolute paths, and the names of users in URLs.",
)
@store_option
def export(run_name: str, file: Path, *, with_paths: bool, store: str | None) -> None:
    """Write a run with all its samples to a file.

    Of paths only the last part is written, unless `--with-paths` says otherwise.
    """
    with Store.open(_url(store), create=False) as opened:
        data = opened.export(opened.find(run_name).uid, with_paths=with_paths)
    if str(file) == "-":
        with click.open_file("-", "wb") as output:
            output.write(data)
            output.flush()
        return
    try:
        files.replace(file, data)
    except OSError as error:
        raise SteelyardError(f"{file}: {error.strerror}. Name another file.") from error


@click.command(name="import")
@click.argument(
    "paths",
    metavar="FILES...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path),
)
@store_option
def import_(paths: Sequence[Path], store: str | None) -> None:
    """Add exported runs to the store.

    What is already there stays as it is: a run that ended here gets no more trials, and
    none is taken back how it ended.
    """
    with Store.open(_url(store)) as opened:
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


@click.group(name="store")
def store_() -> None:
    """Change what the store keeps."""


@store_.command()
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

    with Store.open(_url(store), create=False) as opened:
        uid = opened.remove(run_name, agree)
    click.echo(f"run {uid[:8]} was removed" if uid else "nothing was removed")


def _url(store: str | None) -> str:
    return config.load({"store": store}).store
