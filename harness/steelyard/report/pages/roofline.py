"""Kernels under what their GPU was measured to do at most: a roofline. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from steelyard import units
from steelyard.analyse.rows import Row
from steelyard.report import scale
from steelyard.report.drawing import LEFT, LINE, RIGHT, WIDE
from steelyard.report.pages import svg
from steelyard.report.pages.html import Markup, tag

TOP: Final = 24
HIGH: Final = 320


def figure(made: Sequence[Row], table: Mapping[str, Any]) -> Iterator[Markup]:
    """Yield the rows that move and compute, below the roofs of a table of peaks.

    The slope is the best large copy, each flat roof what one kind of unit does.
    """
    rows = [(row, *place) for row in made if (place := _place(row)) is not None]
    copies = dict(_copies(table))
    if not rows or not copies:
        return
    bandwidth = min(copies.values())
    roofs = {
        f"{dtype} {unit}": float(rate)
        for dtype, found in table.get("rates", {}).items()
        for unit, rate in found.items()
    }
    tops = [*roofs.values(), *(done for _, _, done in rows)]
    across = [x for _, x, _ in rows] + [roof / bandwidth for roof in roofs.values()]
    x = scale.of(across, LEFT, WIDE - RIGHT, log=True)
    least = min(*(done for _, _, done in rows), x.low * bandwidth)
    y = scale.Scale(least / 1.2, max(tops) * 1.5, HIGH, TOP, log=True)
    parts = [*svg.axis(x, TOP, HIGH, lambda v: f"{v:g}"), *_left(y)]
    parts += _roofs(x, y, copies, roofs)
    names = []
    for at, (name, group) in enumerate(groupby(rows, key=lambda one: one[0].benchmark)):
        points = [_point(row, x(i), y(done)) for row, i, done in group]
        parts.append(tag("g", *points, class_=f"k{at % svg.COLOURS}"))
        names.append(tag("li", tag("b", "● ", class_=f"t{at % svg.COLOURS}"), name))
    said = f"{len(rows)} rows; a copy reaches {units.rate(bandwidth, 'B')}"
    title = "operations per second over operations per byte"
    high = HIGH + 2 * LINE
    parts.append(svg.words(WIDE - RIGHT, high - 2, "operations per byte", "end"))
    picture = svg.picture(WIDE, high, title, said, *parts)
    yield tag("figure", picture, tag("figcaption", tag("ul", *names, class_="keys")))


def _place(row: Row) -> tuple[float, float] | None:
    """Return operations per byte and per second of a kernel on a GPU."""
    done, moved = row.rate("operations"), row.fact("bytes")
    if not (done and moved and row.peak):
        return None
    return row.fact("operations") / moved, done


def _copies(table: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the bytes per second of the best copy in each state of the cache."""
    for cache, times in table.get("copy", {}).items():
        if times:
            yield cache, max(int(size) / time for size, time in times.items()) * 1e9


def _left(y: scale.Scale) -> Iterator[Markup]:
    for at in y.ticks():
        yield svg.line(f"M{LEFT} {y(at):.1f}H{WIDE - RIGHT}", "grid")
        yield svg.words(LEFT - 8, y(at) + 4, units.rate(at, "op"), "end")


def _roofs(
    x: scale.Scale,
    y: scale.Scale,
    copies: Mapping[str, float],
    roofs: Mapping[str, float],
) -> Iterator[Markup]:
    for place, (cache, rate) in enumerate(copies.items(), 1):
        top = max(roofs.values(), default=x.high * rate)
        start, end = max(x.low, y.low / rate), min(x.high, top / rate)
        slope = f"M{x(start):.1f} {y(start * rate):.1f}"
        yield svg.line(f"{slope}L{x(end):.1f} {y(end * rate):.1f}", "rim")
        at = end * (start / end) ** (0.3 * place)  # labels keep apart
        said = f"copy {cache} {units.rate(rate, 'B')}"
        yield svg.words(x(at) - 6, y(at * rate) - 4, said, "end", "name")
    bandwidth = max(copies.values())
    for name, rate in roofs.items():
        begin = min(max(rate / bandwidth, x.low), x.high)
        yield svg.line(f"M{x(begin):.1f} {y(rate):.1f}H{x(x.high):.1f}", "rim")
        said = f"{name} {units.rate(rate, 'op')}"
        yield svg.words(x(x.high), y(rate) - 5, said, "end", "name")


def _point(row: Row, x: float, y: float) -> Markup:
    done = units.rate(row.rate("operations") or 0.0, "op")
    said = f"{row.case} {row.mode}: {done}"
    circle = tag("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=4)
    return tag("g", tag("title", said), circle)
