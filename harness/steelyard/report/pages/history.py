"""Cases over runs as a page: where they stepped, and what the next runs would show."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from steelyard import units
from steelyard.report import chart, drawing, scale, text
from steelyard.report.grid import Column, Sheet
from steelyard.report.pages import svg
from steelyard.report.pages.html import Markup, Section, page, sheet, tag
from steelyard.store.series import History, Place, places

WIDE: Final = 180
HIGH: Final = 24

DRAWN: Final = 40
"""Histories that are drawn large, those of the greatest steps."""

FLAT: Final = 0.02
"""Share of its times that a small picture is high at least: noise is no mountain."""


def dumps(found: Sequence[History], about: Sequence[str]) -> str:
    """Return the page of histories; ``about`` says where they are from."""
    good = [one for one in found if one.points]
    stepped = sorted((one for one in good if one.steps), key=_greatest, reverse=True)
    said = next(chart.overview(good, 80, 0), "")
    sections = [
        Section("Overview", [tag("p", said, class_="lead"), *_places(places(good))]),
        Section("Steps", list(_drawings(stepped[:DRAWN]))),
        Section("Cases", [sheet(_sheet(good))] if good else []),
    ]
    return page("History", about, sections, "history")


def _greatest(one: History) -> float:
    return max(abs(math.log(1 + step.change)) for step in one.steps)


def _places(found: Sequence[Place]) -> Iterator[Markup]:
    if not found:
        return
    shown: Sequence[Column[Place]] = (
        Column("commit", lambda one: one.point.name, right=False),
        Column("first run (UTC)", lambda one: chart.day(one.point), right=False),
        Column("slower", lambda one: str(_count(one, slower=True))),
        Column("faster", lambda one: str(_count(one, slower=False))),
        Column("greatest", _first, right=False),
        Column("cause", _everywhere, right=False),
    )
    yield sheet(Sheet("commits at which cases stepped", shown, found))


def _count(place: Place, *, slower: bool) -> int:
    return sum((step.change > 0) == slower for _, step in place.found)


def _first(place: Place) -> str:
    history, step = place.found[0]
    return f"{chart.share(step)}  {history.case} {history.mode}"


def _everywhere(place: Place) -> str:
    return chart.EVERYWHERE.format(place.measured) if place.everywhere else ""


def _drawings(stepped: Sequence[History]) -> Iterator[Markup]:
    for one in stepped:
        lines = [tag("li", chart.said(one, step)) for step in one.steps]
        if math.isfinite(one.smallest):
            lines.append(tag("li", chart.smallest(one)))
        caption = tag("figcaption", tag("ul", *lines))
        yield tag("figure", Markup(drawing.svg(one)), caption)


def _sheet(good: Sequence[History]) -> Sheet[History]:
    shown: Sequence[Column[History]] = (
        Column("case", lambda one: one.case, right=False),
        Column("mode", lambda one: one.mode, right=False),
        Column("runs", lambda one: str(len(one.points))),
        Column("times", _trend, right=False),
        Column("latest", lambda one: units.duration(one.points[-1].estimate.value)),
        Column("95 %", lambda one: text.margin(one.points[-1].estimate)),
        Column("detectable", _detectable),
        Column("steps", lambda one: str(len(one.steps))),
        Column("latest step", _latest, right=False),
    )
    return Sheet("every case, the latest run on the right", shown, good)


def _detectable(one: History) -> str:
    finite = math.isfinite(one.smallest)
    return f"{100 * one.smallest:.1f} %" if finite else units.NOTHING


def _latest(one: History) -> str:
    return chart.share(one.steps[-1]) if one.steps else units.NOTHING


def _trend(one: History) -> Markup:
    """Draw times over runs with their levels, over what may change unnoticed."""
    values = [point.estimate.value for point in one.points]
    low, high = min(values), max(values)
    air = max(FLAT * high - (high - low), 0.0) / 2
    x = scale.Scale(-0.5, len(values) - 0.5, 0, WIDE)
    y = scale.Scale(low - air, high + air, HIGH - 2, 2)
    parts = []
    levels = chart.levels(one)
    if math.isfinite(one.smallest):
        first, _, level = levels[-1]
        top, bottom = (round(y(level * (1 + w * one.smallest))) for w in (1, -1))
        place = {"x": round(x(first - 0.5)), "y": top, "height": bottom - top}
        parts.append(tag("rect", **place, width=WIDE - place["x"], class_="band"))
    line = " ".join(f"{x(at):.0f} {y(value):.0f}" for at, value in enumerate(values))
    parts.append(svg.line(f"M{line}", "trend"))
    if one.steps:
        flat = (f"M{x(a - 0.5):.0f} {y(v):.0f}H{x(b - 0.5):.0f}" for a, b, v in levels)
        parts.append(svg.line("".join(flat), "level"))
    said = f"{units.duration(low)} to {units.duration(high)}"
    return svg.picture(WIDE, HIGH, said, "", *parts)
