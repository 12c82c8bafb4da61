"""A case's history as a picture: in the terminal, and as SVG."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final
from xml.sax.saxutils import escape

from steelyard import units
from steelyard.change_points import Step
from steelyard.history import History, Point
from steelyard.machine import UNKNOWN

HEIGHT: Final = 12
"""Lines of a picture in the terminal."""

WIDE: Final = 960
HIGH: Final = 360
EDGE: Final = 72
"""Pixels of the SVG and of the frame around its points."""

SVG: Final = (
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {HIGH}" '
    'font-family="sans-serif" font-size="12">'
)
POINT: Final = "•"
LEVEL: Final = "─"


def lines(history: History, width: int) -> Iterator[str]:
    """Yield the history as text: what it is, the picture, its steps."""
    points = history.points
    yield f"{history.case}  {history.mode}  {_count(len(points), 'run')}"
    if history.left_out:
        yield f"left out: {_count(history.left_out, 'run')} of another machine, method or clock"
    yield from _picture(history, max(width - 12, 10))
    for step in history.steps:
        yield said(history, step)
    if not history.steps:
        yield "no step that the noise of these runs could not be"


def said(history: History, step: Step) -> str:
    """Say one step in a line: when, between which commits, by how much."""
    last, first = history.points[step.at - 1].run, history.points[step.at].run
    word = "slower" if step.change > 0 else "faster"
    return (
        f"{abs(step.change):.1%} {word} (± {2 * step.noise:.1%}) from "
        f"{units.duration(step.before)} to {units.duration(step.after)} between "
        f"{named(last.commit, last.short)} and {named(first.commit, first.short)}, "
        f"{first.started[:16].replace('T', ' ')}"
    )


def named(commit: str, run: str) -> str:
    """Name a run by its commit, where it has one."""
    return f"run {run}" if commit == UNKNOWN else commit[:10]


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _levels(history: History) -> list[tuple[int, int, float]]:
    """Return where each level begins and ends, and its time."""
    values = [point.estimate.value for point in history.points]
    cuts = [0, *(step.at for step in history.steps), len(values)]
    return [
        (a, b, sorted(values[a:b])[(b - a) // 2]) for a, b in pairwise(cuts) if b > a
    ]


def _picture(history: History, width: int) -> Iterator[str]:
    """Draw the latest ``width`` points, a column each, over their levels."""
    shown = history.points[-width:]
    skipped = len(history.points) - len(shown)
    values = [point.estimate.value for point in shown]
    low, high = min(values), max(values)
    scale = (high - low) or 1.0

    def row(value: float) -> int:
        return round((high - min(max(value, low), high)) / scale * (HEIGHT - 1))

    grid = [[" "] * len(shown) for _ in range(HEIGHT)]
    for first, stop, level in _levels(history):
        for column in range(max(first - skipped, 0), stop - skipped):
            grid[row(level)][column] = LEVEL
    for column, value in enumerate(values):
        grid[row(value)][column] = POINT
    for place, marks in enumerate(grid):
        value = high - place * scale / (HEIGHT - 1)
        label = units.duration(value) if place in {0, HEIGHT - 1} else ""
        yield f"{label:>10} {''.join(marks).rstrip()}".rstrip()


def svg(history: History) -> str:
    """Return the history as an SVG file; each point tells its run when pointed at."""
    points = history.points
    low = min(p.estimate.low for p in points)
    high = max(p.estimate.high for p in points)
    scale = (high - low) or 1.0

    def x(place: float) -> float:
        return EDGE + (WIDE - 2 * EDGE) * (place + 0.5) / len(points)

    def y(value: float) -> float:
        return EDGE / 2 + (HIGH - EDGE) * (high - value) / scale

    parts = [
        SVG,
        f"<title>{escape(history.case)} {escape(history.mode)}</title>",
        f'<text x="{EDGE}" y="16">{escape(history.case)} {escape(history.mode)}</text>',
    ]
    parts += [
        f'<text x="{EDGE - 6}" y="{y(value) + 4:.1f}" text-anchor="end">'
        f"{units.duration(value)}</text>"
        for value in (low, high)
    ]
    parts += [_mark(point, x(place), y) for place, point in enumerate(points)]
    for first, stop, level in _levels(history):
        parts.append(
            f'<path d="M{x(first - 0.5):.1f} {y(level):.1f}H{x(stop - 0.5):.1f}" '
            'stroke="#c33" stroke-width="2"/>'
        )
    for step in history.steps:
        parts.append(
            f'<text x="{x(step.at):.1f}" y="{HIGH - 8}" text-anchor="middle">'
            f"{named(points[step.at].run.commit, points[step.at].run.short)} "
            f"{step.change:+.1%}</text>"
        )
    return "\n".join([*parts, "</svg>\n"])


def _mark(point: Point, x: float, y: Callable[[float], float]) -> str:
    estimate, run = point.estimate, point.run
    title = f"{named(run.commit, run.short)} {run.started[:16]} " + units.duration(
        estimate.value
    )
    return (
        f'<g stroke="#36c"><title>{escape(title)}</title>'
        f'<path d="M{x:.1f} {y(estimate.low):.1f}V{y(estimate.high):.1f}"/>'
        f'<circle cx="{x:.1f}" cy="{y(estimate.value):.1f}" r="3" fill="#36c"/></g>'
    )
