"""Nested times as an icicle: where builds spend theirs, by phase and group. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypedDict

from steelyard import units
from steelyard.analyse.rows import Row
from steelyard.machine.decoding import Malformed, checked
from steelyard.process.stacks import Stacks
from steelyard.report import program_table
from steelyard.report.grid import grid
from steelyard.report.pages import svg
from steelyard.report.pages.html import Markup, Section, page, sheet, tag

WIDE: Final = 960
LINE: Final = 22
LETTER: Final = 6.6
LEAST: Final = 0.7
"""Pixels of what is drawn; less is in its parent's share and in no picture."""

DEEP: Final = 60
"""Levels of a picture of stacks."""

LISTED: Final = 20


@dataclass(slots=True)
class Frame:
    """What took time under one name, and what that time went to."""

    name: str
    time: float = 0.0
    """Nanoseconds, those of all its parts included; or samples, of a whole in these."""
    frames: dict[str, Frame] = field(default_factory=dict)

    def under(self, name: str) -> Frame:
        """Return the frame of this name, made where it is not there."""
        return self.frames.setdefault(name, Frame(name))

    def walk(
        self, path: tuple[str, ...] = ()
    ) -> Iterator[tuple[tuple[str, ...], Frame]]:
        """Yield every frame below it by its path."""
        for frame in self.frames.values():
            yield (*path, frame.name), frame
            yield from frame.walk((*path, frame.name))


@dataclass(frozen=True, slots=True)
class Shown:
    """How times of a picture are written, and how deep it goes."""

    write: Callable[[float], str] = units.duration
    deepest: int = 12


PHASES: Final = Shown()


def of_rows(made: Iterable[Row]) -> Frame:
    """Return the builds of a run: benchmark, case, and the phases that are known."""
    whole = Frame("builds")
    for row in made:
        if row.estimate is None or not row.mode.startswith("build/"):
            continue
        for frame in (whole, family := whole.under(row.benchmark)):
            frame.time += row.estimate.value
        point = row.case.removeprefix(row.benchmark).strip("[]")
        inside = family.under(f"{point} {row.mode}".strip())
        inside.time = row.estimate.value
        phases = {n: t for n, t in row.ledger().items() if t > 0 and n != "untracked"}
        # Parts that are measured apart may be more than the whole.
        shrink = min(1.0, inside.time / (sum(phases.values()) or 1.0))
        for name, time in phases.items():
            inside.under(name).time = time * shrink
    return whole


class _Trace(TypedDict):
    traceEvents: list[dict[str, Any]]


def of_trace(document: Any) -> Frame:
    """Return the spans of a trace: Chrome's complete events, added up by their paths.

    Raises:
        Malformed: it is no trace.
    """
    events = checked(document, _Trace)["traceEvents"]
    names: dict[tuple[str, str], str] = {}
    tracks: dict[tuple[str, str], list[tuple[float, float, str]]] = defaultdict(list)
    for event in events:
        track = str(event.get("pid")), str(event.get("tid"))
        said: Any = event.get("args")
        begin: Any = event.get("ts")
        length: Any = event.get("dur")
        if event.get("ph") == "M" and isinstance(said, Mapping):
            names[track] = str(said.get("name"))
        elif event.get("ph") == "X" and _is_time(begin) and _is_time(length):
            tracks[track].append((1e3 * begin, 1e3 * length, str(event.get("name"))))
    if not tracks:
        raise Malformed("it has no spans")
    whole = Frame("all threads")
    for track, spans in tracks.items():
        thread = whole.under(names.get(track, "thread"))
        before = thread.time
        _nest(thread, sorted(spans, key=lambda one: (one[0], -one[1])))
        whole.time += thread.time - before
    return whole


def of_stacks(found: Stacks) -> Frame:
    """Return sampled stacks, each function within the one that called it."""
    whole = Frame("all stacks", found.total)
    for stack, weight in found.weights.items():
        frame = whole
        for name in stack:
            frame = frame.under(name)
            frame.time += weight
    return whole


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and 0 <= value < 1e15


def _nest(thread: Frame, spans: Sequence[tuple[float, float, str]]) -> None:
    """Add spans to a thread, each within the latest that has not ended."""
    open_: list[tuple[float, Frame]] = []
    for begin, length, name in spans:
        while open_ and begin >= open_[-1][0]:
            open_.pop()
        above = open_[-1][1] if open_ else thread
        frame = above.under(name)
        frame.time += length
        if not open_:
            thread.time += length
        open_.append((begin + length, frame))


def figure(whole: Frame, how: Shown = PHASES) -> Iterator[Markup]:
    """Yield the picture, and the longest parts as a table; nothing of no time."""
    if not whole.time > 0:
        return
    colours: dict[str, int] = {}
    drawn = list(_bars(whole, 0.0, 0, WIDE / whole.time, colours, how))
    deepest = max(depth for depth, _ in drawn)
    about = f"{len(drawn)} parts, {deepest + 1} levels deep"
    title = f"{whole.name} {how.write(whole.time)}"
    high = LINE * (deepest + 1)
    bars = (bar for _, bar in drawn)
    yield tag("figure", svg.picture(WIDE, high, title, about, *bars))
    longest = sorted(whole.walk(), key=lambda one: -one[1].time)[:LISTED]
    lines = (
        (" / ".join(path), how.write(frame.time), f"{_percent(frame, whole)} %")
        for path, frame in longest
    )
    yield sheet(grid("longest parts", ("part",), ("time", "share"), lines))


def _percent(frame: Frame, whole: Frame) -> str:
    return f"{100 * frame.time / whole.time:.1f}"


def _bars(  # noqa: PLR0917 # where a bar lies, then what all of them share
    frame: Frame,
    x: float,
    depth: int,
    scale: float,
    colours: dict[str, int],
    how: Shown,
) -> Iterator[tuple[int, Markup]]:
    wide = frame.time * scale
    if wide < LEAST or depth >= how.deepest:
        return
    colour = colours.setdefault(frame.name, len(colours) % svg.COLOURS)
    y = LINE * depth
    place = {"x": f"{x:.1f}", "y": y, "width": f"{wide:.1f}", "height": LINE - 1}
    said = f"{frame.name} {how.write(frame.time)}"
    inside = [tag("title", said), tag("rect", **place, class_=f"p f{colour}")]
    letters = int((wide - 8) / LETTER)
    if letters > 3:
        short = said if len(said) <= letters else f"{frame.name[: letters - 1]}…"
        inside.append(svg.words(x + 4, y + LINE - 7, short, class_="name"))
    yield depth, tag("g", *inside)
    for child in frame.frames.values():
        yield from _bars(child, x, depth + 1, scale, colours, how)
        x += child.time * scale


def dumps(document: Any, name: str) -> str:
    """Return the page of a trace.

    Raises:
        Malformed: it is none.
    """
    return _page("trace", name, figure(of_trace(document)))


def dumps_stacks(found: Stacks, name: str) -> str:
    """Return the page of sampled stacks."""
    how = Shown(units.duration if found.timed else program_table.samples, DEEP)
    return _page("stacks", name, figure(of_stacks(found), how))


def _page(of: str, name: str, parts: Iterable[Markup]) -> str:
    return page(f"{of.title()} {name}", [], [Section("Time", list(parts))], of)
