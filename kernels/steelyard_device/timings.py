"""Where the time goes: nested spans in anybody's program, off until asked for.

    with timings() as t:
        with span("schedule"):
            with span("candidates"):
                ...
    print(t.table())

A thread records into the timings that it opened last itself; one that opened none
into those that were opened last in the process, on a track of its own. Timings inside
of timings give their spans to the outer ones when they close. A span ends on the
thread that it began on: spans do not follow a generator or a coroutine to where it is
resumed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter_ns
from typing import Final, cast

from steelyard_device import allocations as memory
from steelyard_device.spans import Event, Row, Span, Track, checked, rows, spans, under
from steelyard_device.threads import held_at_fork

COUNTS: Final = 16
"""Counts of memory that are timed for the cost of one: some hundred us."""


class Timings:
    """What was recorded. Reads the same from any thread, at any time.

    `wall` is from opening to closing (while open: to now), in nanoseconds; so is every
    time. `counting` is what one count of memory costs, None if it is not counted.
    """

    def __init__(self, clock: Callable[[], int], *, allocations: bool) -> None:
        self.clock = clock
        self.counting = _cost_of_counting(clock) if allocations else None
        self.guests: dict[threading.Thread, _Log] = {}
        self.merged: list[Track] = []
        self.own = _Log(self)
        self._end: int | None = None
        self.start = clock()

    @property
    def wall(self) -> int:
        """Nanoseconds from opening to closing."""
        return self._until() - self.start

    @property
    def tracks(self) -> tuple[Track, ...]:
        """What each thread and each merged worker did; the first is the opener's."""
        end = self._until()
        guests = list(self.guests.items())
        here = (Track(thread.name, log.spans(end)) for thread, log in guests)
        return (Track(None, self.own.spans(end)), *here, *self.merged)

    def spans(self) -> tuple[Span, ...]:
        """Return all spans as plain data to be merged elsewhere."""
        return tuple(span for track in self.tracks for span in track.rooted)

    def rows(self) -> tuple[Row, ...]:
        """Return the spans added up by path, with what is not tracked."""
        return rows(self.tracks, self.wall)

    @property
    def coverage(self) -> float:
        """The share of the wall that the opener's top-level spans explain."""
        tops = (s.nanoseconds for s in self.tracks[0].spans if len(s.path) == 1)
        return sum(tops) / self.wall if self.wall else 1.0

    def merge(self, other: Iterable[tuple[object, ...]], root: str) -> None:
        """Add the `spans()` of another process or thread, on a track named `root`.

        Tracks of one name share their rows. Raises ValueError for a span without the
        one that it is inside of.
        """
        self.merged.append(Track(root, checked(other)))

    def table(self, *, width: int | None = None) -> str:
        """Return the rows for people; names are shortened to fit `width` columns."""
        from steelyard_device import timings_print  # few programs print: not loaded

        return timings_print.table(
            self.rows(), self.wall, self.coverage, self._counted(), width
        )

    def json(self) -> str:
        """Return the rows as JSON, times in nanoseconds."""
        from steelyard_device import timings_print

        return timings_print.json(self.rows(), self.wall, self.coverage, self.counting)

    def chrome_trace(self) -> str:
        """Return every span as trace events, which ui.perfetto.dev opens."""
        from steelyard_device import timings_print

        return timings_print.chrome_trace(self.tracks, self.start)

    def close(self) -> None:
        """Stop the clock: spans are cut here."""
        self._end = self.clock()

    def _until(self) -> int:
        return self.clock() if self._end is None else self._end

    def _counted(self) -> tuple[int, float] | None:
        if self.counting is None:
            return None
        logs = (self.own, *list(self.guests.values()))
        return sum(len(log.counts) for log in logs), self.counting


class _Log(dict[str, "_Open"]):
    """What one thread records, and its spans by name, each made when first asked for.

    A log that has expired hands its thread on to where it records next.
    """

    __slots__ = ("counts", "events", "home")

    def __init__(self, home: Timings | None) -> None:
        self.home = home
        self.events: list[Event] = []
        self.counts: list[memory.Memory] = []

    def __missing__(self, name: str) -> AbstractContextManager[object, None]:
        with _LOCK:
            if self.home is None:
                return _here()[name] if _OPEN else OFF
            kind = _Open if self.home.counting is None else _Counted
            made = self[name] = kind(self, name, self.home.clock)
            return made

    def expire(self) -> None:
        self.home = None
        self.clear()

    def spans(self, end: int) -> tuple[Span, ...]:
        events = list(self.events)  # first: an event's count is there before it is
        return spans(events, list(self.counts), end)


class _Open:
    """A span of one name in one thread's log: it holds no state, so it nests."""

    __slots__ = ("add", "add_all", "clock", "count", "name")

    def __init__(self, log: _Log, name: str, clock: Callable[[], int]) -> None:
        self.add = log.events.append
        self.add_all = log.events.extend  # at once: others may read, or add, between
        self.count = log.counts.append
        self.name = name
        self.clock = clock

    # CPython 3.11 reads a slot quickly but calls a slot slowly: hence the local names.
    def __enter__(self) -> None:
        add_all, clock = self.add_all, self.clock
        add_all((self.name, clock()))

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        add, clock = self.add, self.clock
        add(clock())


class _Counted(_Open):
    """A span that also counts memory, outside of its own time."""

    __slots__ = ()

    def __enter__(self) -> None:
        self.count(memory.read())
        self.add_all((self.name, self.clock()))

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        now = self.clock()
        self.count(memory.read())
        self.add(now)


class _Off:
    """Does nothing, cheaply: methods in C that take any arguments and return "".

    They spare a third of what two empty methods in Python cost.
    """

    __slots__ = ()
    __enter__ = "".format
    __exit__ = "".format


class _Here(threading.local):
    log: _Log = _Log(None)


OFF: Final = cast("AbstractContextManager[object, None]", _Off())
_HERE: Final = _Here()
_OPEN: Final[list[Timings]] = []
"""All open timings. The process's, because a thread that is started inside of them has
nothing else to find them by: it inherits neither thread-locals nor context."""

_LOCK: Final = threading.RLock()
held_at_fork(_LOCK)
"""Held when timings open and close and a thread meets a name for the first time.
Reentrant: a finalizer may run there and open a span."""


def span(name: str) -> AbstractContextManager[object, None]:
    """Time what runs inside; does nothing while no timings are open."""
    if not _OPEN:
        return OFF
    return _HERE.log[name]


def listening() -> bool:
    """Say whether timings are open: whether it is worth asking others for theirs."""
    return bool(_OPEN)


def record(
    name: str,
    start: int,
    nanoseconds: int,
    inside: Iterable[tuple[object, ...]] = (),
) -> None:
    """Add a span that somebody else timed inside of the current one.

    `start` is the clock's. `inside` are spans in it, with paths from it on. Raises
    ValueError for one of them without the one that it is inside of.
    """
    found = (Span((), start, nanoseconds), *checked(inside))
    with _LOCK:
        if _OPEN:
            _here().events.append(tuple(under((name,), found)))


@contextmanager
def timings(
    *, allocations: bool = False, clock: Callable[[], int] = perf_counter_ns
) -> Iterator[Timings]:
    """Record spans, this thread's and those of threads that have no timings of theirs.

    `allocations` also counts memory around each span, which costs more than the span
    itself (the table says how much) and slows the interpreter down inside of it. The
    record of a span is some blocks itself.
    """
    with memory.traced() if allocations else nullcontext():
        yield from _recorded(clock, allocations=allocations)


def _recorded(clock: Callable[[], int], *, allocations: bool) -> Iterator[Timings]:
    with _LOCK:
        outer = _here() if _OPEN else _Log(None)
        home = outer.home
        recorder = Timings(clock, allocations=allocations)
        _dismiss_guests()
        _OPEN.append(recorder)
        _HERE.log = recorder.own
    try:
        yield recorder
    finally:
        recorder.close()
        with _LOCK:
            _dismiss_guests()
            _OPEN.remove(recorder)
            recorder.own.expire()
            if _HERE.log is recorder.own:
                _HERE.log = outer
            if home in _OPEN:
                _hand_over(recorder, home, outer)


def _hand_over(inner: Timings, outer: Timings, log: _Log) -> None:
    """Give the spans of closed timings to the outer ones, each thread's to its own."""
    own, *others = inner.tracks
    log.events.append(own.spans)
    for thread, track in zip(inner.guests, others, strict=False):
        there = outer.guests.setdefault(thread, _Log(None))
        there.events.append(track.spans)
    outer.merged += inner.merged


def _here() -> _Log:
    """Return where this thread records: its own timings, or those opened last."""
    if _HERE.log.home is None:
        recorder = _OPEN[-1]
        thread = threading.current_thread()
        _HERE.log = recorder.guests.setdefault(thread, _Log(recorder))
        _HERE.log.home = recorder  # it may have expired
    return _HERE.log


def _dismiss_guests() -> None:
    """Send guests to look for where they belong before their next span."""
    for recorder in _OPEN:
        for log in recorder.guests.values():
            log.expire()


def _cost_of_counting(clock: Callable[[], int]) -> float:
    begin = clock()
    for _ in range(COUNTS):
        memory.read()
    return (clock() - begin) / COUNTS
