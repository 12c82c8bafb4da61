"""How a campaign goes through its sections: each is kept as it is done."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import bars
import click
from bars import Bar
from gpu_rows import Campaign
from rich.console import Console

Sections = Mapping[str, Callable[[Campaign], Iterator[Bar]]]
"""What is weighed under each name."""


def hold(
    campaign: Campaign,
    sections: Sections,
    chosen: Sequence[str],
    out: Path,
    *,
    command: str,
    seconds: float | None = None,
    gpu: Mapping[str, Any] | None = None,
) -> bool:
    """Weigh the chosen sections, or all; print bars, keep them; say if one was missed.

    None begins after so many seconds; one that fails is told and the others go on. What
    ``out`` has of sections not weighed now stays.
    """
    began, missed = perf_counter(), False
    for name in chosen or sections:
        if seconds is not None and perf_counter() - began > seconds:
            click.echo(f"{name} was not begun: {seconds:.0f} s are over", err=True)
            continue
        try:
            found = list(sections[name](campaign))
        except Exception:  # noqa: BLE001 # one section never loses the others
            traceback.print_exc()
            missed = True
            continue
        click.echo(f"{name}: {perf_counter() - began:.0f} s since the start")
        if found:
            Console(width=200).print(bars.table(found))
        missed |= any(bar.met is False for bar in found)
        before = json.loads(out.read_text())["bars"] if out.exists() else {}
        made = bars.document(before, {name: found}, sections, command)
        if gpu is not None:
            made["machine"]["gpu"] = {n: f for n, f in gpu.items() if n != "peaks"}
        if campaign.commit:
            made["machine"]["versions"]["commit"] = campaign.commit
        out.write_text(json.dumps(made, indent=2) + "\n")
    return missed
