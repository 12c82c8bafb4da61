"""Times over an axis of numbers as SVG: a line a row, and where one overtakes another."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any, Final

from steelyard import units
from steelyard.analyse.cliffs import Cliff
from steelyard.analyse.rows import Row
from steelyard.analyse.stats import Estimate
from steelyard.declare.axes import text_of
from steelyard.errors import SteelyardError
from steelyard.machine import files
from steelyard.report.drawing import (
    LEFT,
    LETTER,
    LINE,
    PLOT,
    TITLE,
    WIDE,
    escaped,
    picture,
    rules,
    words,
)
from steelyard.report.scale import Frame, Scale

COLOURS: Final = (
    *("#3366aa", "#b3261e", "#1b7a3d", "#8a5a00"),
    *("#6a3d9a", "#00838f", "#555555", "#c2185b"),
)
"""One for each point of the other axes; then they begin again."""

DASHES: Final = ("none", "7 4", "2 3", "9 3 2 3")
"""One for each benchmark and mode, in the same way."""

INSIDE: Final = WIDE - LEFT - 24
TOP: Final = TITLE + 10
NAMED: Final = 12
"""Values of the axis that are named below, at most."""


@dataclass(frozen=True, slots=True)
class Curve:
    """The times of one benchmark in one mode over an axis."""

    what: str
    """Benchmark and mode."""
    point: str
    """The other axes, as in case ids: those whose value some other curve has not."""
    times: tuple[tuple[float, Estimate], ...]
    """Value of the axis and nanoseconds there, by value."""
    cliffs: tuple[Cliff, ...] = ()
    """Of these, the values that are slower than the others predict."""

    @property
    def name(self) -> str:
        """Benchmark, mode and axes."""
        return f"{self.what} {self.point}".rstrip()


def require(points: Sequence[Mapping[str, Any]], across: str | None, path: str) -> None:
    """Refuse an axis of words, zero, which has no logarithm, and a folder not there.

    Raises:
        SteelyardError: the sentence has the axes that can be drawn.
    """
    names = dict.fromkeys(name for point in points for name in point)
    fine = [n for n in names if all(is_size(p[n]) for p in points if n in p)]
    if across not in fine:
        raise SteelyardError(
            f"--plot draws times over an axis of positive numbers, and --across is "
            f"{across or 'not given'}: give --across one of "
            f"{', '.join(fine) or 'them, in a suite that has one'}."
        )
    files.require_writable(path, "--plot")


def is_size(value: Any) -> bool:
    """Say whether a value of an axis has a logarithm."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def curves(
    made: Sequence[Row],
    across: str,
    find: Callable[[Sequence[Row]], Sequence[Cliff]] = lambda _: (),
) -> list[Curve]:
    """Return the curves of rows that were measured and have the axis.

    ``find`` returns the cliffs of the rows of one curve.
    """
    rows = [row for row in made if row.estimate and across in row.axes]
    names = dict.fromkeys(n for row in rows for n in row.axes if n != across)
    axes = [n for n in names if len({str(row.axes.get(n)) for row in rows}) > 1]
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        inside = ",".join(f"{n}={text_of(row.axes[n])}" for n in axes if n in row.axes)
        found.setdefault((f"{row.benchmark} {row.mode}", inside), []).append(row)
    return [
        Curve(*key, _times(group, across), tuple(find(group)))
        for key, group in found.items()
    ]


def _times(group: Sequence[Row], across: str) -> tuple[tuple[float, Estimate], ...]:
    times = [(float(r.axes[across]), r.estimate) for r in group if r.estimate]
    return tuple(sorted(times, key=lambda one: one[0]))


def crossovers(first: Curve, second: Curve) -> list[float]:
    """Return crossover points, interpolated log-log.

    A second that is faster from the start overtakes at the first value that both have.
    Where both are equal nobody has crossovers yet.
    """
    mine, others = dict(first.times), dict(second.times)
    gaps = [
        (at, math.log(others[at].value / mine[at].value))
        for at in sorted(mine.keys() & others.keys())
        if others[at].value != mine[at].value
    ]
    found = [at for at, gap in gaps[:1] if gap < 0]
    for (low, before), (high, after) in pairwise(gaps):
        if before > 0 > after:
            share = before / (before - after)
            found.append(low * (high / low) ** share)
    return found


def overtakings(found: Sequence[Curve], across: str) -> Iterator[str]:
    """Yield a sentence for each pair that differs in benchmark or mode alone."""
    for first, second in combinations(found, 2):
        if first.point != second.point:
            continue
        for slower, faster in ((first, second), (second, first)):
            for at in crossovers(slower, faster):
                yield (
                    f"{faster.name} is faster than {slower.what} from {across} = "
                    f"{at:.3g} on"
                )


def cliffs(found: Sequence[Curve], across: str) -> Iterator[str]:
    """Yield a sentence for each value that is slower than the others predict."""
    for curve in found:
        for one in curve.cliffs:
            yield (
                f"cliff: {curve.name} takes {units.duration(one.time)} at {across} = "
                f"{one.at:g}, {units.figures(one.slower, 2)} times what the other sizes "
                "predict"
            )


def svg(found: Sequence[Curve], across: str) -> str:
    """Return the picture; each point shows its time under the pointer.

    Colours are the other axes' points and dashes are benchmarks, so that lines of one
    colour are what is to be compared.
    """
    points = dict.fromkeys(curve.point for curve in found)
    whats = dict.fromkeys(curve.what for curve in found)
    colours = dict(zip(points, itertools.cycle(COLOURS), strict=False))
    dashes = dict(zip(whats, itertools.cycle(DASHES), strict=False))
    frame = _frame(found)
    said = [*cliffs(found, across), *overtakings(found, across)]
    parts = list(_axes(found, frame))
    below = TOP + PLOT + 3 * LINE
    for number, curve in enumerate(found):
        style = (
            f'stroke="{colours[curve.point]}" stroke-dasharray="{dashes[curve.what]}"'
        )
        parts += [
            f'<g fill="none" stroke-width="2" {style}>',
            *_line(curve, frame),
            f'<path d="M{LEFT} {below + LINE * number - 4}h44"/>',
            "</g>",
            words(LEFT + 54, below + LINE * number, curve.name),
        ]
    parts += _names(found, frame)
    below += LINE * len(found)
    parts += [words(LEFT, below + LINE * n, line) for n, line in enumerate(said)]
    high = TOP + PLOT + LINE * (4 + len(found) + len(said))
    about = "; ".join([*(one.name for one in found), *said])
    return picture(f"time over {across}", high, parts, about)


def _frame(found: Sequence[Curve]) -> Frame:
    places = [at for curve in found for at, _ in curve.times]
    times = [one.value for curve in found for _, one in curve.times]
    left, right = min(places), max(places)
    low, high = min(times) / 1.3, max(times) * 1.3
    return Frame(
        Scale(left, right if right > left else 2 * left, LEFT, LEFT + INSIDE, log=True),
        Scale(low, high, TOP + PLOT, TOP, log=True),
    )


def _line(curve: Curve, frame: Frame) -> Iterator[str]:
    """Yield the line, and a mark with its interval at each time."""
    where = [(frame.x(at), frame.y(one.value)) for at, one in curve.times]
    yield f'<path d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in where)}"/>'
    steep = {one.at for one in curve.cliffs}
    ends = [
        f"V{frame.y(one.low):.1f}V{frame.y(one.high):.1f}" for _, one in curve.times
    ]
    bars = "".join(
        f"M{x:.1f} {y:.1f}{e}" for (x, y), e in zip(where, ends, strict=True)
    )
    yield f'<path d="{bars}" stroke-dasharray="none"/>'
    for (x, y), (at, one) in zip(where, curve.times, strict=True):
        said = f"{at:g}: {units.duration(one.value)}"
        yield (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="white" '
            f'stroke-dasharray="none"><title>{escaped(said)}</title></circle>'
        )
        if at in steep:
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="8" stroke-dasharray="none"/>'


def _names(found: Sequence[Curve], frame: Frame) -> Iterator[str]:
    """Yield the values at which there are cliffs, each above its highest."""
    highest: dict[float, float] = {}
    for one in (one for curve in found for one in curve.cliffs):
        highest[one.at] = max(one.time, highest.get(one.at, 0.0))
    for at, time in highest.items():
        x, y = frame.x(at), frame.y(time) - 13
        yield words(x, y, f"{at:g}", "middle", ' font-weight="bold"')


def _axes(found: Sequence[Curve], frame: Frame) -> Iterator[str]:
    """Yield lines at round times, and the axis's values below."""
    yield from rules(frame.y)
    places = sorted({at for curve in found for at, _ in curve.times})
    end = -math.inf
    for at in places[:: 1 + (len(places) - 1) // NAMED]:
        if frame.x(at) > end:
            yield words(frame.x(at), TOP + PLOT + LINE, f"{at:g}", "middle")
            end = frame.x(at) + LETTER * (1 + len(f"{at:g}"))


def write(path: str, found: Sequence[Curve], across: str) -> None:
    """Draw curves to a file.

    Raises:
        SteelyardError: there is nothing to draw, or the file cannot be written.
    """
    if not found:
        raise SteelyardError(
            f"--plot {path}: no row was measured over {across}; its errors say why."
        )
    files.save(path, svg(found, across))
