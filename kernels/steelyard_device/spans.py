"""Timed spans as plain data, and the rows that they add up to.

    Event* --spans--> Span* --Track--> rows --> Row*

A span's path names it and what it ran inside of. A track is what one thread or
process did; the first one is of the thread that opened `timings`, and only its time
adds up to the wall. Everything else ran beside it and has a row of its own on top.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from steelyard_device.allocations import Memory

NOT_TRACKED: Final = "not tracked"

UNTRACKED_SHARE: Final = 0.01
"""What is not tracked has a row above this share of the wall: less explains nothing."""


class Span(NamedTuple):
    """One timed stretch; a tuple, so that it can be pickled and sent.

    `start` is the clock's (`perf_counter_ns`, which processes of one machine share on
    Linux). If memory was counted, the interpreter grew by `blocks` meanwhile, held at
    most `peak` bytes more than before, and the C library handed out `heap` more.
    """

    path: tuple[str, ...]
    start: int
    nanoseconds: int
    blocks: int = 0
    peak: int = 0
    heap: int = 0


Event: TypeAlias = str | int | tuple[Span, ...]
"""A name and then its start: a span opens. An integer alone: the innermost one ends.
Spans that were timed elsewhere lie inside of the innermost one."""


class Track(NamedTuple):
    """What one thread or process did: its name (none: the first) and its spans."""

    name: str | None
    spans: tuple[Span, ...]

    @property
    def rooted(self) -> tuple[Span, ...]:
        """The spans; of a named track inside of one from the first to the last."""
        if self.name is None or not self.spans:
            return self.spans
        start = min(span.start for span in self.spans)
        end = max(span.start + span.nanoseconds for span in self.spans)
        tops = [span for span in self.spans if len(span.path) == 1]
        whole = Span((), start, end - start, *_memory(tops))
        return tuple(under((self.name,), (whole, *self.spans)))


class Row(NamedTuple):
    """All spans of one path, or what their rows leave unexplained.

    `nanoseconds` is the sum over calls and workers; `wall` the time in which at least
    one of them ran. `beside`: it ran beside the thread whose time makes up the wall.
    """

    path: tuple[str, ...]
    calls: int
    nanoseconds: int
    wall: int
    blocks: int
    peak: int
    heap: int
    beside: bool


def spans(
    events: Sequence[Event], counts: Sequence[Memory], end: int
) -> tuple[Span, ...]:
    """Return the spans of a thread's events, parents first.

    `counts` are the memory at each opening and ending, or empty. A span that is still
    open at `end`, or was closed after it, is cut there, and its memory is not known.
    """
    found: list[Span] = []
    open_: list[_Opened] = []
    path: tuple[str, ...] = ()
    memory = iter(counts)
    stream = iter(events)

    def close(at: int) -> Span:
        span = found[open_[-1].place]
        return span._replace(nanoseconds=max(0, min(at, end) - span.start))

    for event in stream:
        if isinstance(event, tuple):
            found += under(path, event)
            continue
        start = next(stream) if isinstance(event, str) else event
        assert isinstance(start, int)
        if isinstance(event, str) and start > end:
            break
        now = next(memory, Memory())
        if open_:
            open_[-1].reaches(now.peak)
        if isinstance(event, str):
            path = (*path, event)
            open_.append(_Opened(len(found), now))
            found.append(Span(path, start, 0))
        else:
            span, path = close(event), path[:-1]
            last = open_.pop()
            found[last.place] = last.until(now, span)
            if open_:
                open_[-1].reaches(last.top)
    while open_:
        span = close(end)
        found[open_.pop().place] = span
    return tuple(found)


class _Opened:
    """A span that has not ended: its place, the memory before it, the most since."""

    def __init__(self, place: int, before: Memory) -> None:
        self.place, self.before, self.top = place, before, before.held

    def reaches(self, held: int) -> None:
        """Hear how much was held inside of it."""
        self.top = max(self.top, held)

    def until(self, now: Memory, span: Span) -> Span:
        """Return the span with its memory."""
        return span._replace(
            blocks=now.blocks - self.before.blocks,
            peak=self.top - self.before.held,
            heap=now.heap - self.before.heap,
        )


def under(path: tuple[str, ...], inside: Iterable[Span]) -> Iterator[Span]:
    """Place spans inside of a path."""
    return (span._replace(path=path + span.path) for span in inside)


def checked(foreign: Iterable[Iterable[Any]]) -> tuple[Span, ...]:
    """Return spans that came from elsewhere, each inside of one that came too.

    Raises ValueError for a span without the one that it is inside of: it would be in
    no row.
    """
    found = tuple(Span(*fields) for fields in foreign)
    paths = {span.path for span in found} | {()}
    for span in found:
        if not span.path or span.path[:-1] not in paths:
            raise ValueError(
                f"the span {span.path} came without the one that it is inside of. "
                "Give that one too."
            )
    return found


def union(intervals: Iterable[tuple[int, int]]) -> int:
    """Return how long at least one of the intervals (start, end) lasts."""
    total, reached = 0, None
    for start, end in sorted(intervals):
        begin = start if reached is None else max(start, reached)
        total += max(0, end - begin)
        reached = end if reached is None else max(end, reached)
    return total


def rows(tracks: Iterable[Track], wall: int) -> tuple[Row, ...]:
    """Add spans up by path: the longest first at each level, then what is untracked.

    What rows inside of a row leave unexplained is a row `not tracked`, if it is above
    1 % of the wall (nanoseconds); what the first thread leaves is one on top.
    """
    grouped: dict[bool, dict[tuple[str, ...], list[Span]]] = {False: {}, True: {}}
    for track in tracks:
        beside = track.name is not None
        for span in track.rooted:
            grouped[beside].setdefault(span.path, []).append(span)
    own, others = (
        [_row(path, group, beside=beside) for path, group in grouped[beside].items()]
        for beside in (False, True)
    )
    return (*_level((), own, wall, wall), *_level((), others, 0, wall))


def explained(every: Iterable[Row], wall: int) -> float:
    """Return the share of the wall that rows explain which hold no other rows.

    A row that holds others does not count as explained where those leave something.
    """
    own = [row for row in every if row.calls and not row.beside]
    holding = {row.path[:-1] for row in own}
    innermost = sum(row.nanoseconds for row in own if row.path not in holding)
    return innermost / wall if wall else 1.0


def _row(path: tuple[str, ...], group: Sequence[Span], *, beside: bool) -> Row:
    return Row(
        path,
        len(group),
        sum(span.nanoseconds for span in group),
        union((span.start, span.start + span.nanoseconds) for span in group),
        *_memory(group),
        beside,
    )


def _memory(group: Sequence[Span]) -> tuple[int, int, int]:
    """Return the memory of spans together: what is kept adds up, peaks do not."""
    return (
        sum(span.blocks for span in group),
        max((span.peak for span in group), default=0),
        sum(span.heap for span in group),
    )


def _level(
    path: tuple[str, ...], every: Sequence[Row], time: int, wall: int
) -> Iterator[Row]:
    """Yield the rows inside of a path that took `time`, each with those inside it."""
    depth = len(path) + 1
    here = [row for row in every if len(row.path) == depth]
    for row in sorted(here, key=lambda row: -row.nanoseconds):
        inside = [r for r in every if r.path[:depth] == row.path and r is not row]
        yield row
        yield from _level(row.path, inside, row.nanoseconds, wall)
    rest = time - sum(row.nanoseconds for row in here)
    if (here or not path) and rest > UNTRACKED_SHARE * wall:
        beside = bool(here) and here[0].beside
        yield Row((*path, NOT_TRACKED), 0, rest, rest, 0, 0, 0, beside)
