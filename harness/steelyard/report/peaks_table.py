"""The tables of `peaks`: the best copies by size, and operations per second by dtype."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from steelyard import units
from steelyard.report.grid import sheet_of


def page(table: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield what a GPU was measured to do at most."""
    yield Text(f"{table.get('gpu', '')}, read by {table.get('clock', '')}", "bold")
    yield _copies(table["copy"])
    yield _rates(table["rates"])


def _copies(times: Mapping[str, Mapping[str, float]]) -> RenderableType:
    lines = []
    for size in sorted({int(s) for found in times.values() for s in found}):
        cells = [units.size(size)]
        for found in times.values():
            time = found.get(str(size))
            rate = units.rate(size / time * 1e9, "B") if time else "-"
            cells += [units.duration(time) if time else "-", rate]
        lines.append(tuple(cells))
    titles = [name for cache in times for name in (cache, "")]
    return sheet_of(("copy of", *titles), lines, right=titles)


def _rates(rates: Mapping[str, Mapping[str, float]]) -> RenderableType:
    kinds = [*dict.fromkeys(unit for found in rates.values() for unit in found)]
    lines = [
        (dtype, *(units.rate(found[u], "op") if u in found else "-" for u in kinds))
        for dtype, found in rates.items()
    ]
    return sheet_of(("dtype", *kinds), lines, right=kinds)
