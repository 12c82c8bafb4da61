"""The tables of `peaks`: the best copies by size, and operations per second by dtype."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from steelyard import units


def page(table: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield what a GPU was measured to do at most."""
    yield Text(f"{table.get('gpu', '')}, read by {table.get('clock', '')}", "bold")
    yield _copies(table["copy"])
    yield _rates(table["rates"])


def _copies(times: Mapping[str, Mapping[str, float]]) -> Table:
    made = Table("copy of", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for cache in times:
        made.add_column(cache, justify="right")
        made.add_column("", justify="right")
    for size in sorted({int(s) for found in times.values() for s in found}):
        cells = [units.size(size)]
        for found in times.values():
            time = found.get(str(size))
            rate = units.rate(size / time * 1e9, "B") if time else "-"
            cells += [units.duration(time) if time else "-", rate]
        made.add_row(*cells)
    return made


def _rates(rates: Mapping[str, Mapping[str, float]]) -> Table:
    made = Table("dtype", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    kinds = dict.fromkeys(unit for found in rates.values() for unit in found)
    for unit in kinds:
        made.add_column(unit, justify="right")
    for dtype, found in rates.items():
        each = [units.rate(found[u], "op") if u in found else "-" for u in kinds]
        made.add_row(dtype, *each)
    return made
