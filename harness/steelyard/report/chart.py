"""Histories as text: one case drawn, or the commits at which cases stepped."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import Final

from steelyard import units
from steelyard.analyse.change_points import FRESH, Episode, Step
from steelyard.analyse.fit import FEWEST
from steelyard.analyse.trial import UNKNOWN
from steelyard.store.series import History, Place, Point, places

HEIGHT: Final = 12
"""Lines of a picture."""

MARGIN: Final = 12
"""Columns before a picture, for times."""

WIDE: Final = 68
"""Columns that a picture of few points is drawn wide to; of many it has one each."""

WIDEST: Final = 6
"""Columns of a point at most."""

EXAMPLES: Final = 3
"""Steps of a commit in the list, where few commits are in it."""

FULL: Final = 10
"""Commits that have so many; of more, each has one."""

EVERYWHERE: Final = "of {} rows measured: rather the machine, a compiler or a dependency than the commit"

POINT: Final = "•"
LEVEL: Final = "─"
STEP: Final = "▲"


def lines(history: History, width: int) -> Iterator[str]:
    """Yield one history: what it is, the picture, its steps."""
    points = history.points
    head = [history.case, history.mode, units.count(len(points), "run")]
    yield "  ".join(filter(None, head))
    if history.left_out:
        yield f"left out: {units.count(history.left_out, 'run')} of another machine, method or clock"
    if history.machines > 1:
        yield f"of {history.machines} machines: a step may be from one to another"
    if history.failed:
        yield f"failed in {units.count(history.failed, 'run')}"
    yield from _picture(history, max(width - MARGIN, 24))
    for step in history.steps:
        yield from _wrapped(said(history, step), width)
    for episode in history.episodes:
        yield from _wrapped(_episode(history, episode), width)
    if not history.steps:
        yield _no_step(history)
    if math.isfinite(history.smallest):
        yield smallest(history)


def overview(found: Sequence[History], width: int, limit: int) -> Iterator[str]:
    """Yield the latest commits at which cases stepped, and the greatest steps of each."""
    at = places(found)
    stepped = sum(bool(one.steps) for one in found)
    few = sum(len(one.points) < 2 * FEWEST for one in found)
    where = f", at {units.count(len(at), 'commit')}" if at else ""
    yield f"{stepped} of {units.count(len(found), 'row')} stepped{where}" + (
        f"; fewer than {2 * FEWEST} runs, too few to tell: {few}" if few else ""
    )
    shown = at[:limit]
    for one in shown:
        yield ""
        yield from commit(one, width, EXAMPLES if len(shown) <= FULL else 1)
    if at:
        yield ""
    if len(at) > limit:
        yield f"{units.count(len(at) - limit, 'older commit')} not listed; see --limit."
    if at:
        yield "`steelyard history CASE` draws one."


def commit(place: Place, width: int, limit: int | None = None) -> Iterator[str]:
    """Yield a commit and the greatest of its steps, all of them without ``limit``."""
    slower = sum(step.change > 0 for _, step in place.found)
    faster = len(place.found) - slower
    words = [
        f"{number} {word}"
        for number, word in ((slower, "slower"), (faster, "faster"))
        if number
    ]
    head = f"{day(place.point)}  {place.point.name}  {', '.join(words)}"
    cause = f" {EVERYWHERE.format(place.measured)}" if place.everywhere else ""
    yield from _wrapped(head + cause, width)
    for history, step in place.found[:limit]:
        row = f"{history.case} {history.mode}".rstrip()
        yield from _wrapped(f"  {share(step)}  {row}, {_change(step)}", width)
    more = len(place.found) - len(place.found[:limit])
    if more:
        name = place.point.commit[:10]
        known = f": `steelyard history --commit {name}`" if name != UNKNOWN else ""
        yield f"  and {more} more{known}"


def said(history: History, step: Step) -> str:
    """Say one step in a sentence: by how much, between which commits, when."""
    return (
        f"{share(step)} (± {2 * step.noise:.1%}) {_change(step)} {_when(history, step)}"
    )


def smallest(history: History) -> str:
    """Say which step the next runs would show."""
    return f"the next {FRESH} runs show a step of {history.smallest:.1%} and more"


def share(step: Step) -> str:
    """Say by how much a step changed the time."""
    return f"{abs(step.change):.1%} {'slower' if step.change > 0 else 'faster'}"


def day(point: Point) -> str:
    """Write when a run was, to the minute."""
    return point.started[:16].replace("T", " ")


def levels(history: History) -> list[tuple[int, int, float]]:
    """Return where each level begins and ends, and its time."""
    values = [point.estimate.value for point in history.points]
    cuts = [0, *(step.at for step in history.steps), len(values)]
    return [(a, b, median(values[a:b])) for a, b in pairwise(cuts)]


def _change(step: Step) -> str:
    return f"from {units.duration(step.before)} to {units.duration(step.after)}"


def _when(history: History, step: Step) -> str:
    last, first = history.points[step.at - 1], history.points[step.at]
    since = units.count(len(history.points) - step.at, "run")
    return f"between {last.name} and {first.name}, {day(first)}, {since} ago"


def _episode(history: History, episode: Episode) -> str:
    runs = units.count(episode.stop - episode.first, "run")
    way = "slower" if episode.change > 0 else "faster"
    first = history.points[episode.first]
    return f"episode: {abs(episode.change):.1%} {way} for {runs} from {first.name}, {day(first)}"


def _no_step(history: History) -> str:
    if len(history.points) < 2 * FEWEST:
        return f"fewer than {2 * FEWEST} runs: too few to tell a step from noise"
    return "no step that the noise of these runs could not be"


def _wrapped(text: str, width: int) -> list[str]:
    indent = " " * (len(text) - len(text.lstrip()) + 2)
    return textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False)


def _picture(history: History, width: int) -> Iterator[str]:
    """Draw the latest points over their levels, with the first and last below."""
    each = max(1, min(WIDEST, min(width, WIDE) // len(history.points)))
    shown = history.points[-(width // each) :]
    skipped = len(history.points) - len(shown)
    values = [point.estimate.value for point in shown]
    low, high = min(values), max(values)
    scale = (high - low) or 1.0

    def row(value: float) -> int:
        return round((high - min(max(value, low), high)) / scale * (HEIGHT - 1))

    grid = [[" "] * (each * len(shown)) for _ in range(HEIGHT)]
    for first, stop, level in levels(history):
        for column in range(max(first - skipped, 0) * each, (stop - skipped) * each):
            grid[row(level)][column] = LEVEL
    for place, value in enumerate(values):
        grid[row(value)][place * each + each // 2] = POINT
    labelled = {0, HEIGHT // 2, HEIGHT - 1}
    for place, marks in enumerate(grid):
        value = high - place * scale / (HEIGHT - 1)
        label = units.duration(value) if place in labelled else ""
        yield f"{label:>{MARGIN - 2}} {''.join(marks).rstrip()}".rstrip()
    yield from _axis(history, shown, skipped, each)


def _axis(
    history: History, shown: Sequence[Point], skipped: int, each: int
) -> Iterator[str]:
    """Yield where steps are, and what the first and the last run are."""
    marks = [" "] * (each * len(shown))
    for step in history.steps:
        if step.at >= skipped:
            marks[(step.at - skipped) * each + each // 2] = STEP
    if history.steps:
        yield (" " * (MARGIN - 1) + "".join(marks)).rstrip()
    ends = [f"{point.name}, {day(point)[:10]}" for point in (shown[0], shown[-1])]
    yield " " * (MARGIN - 1) + " to ".join(dict.fromkeys(ends))
