"""Recorded spans as a trace that Perfetto and chrome://tracing open. Pure.

The format is Chrome's trace event format, JSON object form: complete events (``X``)
for what lasts, metadata (``M``) for names, flows (``s`` to ``f``) from the host's span
to what it made the GPU do. Times in it are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

HOST: Final = 1
"""The thread that the host's spans lie on; a GPU's streams come behind it."""

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Span:
    """What the host did from start to end, in nanoseconds of CLOCK_MONOTONIC."""

    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Work:
    """What the GPU did, on the same time axis."""

    name: str
    start: int
    end: int
    stream: int
    span: int | None
    """Place among the spans of the one that submitted it; None where that is not known."""
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Recording:
    """All spans and device work of one case, whose title they stand under."""

    title: str
    spans: Sequence[Span]
    works: Sequence[Work]


def document(recordings: Sequence[Recording], about: Mapping[str, Any]) -> Event:
    """Return the trace of some cases, each a process of its own, from time zero on."""
    starts = [span.start for one in recordings for span in one.spans]
    starts += [work.start for one in recordings for work in one.works]
    zero = min(starts, default=0)
    return {
        "traceEvents": [
            event
            for process, one in enumerate(recordings, 1)
            for event in _events(one, process, zero)
        ],
        "displayTimeUnit": "ns",
        "otherData": dict(about),
    }


def _events(recording: Recording, process: int, zero: int) -> Iterator[Event]:
    yield _name("process_name", recording.title, process, HOST)
    yield _name("thread_name", "host", process, HOST)
    streams = sorted({work.stream for work in recording.works})
    threads = {stream: HOST + 1 + i for i, stream in enumerate(streams)}
    for stream, thread in threads.items():
        yield _name("thread_name", f"GPU stream {stream}", process, thread)
    for span in recording.spans:
        host = {"cat": "host", "pid": process, "tid": HOST}
        yield _complete(span, zero, {}) | host
    submitted = _submissions(recording)
    for number, (work, at) in enumerate(zip(recording.works, submitted, strict=True)):
        thread = threads[work.stream]
        device = {"cat": "device", "pid": process, "tid": thread}
        yield _complete(work, zero, work.facts) | device
        if at is None:
            continue
        flow = {"cat": "submit", "name": "submit", "id": f"{process}.{number}"}
        yield flow | {"ph": "s", "ts": _us(at - zero), "pid": process, "tid": HOST}
        arrives = {"ph": "f", "bp": "e", "ts": _us(work.start - zero)}
        yield flow | arrives | {"pid": process, "tid": thread}


def _submissions(recording: Recording) -> list[float | None]:
    """Return when each work was submitted: its span's time, shared out evenly.

    Which span submitted it is known, the moment within is not.
    """
    count = [0] * len(recording.spans)
    for work in recording.works:
        if work.span is not None:
            count[work.span] += 1
    placed: list[float | None] = []
    seen = [0] * len(recording.spans)
    for work in recording.works:
        if work.span is None:
            placed.append(None)
            continue
        span = recording.spans[work.span]
        share = (seen[work.span] + 0.5) / count[work.span]
        seen[work.span] += 1
        placed.append(span.start + share * (span.end - span.start))
    return placed


def _complete(one: Span | Work, zero: int, facts: Mapping[str, Any]) -> Event:
    return {
        "ph": "X",
        "name": one.name,
        "ts": _us(one.start - zero),
        "dur": _us(one.end - one.start),
        "args": dict(facts),
    }


def _name(what: str, name: str, process: int, thread: int) -> Event:
    args = {"name": name}
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": args}


def _us(nanoseconds: float) -> float:
    return round(nanoseconds / 1e3, 4)


def recording(title: str, answer: Mapping[str, Iterable[Sequence[Any]]]) -> Recording:
    """Read what a process wrote of its spans and works: lists of their fields."""
    return Recording(
        title,
        [Span(*fields) for fields in answer["spans"]],
        [Work(*fields) for fields in answer["works"]],
    )
