"""A case's history as SVG: every run with its interval, levels, and steps by name."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from steelyard import units
from steelyard.report.chart import day, levels, share, smallest
from steelyard.report.scale import Frame, Scale
from steelyard.store.series import History, Point

WIDE: Final = 960
"""Pixels of the picture, as are the others."""

PLOT: Final = 280
"""Height of what is drawn into."""

LEFT: Final = 90
RIGHT: Final = 24
TITLE: Final = 24
LINE: Final = 18
"""Height of a line of labels."""

LETTER: Final = 7.0
"""Width of a letter at most, on average: labels must not run into each other."""

AIR: Final = 0.06
"""Share of the range that is left free above and below."""

SLOWER: Final = "#b3261e"
FASTER: Final = "#1b7a3d"
POINTS: Final = "#3366aa"
LEVELS: Final = "#222222"
GRID: Final = "#dddddd"
BAND: Final = "#e6eef7"


@dataclass(frozen=True, slots=True)
class _Label:
    """A step's name, in one of the lines above the plot."""

    at: float
    """Where the step is; its name may have to stand aside."""
    x: float
    line: int
    text: str
    colour: str


def escaped(text: str) -> str:
    """Return a text as XML has it between tags."""
    return html.escape(text, quote=False)


def svg(history: History) -> str:
    """Return the history as an SVG file; each point shows its run under the pointer."""
    labels = _labels(history)
    above = 1 + max((label.line for label in labels), default=-1)
    frame = _frame(history, TITLE + LINE * above + 10)
    parts = [
        *_band(history, frame),
        *_axes(history, frame),
        *_levels(history, frame),
        *(_mark(p, frame.x(at), frame.y) for at, p in enumerate(history.points)),
        *(_label(label, frame) for label in labels),
    ]
    said = [history.case, history.mode, units.count(len(history.points), "run")]
    title = "  ".join(filter(None, said))
    return picture(title, frame.y.start + 2 * LINE, parts)


def picture(title: str, high: float, parts: Iterable[str], about: str = "") -> str:
    """Return an SVG file under its title; ``about`` is its content in words."""
    said = escaped(title)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {high:g}"',
        'font-family="sans-serif" font-size="12" role="img">',
        f"<title>{said}</title>",
        *([f"<desc>{escaped(about)}</desc>"] if about else []),
        f'<rect width="{WIDE}" height="{high:g}" fill="white"/>',
        f'<text x="{LEFT}" y="16" font-size="14">{said}</text>',
    )
    return "\n".join([*head, *parts, "</svg>\n"])


def words(x: float, y: float, said: str, anchor: str = "start", more: str = "") -> str:
    """Return a text; ``anchor`` may be ``middle`` or ``end``."""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}'
    return f"<text {place}>{escaped(said)}</text>"


def rules(y: Scale) -> Iterator[str]:
    """Yield lines at round times."""
    for time in y.ticks():
        yield f'<path d="M{LEFT} {y(time):.1f}H{WIDE - RIGHT}" stroke="{GRID}"/>'
        yield words(LEFT - 8, y(time) + 4, units.duration(time), "end")


def _frame(history: History, top: float) -> Frame:
    """Return the frame of all points; an interval may leave it, far out as some are."""
    values = [point.estimate.value for point in history.points]
    low, high = min(values), max(values)
    air = AIR * (high - low) or AIR * high
    lowest = min(p.estimate.low for p in history.points)
    highest = max(p.estimate.high for p in history.points)
    reach = high - low or air
    low, high = max(lowest, low - reach), min(highest, high + reach)
    return Frame(
        Scale(-0.5, len(values) - 0.5, LEFT, WIDE - RIGHT),
        Scale(low - air, high + air, top + PLOT, top),
    )


def _axes(history: History, frame: Frame) -> Iterator[str]:
    """Yield lines at round times, and the first and the last run below."""
    yield from rules(frame.y)
    ends = [(history.points[0], LEFT, "start")]
    if len(history.points) > 1:
        ends.append((history.points[-1], WIDE - RIGHT, "end"))
    for point, x, anchor in ends:
        yield words(x, frame.y.start + LINE, f"{point.name}, {day(point)}", anchor)


def _band(history: History, frame: Frame) -> Iterator[str]:
    """Yield what the latest level may change by without anybody's noticing."""
    if not math.isfinite(history.smallest):
        return
    first, stop, level = levels(history)[-1]
    top, bottom = (frame.y(level * (1 + way * history.smallest)) for way in (1, -1))
    x = frame.x(first - 0.5)
    yield (
        f'<rect x="{x:.1f}" y="{top:.1f}" width="{frame.x(stop - 0.5) - x:.1f}" '
        f'height="{bottom - top:.1f}" fill="{BAND}"><title>{smallest(history)}</title>'
        "</rect>"
    )


def _levels(history: History, frame: Frame) -> Iterator[str]:
    for first, stop, level in levels(history):
        yield (
            f'<path d="M{frame.x(first - 0.5):.1f} {frame.y(level):.1f}'
            f'H{frame.x(stop - 0.5):.1f}" stroke="{LEVELS}" stroke-width="2"/>'
        )


def _labels(history: History) -> list[_Label]:
    """Name each step above its place, in the first line that has room for it."""
    ends: list[float] = []
    found = []
    for step in history.steps:
        text = f"{history.points[step.at].name} {share(step)}"
        half = LETTER * len(text) / 2
        at = LEFT + (WIDE - LEFT - RIGHT) * step.at / len(history.points)
        x = min(max(at, half), WIDE - half)
        line = next((n for n, end in enumerate(ends) if end < x - half), len(ends))
        ends[line : line + 1] = [x + half]
        colour = SLOWER if step.change > 0 else FASTER
        found.append(_Label(at, x, line, text, colour))
    return found


def _label(label: _Label, frame: Frame) -> str:
    y = TITLE + LINE * (label.line + 0.8)
    bottom = frame.y.start
    return (
        f'<g><text x="{label.x:.1f}" y="{y:.1f}" text-anchor="middle" '
        f'fill="{label.colour}">{escaped(label.text)}</text>'
        f'<path d="M{label.at:.1f} {y + 4:.1f}V{bottom:.1f}" stroke="{label.colour}" '
        'stroke-dasharray="3 3" opacity="0.6"/></g>'
    )


def _mark(point: Point, x: float, y: Callable[[float], float]) -> str:
    estimate = point.estimate
    said = f"{point.name}, {day(point)}, {units.duration(estimate.value)}"
    return (
        f'<g stroke="{POINTS}"><title>{escaped(said)}</title>'
        f'<path d="M{x:.1f} {y(estimate.low):.1f}V{y(estimate.high):.1f}"/>'
        f'<circle cx="{x:.1f}" cy="{y(estimate.value):.1f}" r="3" fill="{POINTS}"/></g>'
    )
