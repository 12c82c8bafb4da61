"""What `steelyard compile` says of its builds: tables, or JSON for other programs."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, Literal

from steelyard_device.timings_print import duration
from steelyard_kernels.compiling.builders import Row

if TYPE_CHECKING:
    from rich.table import Table

    from steelyard_device.timings import Timings

NOTHING: Final = "-"
OWN: Final = ("trace", "simplify", "schedule", "lower", "verify", "emit")
CACHES: Final = ("look up", "keep")
FRESH: Final = ("interpreter", "import", "first kernel", "second kernel")
COLUMNS: Final = (*OWN, "compile", "cache", *FRESH)
HASH: Final = 8  # digits shown: enough to tell the rows of a table apart

GAP: Final = 3
"""What stands between two columns."""

PAGE: Final = 320
"""Columns where there is no terminal to ask."""

Cells = tuple[str, Callable[[Row], str]]


def tables(rows: Sequence[Row], width: int) -> Iterator[Table]:
    """Yield a line a row: its times, its phases and what it came to.

    More tables than one where that is wider than `width`, each with what tells the rows
    apart: a number is never cut.
    """
    yield from _fitting(rows, [*_times(rows), *_phases(rows), *_came_to(rows)], width)


def resources(rows: Sequence[Row], width: int) -> list[Table]:
    """Return what a GPU's code takes, beside what the model expected; none of none."""
    held = [row for row in rows if "registers" in row.facts]
    if not held:
        return []
    columns: list[Cells] = [
        ("registers", _fact("registers")),
        ("estimated", _fact("estimated_registers")),
        ("error", _estimate_error),
        ("stack", _fact("stack_bytes")),
        ("spills", _fact("spill_bytes")),
        ("shared", _fact("shared_bytes")),
        ("code bytes", _fact("code_bytes")),
        ("blocks/SM", _fact("blocks_resident")),
        ("128-bit loads", _fact("loads_128")),
        ("tensor core", _fact("tensor_core")),
        ("local memory", _fact("local_memory")),
        ("hash", _hash),
    ]
    made = list(_fitting(held, columns, width))
    made[-1].caption_justify = "left"
    made[-1].caption = (
        "registers, stack and spills (bytes) of a thread; shared memory (bytes) of a "
        f"block; counts of instructions; {_model_error(held)}"
    )
    return made


def _model_error(rows: Sequence[Row]) -> str:
    """Say how far estimates of registers are off: of each row by its actual ones."""
    errors = [
        abs(row.facts["estimated_registers"] / row.facts["registers"] - 1)
        for row in rows
        if "estimated_registers" in row.facts
    ]
    if not errors:
        return "no registers were estimated"
    mean, most = statistics.fmean(errors), max(errors)
    return f"estimates are off by {100 * mean:.0f} % on average, {100 * most:.0f} % at most"


def failures(rows: Iterable[Row]) -> Iterator[str]:
    """Yield a sentence for each row that came to nothing."""
    for row in rows:
        if row.error:
            yield f"failed: {row.point.label}: {row.error}"


def dumps(rows: Iterable[Row], spans: Timings | None) -> str:
    """Return all that is known as JSON; times are nanoseconds."""
    timed = {"timings": json.loads(spans.json())} if spans else {}
    made = {"schema": 1, "rows": [_plain(row) for row in rows], **timed}
    return json.dumps(made, indent=2)


def _plain(row: Row) -> dict[str, Any]:
    return {
        **asdict(row.point),
        "axes": dict(row.point.axes),
        "quantity": row.cache,
        "dropped": row.drop,
        "nvrtc": row.library,
        "median": row.median,
        "best": row.best,
        "times": [sample.nanoseconds for sample in row.samples],
        "phases": row.phases,
        "facts": row.facts,
        "error": row.error,
    }


def _fitting(
    rows: Sequence[Row], columns: Sequence[Cells], width: int
) -> Iterator[Table]:
    """Yield tables that hold as many columns as fit beside those that name the rows."""
    names = list(_which(rows))
    room = width - sum(_width(rows, each) for each in names)
    block: list[Cells] = []
    for column in columns:
        if block and sum(_width(rows, each) for each in (*block, column)) > room:
            yield _table(rows, [*names, *block])
            block = []
        block.append(column)
    yield _table(rows, [*names, *block])


def _width(rows: Sequence[Row], column: Cells) -> int:
    title, cell = column
    return max(len(title), *(len(cell(row)) for row in rows)) + GAP


def _table(rows: Sequence[Row], columns: Iterable[Cells]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    kept = list(columns)
    for title, _ in kept:
        left = title in {
            "kernel",
            "target",
            "schedule",
            "dropped",
            "compiler",
            "arrays",
        }
        justify: Literal["left", "right"] = "left" if left else "right"
        made.add_column(title, justify=justify, overflow="fold")
    for row in rows:
        made.add_row(*(Text(cell(row)) for _, cell in kept))
    return made


def _which(rows: Sequence[Row]) -> Iterator[Cells]:
    yield "kernel", lambda row: row.point.kernel.rpartition(":")[2]
    for name in dict.fromkeys(name for row in rows for name, _ in row.point.axes):
        yield name, _axis(name)
    if any(row.point.arrays and not row.point.axes for row in rows):
        yield "arrays", lambda row: " ".join(row.point.shapes)
    yield "target", lambda row: row.point.target
    yield "schedule", _fact("schedule")
    if any(row.drop for row in rows):
        yield "dropped", lambda row: ", ".join(row.drop) or NOTHING


def _times(rows: Sequence[Row]) -> Iterator[Cells]:
    yield "median", lambda row: _time(row.median, row)
    yield "best", lambda row: _time(row.best, row)
    if any(row.drop for row in rows):
        yield "more", _difference(rows)


def _difference(rows: Sequence[Row]) -> Callable[[Row], str]:
    """Return what dropping one more level costs: the row less the one before it."""
    before: dict[object, float] = {
        (row.point, row.library, row.drop): row.median for row in rows
    }

    def cell(row: Row) -> str:
        above = (row.point, row.library, row.drop[:-1])
        if not row.drop or above not in before:
            return NOTHING
        less = row.median - before[above]
        return f"{'-' if less < 0 else '+'}{duration(abs(less))}"

    return cell


def _phases(rows: Sequence[Row]) -> Iterator[Cells]:
    seen = {name for row in rows for name in _grouped(row.phases)}
    for name in COLUMNS:
        if name in seen:
            yield name, _phase(name)


def _grouped(phases: Mapping[str, float]) -> dict[str, float]:
    """Put together what a table has one column for: caches, and all of a compiler."""
    found: dict[str, float] = {}
    for name, nanoseconds in phases.items():
        column = name if name in COLUMNS else "compile"
        column = "cache" if name in CACHES else column
        found[column] = found.get(column, 0.0) + nanoseconds
    return found


def _came_to(rows: Sequence[Row]) -> Iterator[Cells]:
    if any("registers" in row.facts for row in rows):
        yield "registers", _fact("registers")
        yield "spills", _fact("spill_bytes")
        yield "code bytes", _fact("code_bytes")
    yield "hash", _hash
    yield "compiler", _fact("compiler")


def _axis(name: str) -> Callable[[Row], str]:
    return lambda row: str(dict(row.point.axes).get(name, NOTHING))


def _fact(name: str) -> Callable[[Row], str]:
    return lambda row: str(row.facts.get(name, NOTHING))


def _phase(name: str) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        found = _grouped(row.phases)
        return duration(found[name]) if name in found else NOTHING

    return cell


def _time(nanoseconds: float, row: Row) -> str:
    return "failed" if row.error else duration(nanoseconds)


def _hash(row: Row) -> str:
    return str(row.facts.get("code_hash", NOTHING))[:HASH]


def _estimate_error(row: Row) -> str:
    actual = row.facts["registers"]
    if "estimated_registers" not in row.facts:
        return NOTHING
    return f"{100 * (row.facts['estimated_registers'] - actual) / actual:+.0f} %"
