"""Timings as a table, as JSON, and as a trace of every span."""

from __future__ import annotations

import json as text
from collections.abc import Iterable, Sequence
from typing import Final

from steelyard_device.spans import NOT_TRACKED, Row, Track, explained

_UNITS: Final = ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns"))

MEMORY: Final = ("blocks", "peak", "heap")
"""Columns of memory: fields of a row."""

NARROWEST: Final = 12
"""Columns that the names keep in a narrow table, or they could not be told apart."""


def table(
    rows: Sequence[Row],
    wall: int,
    coverage: float,
    counted: tuple[int, float] | None,
    width: int | None,
) -> str:
    """Return rows as a table under a header that says how they add up.

    `counted`: how many counts of memory were made, and what one costs in ns.
    """
    beside = any(row.beside for row in rows)
    titles = ["calls", "time", "%tot", "avg"]
    titles += ["wall"] * beside + [*MEMORY] * (counted is not None)
    cells = [_cells(row, wall, beside, counted is not None) for row in rows]
    widths = [max(7, *map(len, column)) for column in zip(titles, *cells, strict=True)]
    names = ["  " * (len(row.path) - 1) + row.path[-1] for row in rows]
    room = max([len("section"), *map(len, names)])
    if width is not None:
        room = max(NARROWEST, min(room, width - sum(widths) - 2 * len(widths)))
    rule = "-" * (room + sum(widths) + 2 * len(widths))
    lines = [
        _line(
            name if len(name) <= room else f"{name[: room - 3]}...", room, cell, widths
        )
        for name, cell in zip(["section", *names], [titles, *cells], strict=True)
    ]
    header = _header(rows, wall, coverage, counted)
    return "\n".join([*header, rule, lines[0], rule, *lines[1:], rule, ""])


def json(
    rows: Sequence[Row], wall: int, coverage: float, counting: float | None
) -> str:
    """Return rows as JSON, times in nanoseconds."""
    every = [row._asdict() for row in rows]
    facts = {
        "wall": wall,
        "coverage": coverage,
        "explained": explained(rows, wall),
        "counting": counting,
        "rows": every,
    }
    return text.dumps(facts, indent=1)


def chrome_trace(tracks: Iterable[Track], start: int) -> str:
    """Return every span as a complete event: microseconds from `start`, a tid a track.

    The format is Chrome's "Trace Event Format"; a tid names a track, not a thread of
    the operating system.
    """
    events: list[dict[str, object]] = []
    for number, track in enumerate(tracks):
        place: dict[str, object] = {"pid": 1, "tid": number}
        args = {"name": track.name or "main"}
        events.append({"name": "thread_name", "ph": "M", "args": args, **place})
        for span in track.spans:
            times = {"ts": (span.start - start) / 1e3, "dur": span.nanoseconds / 1e3}
            found = {n: kept for n in MEMORY if (kept := getattr(span, n))}
            facts = {"args": found} if found else {}
            events.append({"name": span.path[-1], "ph": "X", **times, **facts, **place})
    return text.dumps({"traceEvents": events, "displayTimeUnit": "ns"})


def duration(nanoseconds: float) -> str:
    """Write a duration with three figures: `3.12 s`."""
    for scale, unit in _UNITS:
        if nanoseconds >= scale:
            return f"{_figures(nanoseconds / scale)} {unit}"
    return f"{_figures(nanoseconds)} ns"


def _figures(value: float) -> str:
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"


def _header(
    rows: Sequence[Row],
    wall: int,
    coverage: float,
    counted: tuple[int, float] | None,
) -> list[str]:
    innermost = explained(rows, wall)
    measured = f"{coverage:.1%} measured, {innermost:.1%} in innermost rows"
    lines = [f"wall {duration(wall)}, {measured}"]
    roots = [row for row in rows if row.beside and len(row.path) == 1]
    if roots:
        tracks = sum(row.calls for row in roots)
        total = sum(row.nanoseconds for row in roots)
        lines += [
            f"beside it {duration(total)} in {tracks} other threads or processes",
            "time: calls and workers added up; wall: when at least one of them ran",
        ]
    if counted is not None:
        count, cost = counted
        lines.append(
            f"counting memory: {count} counts of {duration(cost)}, "
            f"{duration(count * cost)} of the time"
        )
        lines.append(
            "blocks: of the interpreter, kept; peak: its bytes at most, above those "
            "before; heap: bytes of the C library, LLVM's too, kept"
        )
    return lines


def _cells(row: Row, wall: int, beside: bool, counted: bool) -> list[str]:
    tracked = row.path[-1] != NOT_TRACKED or row.calls > 0
    cells = [
        str(row.calls) if tracked else "",
        duration(row.nanoseconds),
        f"{100 * row.nanoseconds / max(1, wall):.1f}",
        duration(row.nanoseconds / row.calls) if tracked else "",
    ]
    cells += [duration(row.wall) if tracked else ""] * beside
    if counted:
        sizes = (size(row.peak), f"{'-' * (row.heap < 0)}{size(abs(row.heap))}")
        known = row.blocks or row.peak or row.heap  # not of what others timed
        cells += [f"{row.blocks:+d}", *sizes] if known else [""] * len(MEMORY)
    return cells


def size(count: int) -> str:
    """Write a number of bytes with three figures: `1.20 MiB`."""
    for scale, unit in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= scale:
            return f"{_figures(count / scale)} {unit}"
    return f"{count} B"


def _line(name: str, room: int, cells: Sequence[str], widths: Sequence[int]) -> str:
    columns = (f"  {cell:>{size}}" for cell, size in zip(cells, widths, strict=True))
    return (f"{name:<{room}}" + "".join(columns)).rstrip()
