"""Kinds of machines as a page: what the latest runs of each say, side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from steelyard import units
from steelyard.analyse import kinds
from steelyard.report import chart, scale, text
from steelyard.report.grid import Column, Sheet
from steelyard.report.pages import svg
from steelyard.report.pages.html import Markup, Section, page, sheet, tag
from steelyard.store.series import History, Point

WIDE: Final = 200
LINE: Final = 12

Latest = Mapping[str, Point]
"""The latest point of a case in a mode, by the kind of its machine."""


def dumps(found: Mapping[str, Sequence[History]], about: Sequence[str]) -> str:
    """Return the page of histories by the kind of their machines."""
    names = {kind: f"kind {at + 1}" for at, kind in enumerate(found)}
    rows: dict[tuple[str, str], dict[str, Point]] = {}
    for kind, each in found.items():
        for one in each:
            if one.points:
                rows.setdefault((one.case, one.mode), {})[kind] = one.points[-1]
    shared = [key for key, latest in rows.items() if len(latest) > 1]
    said = f"{len(shared)} of {len(rows)} rows were measured on more than one kind."
    warning = "Machines differ in more than a name: a ratio between two is no verdict."
    sections = [
        Section("Machines", [tag("p", f"{said} {warning}"), _kinds(found, names)]),
        Section("Cases", [_cases(rows, names)] if rows else []),
    ]
    return page("Machines", about, sections, "machines")


def _kinds(found: Mapping[str, Sequence[History]], names: Mapping[str, str]) -> Markup:
    facts = {kind: kinds.facts_of(kind) for kind in found}
    asked = dict.fromkeys(name for each in facts.values() for name in each)

    def fact(name: str) -> Callable[[str], str]:
        return lambda kind: facts[kind].get(name, units.NOTHING)

    def last(kind: str) -> str:
        every = [point for one in found[kind] for point in one.points]
        latest = max(every, key=lambda point: point.started, default=None)
        return f"{latest.name}, {chart.day(latest)}" if latest else units.NOTHING

    at = {kind: place for place, kind in enumerate(found)}
    shown: Sequence[Column[str]] = (
        Column("name", lambda kind: _named(names[kind], at[kind]), right=False),
        *(Column(name, fact(name), right=False) for name in asked),
        Column("of them", lambda kind: str(max(h.machines for h in found[kind]))),
        Column("rows", lambda kind: str(sum(bool(h.points) for h in found[kind]))),
        Column("latest (UTC)", last, right=False),
    )
    return sheet(Sheet("what was measured on", shown, list(found)))


def _named(name: str, at: int) -> Markup:
    return tag("span", name, class_=f"t{at % svg.COLOURS}")


def _cases(rows: Mapping[tuple[str, str], Latest], names: Mapping[str, str]) -> Markup:
    def time(kind: str) -> Callable[[tuple[str, str]], str]:
        def cell(key: tuple[str, str]) -> str:
            point = rows[key].get(kind)
            if point is None:
                return units.NOTHING
            one = point.estimate
            return f"{units.duration(one.value)} {text.margin(one)}"

        return cell

    shown: list[Column[tuple[str, str]]] = [
        Column("case", lambda key: key[0], right=False),
        Column("mode", lambda key: key[1], right=False),
        *(Column(name, time(kind)) for kind, name in names.items()),
    ]
    if len(names) > 1:
        drawn = _drawn(rows, list(names))
        shown.append(Column("beside each other", drawn, right=False))
        shown.append(Column("slowest / fastest", lambda key: _spread(rows[key])))
    return sheet(Sheet("the latest of each kind, with 95 %", shown, list(rows)))


def _drawn(
    rows: Mapping[tuple[str, str], Latest], order: Sequence[str]
) -> Callable[[tuple[str, str]], Markup | str]:
    """Return what draws a row's times, each kind in its colour."""

    def picture(key: tuple[str, str]) -> Markup | str:
        known = {kind: point.estimate for kind, point in rows[key].items()}
        values = [one.value for one in known.values()]
        if len(values) < 2 or min(values) <= 0:
            return units.NOTHING
        x = scale.of(values, 6, WIDE - 6, log=True)
        colours = {kind: f"k{at % svg.COLOURS}" for at, kind in enumerate(order)}
        marks = [
            svg.interval(x, LINE * (at + 0.5), one, colours[kind])
            for at, (kind, one) in enumerate(known.items())
        ]
        said = ", ".join(units.duration(value) for value in values)
        return svg.picture(WIDE, LINE * len(known), said, "", *marks)

    return picture


def _spread(latest: Latest) -> str:
    values = [point.estimate.value for point in latest.values()]
    if len(values) < 2 or min(values) <= 0:
        return units.NOTHING
    return f"{max(values) / min(values):.2f} x"
