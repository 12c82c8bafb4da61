"""What `steelyard compile` says of its builds: tables, or JSON for other programs."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from steelyard.report import text
from steelyard.report.grid import grid
from steelyard.units import NOTHING
from steelyard_device.timings_print import duration
from steelyard_lock import space_report
from steelyard_lock.builds import Row
from steelyard_lock.space_report import HASH, RESOURCES
from steelyard_lock.spaces import Space

if TYPE_CHECKING:
    from rich.console import RenderableType

    from steelyard_device.timings import Timings

PHASES: Final = (
    *("trace", "simplify", "schedule", "lower", "verify", "emit"),
    *("compile", "cache"),
    *("interpreter", "import", "first kernel", "second kernel"),
)
"""Columns: those of a compiler are one, and so are those of a cache."""

CACHES: Final = ("look up", "keep")

Columns = dict[str, Callable[[Row], str]]


def tables(rows: Sequence[Row]) -> Iterator[RenderableType]:
    """Yield a line a row: its times, its phases and what it came to."""
    columns = {**_times(rows), **_phases(rows)}
    if any("registers" in row.facts for row in rows):
        names = ("registers", "spills", "code bytes")
        columns |= {name: _fact(RESOURCES[name]) for name in names}
    columns |= {"hash": _hash, "compiler": _fact("compiler")}
    columns |= {"chosen schedule": _fact("schedule")}
    yield from _shown(f"build/{rows[0].cache}", rows, columns)


def launches(rows: Sequence[Row]) -> Iterator[RenderableType | str]:
    """Yield the launches of every row that has several, and their memory."""
    for row in rows:
        found = row.facts.get("launches", ())
        lines = [
            (
                str(number),
                each["reason"],
                str(each.get("times", 1)),
                str(each["bytes"]),
                each["schedule"],
            )
            for number, each in enumerate(found)
        ]
        if lines:
            heads = ("launch", "computes"), ("times", "bytes", "schedule")
            title = f"launches of {row.point.label}"
            yield grid(title, *heads, tuple(lines))
            size, least = (row.facts[f"workspace_{n}"] for n in ("bytes", "bound"))
            yield f"workspace: {size} bytes, at least {least} are live at once"
            yield str(row.facts["partition"])


def resources(rows: Sequence[Row]) -> Iterator[RenderableType | str]:
    """Yield what a GPU's code takes, beside what the model expected; nothing of none."""
    held = [row for row in rows if "registers" in row.facts]
    if not held:
        return
    columns = {title: _fact(name) for title, name in RESOURCES.items()}
    columns |= {"error": _estimate_error, "hash": _hash}
    yield from _shown("resources", held, columns)
    yield (
        "registers, stack and spills (bytes) of a thread; shared memory (bytes) of a "
        f"block; counts of instructions; {_model_error(held)}"
    )


def _shown(
    title: str, rows: Sequence[Row], columns: Columns
) -> Iterator[RenderableType]:
    """Yield the tables of some rows."""
    heads = _heads(rows)
    lines = [
        tuple(cell(row) for cell in (*heads.values(), *columns.values()))
        for row in rows
    ]
    yield grid(title, tuple(heads), tuple(columns), tuple(lines))


def passes(found: Mapping[str, Sequence[tuple[str, int]]]) -> Iterator[RenderableType]:
    """Yield a table a build: LLVM's passes that took a tenth of a millisecond or more."""
    for label, taken in found.items():
        lines = tuple((name, duration(time)) for name, time in taken)
        title = f"passes of LLVM, once: {label}"
        yield grid(title, ("pass",), ("time",), lines)


def dumps(
    rows: Sequence[Row],
    spans: Timings | None,
    found: Mapping[str, Sequence[tuple[str, int]]],
    sheets: Sequence[Space] = (),
) -> str:
    """Return all that is known as JSON; times are nanoseconds."""
    timed = {"timings": json.loads(spans.json())} if spans else {}
    if sheets:
        timed["kernels"] = [space_report.plain(space) for space in sheets]
    if found:
        timed["passes"] = {build: dict(each) for build, each in found.items()}
    made = {"schema": 1, "rows": [_plain(row) for row in rows], **timed}
    return json.dumps(made, indent=2)


def _plain(row: Row) -> dict[str, Any]:
    estimate = row.estimate
    return {
        **asdict(row.point),
        "axes": dict(row.point.axes),
        "quantity": row.cache,
        "median": estimate.value,
        "low": estimate.low if estimate.known else None,
        "high": estimate.high if estimate.known else None,
        "best": min(row.times),
        "times": row.times,
        "phases": row.phases,
        "facts": row.facts,
        "error": row.error,
    }


def _heads(rows: Sequence[Row]) -> Columns:
    """Return what tells the rows apart."""
    found: Columns = {"kernel": lambda row: row.point.kernel.rpartition(":")[2]}
    for name in dict.fromkeys(name for row in rows for name, _ in row.point.axes):
        found[name] = _axis(name)
    if any(row.point.arrays and not row.point.axes for row in rows):
        found["arrays"] = lambda row: " ".join(row.point.shapes)
    found["target"] = lambda row: row.point.target
    if any(row.point.dropped for row in rows):
        found["dropped"] = lambda row: ", ".join(row.point.dropped) or NOTHING
    return found


def _times(rows: Sequence[Row]) -> Columns:
    def time(nanoseconds: float, row: Row) -> str:
        return "failed" if row.error else duration(nanoseconds)

    found: Columns = {
        "median": lambda row: time(row.estimate.value, row),
        "95 %": lambda row: (
            text.margin(row.estimate)
            if row.estimate.known and not row.error
            else NOTHING
        ),
        "best": lambda row: time(min(row.times), row),
    }
    if any(row.point.dropped for row in rows):
        found["more"] = _difference(rows)
    return found


def _difference(rows: Sequence[Row]) -> Callable[[Row], str]:
    """Return what dropping one more level costs: the row less the one before it."""
    medians = {row.point: row.estimate.value for row in rows}

    def cell(row: Row) -> str:
        above = replace(row.point, dropped=row.point.dropped[:-1])
        if not row.point.dropped or above not in medians:
            return NOTHING
        less = medians[row.point] - medians[above]
        return f"{'-' if less < 0 else '+'}{duration(abs(less))}"

    return cell


def _phases(rows: Sequence[Row]) -> Columns:
    seen = {name for row in rows for name in _grouped(row.phases)}
    return {name: _phase(name) for name in PHASES if name in seen}


def _grouped(phases: Mapping[str, float]) -> dict[str, float]:
    """Put together what a table has one column for."""
    found: dict[str, float] = {}
    for name, nanoseconds in phases.items():
        other = "cache" if name in CACHES else "compile"
        column = name if name in PHASES else other
        found[column] = found.get(column, 0.0) + nanoseconds
    return found


def _phase(name: str) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        found = _grouped(row.phases)
        return duration(found[name]) if name in found else NOTHING

    return cell


def _axis(name: str) -> Callable[[Row], str]:
    return lambda row: str(dict(row.point.axes).get(name, NOTHING))


def _fact(name: str) -> Callable[[Row], str]:
    return lambda row: str(row.facts.get(name, NOTHING))


def _hash(row: Row) -> str:
    return str(row.facts.get("code_hash", NOTHING))[:HASH]


def _off(row: Row) -> float | None:
    """Return by what share the estimate of registers is off."""
    estimated = row.facts.get("estimated_registers")
    return None if estimated is None else estimated / row.facts["registers"] - 1


def _estimate_error(row: Row) -> str:
    off = _off(row)
    return NOTHING if off is None else f"{100 * off:+.0f} %"


def _model_error(rows: Sequence[Row]) -> str:
    errors = [abs(off) for off in map(_off, rows) if off is not None]
    if not errors:
        return "no registers were estimated"
    mean, most = statistics.fmean(errors), max(errors)
    return f"estimates are off by {100 * mean:.0f} % on average, {100 * most:.0f} % at most"
