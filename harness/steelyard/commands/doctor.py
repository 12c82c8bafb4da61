"""Report what makes numbers on this machine unreliable."""

from __future__ import annotations

from pathlib import Path

import click

from steelyard.commands._options import store_option
from steelyard.declare import config
from steelyard.machine import doctor, gpu_doctor
from steelyard.report import diagnosis, tables


@click.command()
@store_option
def command(store: str | None) -> None:
    """Report what makes numbers on this machine unreliable."""
    url = config.load({"store": store}).store
    folder = Path.cwd() if "://" in url else Path(url).parent
    found = [*doctor.findings(folder), *gpu_doctor.findings()]
    console = tables.console()
    console.print(diagnosis.page(found, console.width))
