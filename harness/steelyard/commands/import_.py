"""Add runs to the store: exported ones, and results of other tools."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from steelyard.analyse.trial import UNKNOWN, Run
from steelyard.commands import _options as options
from steelyard.errors import SteelyardError
from steelyard.machine import files, writer
from steelyard.store import imports
from steelyard.store.foreign import Source
from steelyard.store.store import Store

LARGEST: Final = 1 << 30
"""Bytes of an exported file: a run of 100,000 trials has a quarter of that."""


@click.command()
@click.argument(
    "paths",
    metavar="FILES...",
    nargs=-1,
    required=True,
    type=options.PATH,
)
@options.option(
    "--commit",
    "Which commit was measured, for files that do not say so.",
    metavar="HASH",
    default=UNKNOWN,
)
@options.store_option
def command(paths: Sequence[Path], commit: str, store: str | None) -> None:
    """Add runs to the store: exported ones, and results of other tools.

    FILES are exported runs, pages of `report`, or JSON of asv, google-benchmark, hyperfine,
    nvbench and pytest-benchmark, which is recognised by its content; of a folder every such
    file. Rows of other tools have the doubt `imported`.

    What is already there stays as it is: a run that ended here gets no more trials, and
    none is taken back how it ended.
    """
    if commit != UNKNOWN and not re.fullmatch("[0-9a-f]{7,40}", commit):
        raise SteelyardError(
            f"--commit is {commit!a}, expected the 7 to 40 hexadecimal digits of a commit, "
            "as `git rev-parse HEAD` prints them."
        )
    with Store.open(options.url(store)) as opened:
        for path in paths:
            found = 0
            for place in _files(path):
                try:
                    found += _import(opened, place, commit, alone=place is path)
                except SteelyardError as error:
                    if place is path:
                        raise
                    raise SteelyardError(
                        f"{error} Runs of {path} that are stored: {found}; files "
                        "after this one were not looked at."
                    ) from error
            if not found:
                raise SteelyardError(
                    f"{path} has no results that are known. Name a folder of "
                    f"{imports.known()}."
                )


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from sorted(path.rglob("*.json"))
    else:
        yield path


def _import(opened: Store, path: Path, commit: str, *, alone: bool) -> int:
    """Store the runs of a file, of which there are none in some files of a folder."""
    try:
        content, when = _content(path)
        place = None if str(path) == "-" else path
        source = Source(imports.digest(content), place, when, commit)
        made = imports.read(content, source, others=not alone)
        for run, trials in made:
            loaded = opened.keep(run, trials)
            tool = run.settings.get("imported")
            click.echo(
                f"run {loaded.uid[:8]}{f' of {tool}' if tool else ''}: {loaded.added} "
                f"trials added, {loaded.present} were already here"
            )
            _require_commit(opened, run)
    except SteelyardError as error:
        raise SteelyardError(f"{path}: {error}") from error
    return len(made)


def _require_commit(opened: Store, run: Run) -> None:
    """Refuse a run that is here with another commit than it was imported with now."""
    here = opened.run(run.uid).commit
    if run.commit not in {here, UNKNOWN}:
        raise SteelyardError(
            f"run {run.short} stays of commit {here}. Remove it with `steelyard store "
            f"remove {run.short}` and import it again."
        )


def _content(path: Path) -> tuple[bytes, str]:
    """Return what a file holds, and when it was written."""
    if str(path) == "-":
        with click.open_file("-", "rb") as given:
            found: bytes = given.read(LARGEST)
        return found, writer.now()
    try:
        content = files.read(path, limit=LARGEST)
        changed = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except OSError as error:
        raise SteelyardError(
            f"{error.strerror}. Name an exported run, or JSON of {imports.known()}."
        ) from error
    return content, changed.isoformat(timespec="microseconds")
