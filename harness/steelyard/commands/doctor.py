"""Report what makes numbers on this machine unreliable."""

from __future__ import annotations

from pathlib import Path

import click

from steelyard.commands import _options as options
from steelyard.machine import doctor, gpu_doctor
from steelyard.report import diagnosis, tables


@click.command()
@options.store_option
def command(store: str | None) -> None:
    """Report what makes numbers on this machine unreliable."""
    url = options.url(store)
    folder = Path.cwd() if "://" in url else Path(url).parent
    found = [*doctor.findings(folder), *gpu_doctor.findings()]
    tables.console().print(diagnosis.page(found))
