"""Write a run with all its samples to a file."""

from __future__ import annotations

from pathlib import Path

import click

from steelyard.commands import _options as options
from steelyard.machine import files


@click.command()
@click.argument("run_name", metavar="[RUN]", default="@-1")
@click.argument("file", metavar="[FILE]", type=options.PATH, default="-")
@options.option(
    "--with-paths", "Keep absolute paths, and the names of users in URLs.", is_flag=True
)
@options.store_option
def command(run_name: str, file: Path, *, with_paths: bool, store: str | None) -> None:
    """Write a run with all its samples to a file.

    Of paths only the last part is written, unless `--with-paths` says otherwise.
    """
    with options.opened(store) as opened:
        data = opened.export(opened.find(run_name).uid, with_paths=with_paths)
    if str(file) == "-":
        with click.open_file("-", "wb") as output:
            output.write(data)
            output.flush()
        return
    files.save(file, data)
