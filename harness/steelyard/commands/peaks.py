"""Show what a GPU does at most: copies by size, operations by dtype."""

from __future__ import annotations

import click

from steelyard.commands import _options as options
from steelyard.declare import config
from steelyard.machine import gpu_choice as gpus
from steelyard.machine import lock
from steelyard.measure import gpu_peaks
from steelyard.report import peaks_table, tables


@click.command()
@options.option("--again", "Measure them again.", is_flag=True)
@options.gpu_option
def command(*, again: bool, gpu: str | None) -> None:
    """Show what a GPU does at most: copies by size, operations by dtype.

    They are measured once for each GPU and driver, and kept.
    """
    index = gpus.choose(config.load({"gpu": gpu}).gpu)
    table = gpus.facts(index)["peaks"]
    if again or not table:
        with lock.measuring():
            table = gpu_peaks.in_its_process(index)
    tables.console().print(*peaks_table.page(table), sep="\n")
