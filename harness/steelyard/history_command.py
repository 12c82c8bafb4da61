"""`steelyard history`: a case over the stored runs."""

from __future__ import annotations

from pathlib import Path

import click

from steelyard import config, history
from steelyard.cli_options import store_option
from steelyard.errors import SteelyardError
from steelyard.report import chart, tables
from steelyard.store import Store


@click.command(name="history")
@click.argument("case_name", metavar="CASE")
@click.option(
    "-m", "--mode", metavar="MODE", help="Default: the first it was weighed in."
)
@click.option("--tag", help="Only runs that have this tag.")
@click.option("--svg", type=click.Path(dir_okay=False), help="Draw to this file too.")
@store_option
def command(
    *,
    case_name: str,
    mode: str | None,
    tag: str | None,
    svg: str | None,
    store: str | None,
) -> None:
    """Draw a case over the stored runs, and say where it stepped."""
    url = config.load({"store": store}).store
    with Store.open(url, create=False) as opened:
        found = history.history(opened, case_name, mode, tag)
    for line in chart.lines(found, tables.console().width):
        click.echo(line)
    if svg is not None:
        _write(svg, chart.svg(found))


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise SteelyardError(f"{path}: {error.strerror}. Name another file.") from error
