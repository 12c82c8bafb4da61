"""Write a run with all its samples to a file."""

from __future__ import annotations

from pathlib import Path

import click

from steelyard.commands._options import store_option
from steelyard.declare import config
from steelyard.machine import files
from steelyard.store.store import Store


@click.command()
@click.argument("run_name", metavar="[RUN]", default="@-1")
@click.argument("file", metavar="[FILE]", type=click.Path(path_type=Path), default="-")
@click.option(
    "--with-paths",
    is_flag=True,
    help="Keep absolute paths, and the names of users in URLs.",
)
@store_option
def command(run_name: str, file: Path, *, with_paths: bool, store: str | None) -> None:
    """Write a run with all its samples to a file.

    Of paths only the last part is written, unless `--with-paths` says otherwise.
    """
    with Store.open(config.load({"store": store}).store, create=False) as opened:
        data = opened.export(opened.find(run_name).uid, with_paths=with_paths)
    if str(file) == "-":
        with click.open_file("-", "wb") as output:
            output.write(data)
            output.flush()
        return
    files.save(file, data)
