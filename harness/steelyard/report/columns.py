"""The columns of a result table: which there are, and what each says of a row."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from steelyard import units
from steelyard.analyse.peaks import Peak
from steelyard.analyse.rows import Row
from steelyard.analyse.trial import UNKNOWN
from steelyard.errors import SteelyardError
from steelyard.report import text
from steelyard.report.grid import Column, Sheet


def sheets(made: Sequence[Row], wanted: Sequence[str] = ()) -> Iterator[Sheet[Row]]:
    """Yield one table a benchmark, of the rows that were measured.

    ``wanted`` are names of `EXTRAS`.
    """
    for name, rows in groupby(made, key=lambda row: row.benchmark):
        group = [row for row in rows if row.trials]
        if group:
            shared = text.shared_axes(group)
            inside = ",".join(f"{n}={v}" for n, v in shared.items())
            modes = {row.mode for row in group}
            mode = f" {group[0].mode}" if len(modes) == 1 else ""
            title = f"{name}{f'[{inside}]' if inside else ''}{mode}"
            yield Sheet(title, tuple(of(group, set(shared), wanted)), group)


def of(
    group: Sequence[Row], shared: set[str], wanted: Sequence[str] = ()
) -> Iterator[Column[Row]]:
    """Yield the columns that the rows of ``group`` have something for.

    ``shared`` are axes of one value, which the title tells; ``wanted`` are names of
    `EXTRAS`, which then stay however narrow the terminal.
    """
    names = dict.fromkeys(name for row in group for name in row.axes)
    for name in names:
        if name not in shared:
            number = all(isinstance(r.axes.get(name, 0), (int, float)) for r in group)
            yield Column(name, axis(name), right=number, names=True)
    if len({row.mode for row in group}) > 1:
        yield Column("mode", lambda row: row.mode, right=False, names=True)
    yield Column("time", text.time)
    yield Column("95 %", lambda row: text.margin(row.estimate))
    yield Column("min", lambda row: units.duration(row.minimum), sheds=3)
    counted = {name for row in group for name in row.fact("ncu") or ()}
    kernels = ["kernels"] * any((row.fact("kernels") or 1) > 1 for row in group)
    known: list[Column[Row]] = [
        Column("GB/s", text.gigabytes),
        Column("op/s", _rate("operations", "op"), sheds=4),
        *(Column(t, _fact(n, _known_time), sheds=1) for n, t in TIMES.items()),
        *(Column(name, _fact(name)) for name in kernels),
        *(Column(t, _fact(n), sheds=2) for n, t in RESOURCES.items()),
        *(Column(t, _counter(n, w)) for n, (t, w) in COUNTERS.items() if n in counted),
        *of_machines(group, wanted),
        Column("relative", lambda row: text.ratio(row.relative)),
    ]
    yield from _having(known, group)
    yield Column("floor", _written(lambda row: row.floor, units.duration), sheds=6)
    yield Column("samples", lambda row: str(row.samples), sheds=5)
    yield Column("histogram", lambda row: row.histogram(), right=False, sheds=2)
    doubts: Column[Row] = Column(
        "doubts", lambda row: ", ".join(row.doubts), right=False, folds=True
    )
    yield from _having([doubts], group)


def _having(some: Iterable[Column[Row]], group: Sequence[Row]) -> Iterator[Column[Row]]:
    """Yield the columns that any row has something for."""
    for one in some:
        if not {str(one.cell(row)) for row in group} <= {"", units.NOTHING}:
            yield one


RESOURCES: Final = {
    "library": "library",
    "registers": "registers",
    "spill_bytes": "spills",
    "shared_bytes": "shared",
    "blocks_per_multiprocessor": "blocks/SM",
    "candidates": "candidates",
    "distinct": "distinct",
}
"""Facts of a GPU's code, by thread and by block, or of many builds, and their columns."""

TIMES: Final = {
    "second_kernel_ns": "second kernel",
    "lower_ns": "lower",
    "emit_ns": "emit",
    "compile_ns": "compile",
    "wall_ns": "wall",
}
"""Facts in nanoseconds; of many builds summed over workers, but for the wall."""


def of_machines(
    group: Sequence[Row], wanted: Sequence[str] = ()
) -> Iterator[Column[Row]]:
    """Yield the `EXTRAS` that are wanted, or shown of themselves, and known."""
    some = (
        Column(title, cell, sheds=0 if name in wanted else sheds)
        for name, (title, cell, of_itself, sheds) in EXTRAS.items()
        if name in wanted or of_itself
    )
    yield from _having(some, group)


COUNTERS: Final[Mapping[str, tuple[str, Callable[[float], str]]]] = {
    "time_ns": ("ncu", units.duration),
    "eligible_warps": ("eligible warps", lambda value: units.figures(value, 3)),
    "occupancy": ("occupancy", lambda value: f"{100 * value:.0f} %"),
    "dram_read": ("DRAM read", units.size),
    "dram_written": ("DRAM written", units.size),
    "l2_hit": ("L2 hit", units.size),
}
"""What Nsight Compute counted of one launch: its key, the column, how it is written."""


def _written(
    value: Callable[[Row], Any],
    write: Callable[[Any], str] = str,
    missing: str = units.NOTHING,
) -> Callable[[Row], str]:
    """Return what writes a value of a row, where there is one."""

    def cell(row: Row) -> str:
        found = value(row)
        return missing if found is None else write(found)

    return cell


def _counter(name: str, write: Callable[[float], str]) -> Callable[[Row], str]:
    return _written(lambda row: (row.fact("ncu") or {}).get(name), write, UNKNOWN)


def _fact(name: str, write: Callable[[Any], str] = str) -> Callable[[Row], str]:
    return _written(lambda row: row.fact(name), write)


def _peak(peak: Peak) -> str:
    return f"{100 * peak.share:.1f}"


def _processor(row: Row) -> str:
    called = row.mode.startswith(("per_launch", "latency"))
    return units.duration(row.processor_time) if called else units.NOTHING


def _mhz(row: Row) -> str:
    found = [mhz for trial in row.trials for mhz in trial.samples.mhz if mhz]
    return f"{statistics.median(found):.0f}" if found else units.NOTHING


def _celsius(row: Row) -> str:
    states = [t.extra.get("gpu", {}).get("after", {}) for t in row.trials]
    found = [s["temperature_c"] for s in states if "temperature_c" in s]
    known = [value for value in found if value != UNKNOWN]
    return f"{max(known):.0f}" if known else units.NOTHING


def _energy(name: str, write: Callable[[float], str]) -> Callable[[Row], str]:
    return _written(lambda row: row.energy(name), write)


def _rate(quantity: str, unit: str) -> Callable[[Row], str]:
    return lambda row: text.rate(row, quantity, unit)


EXTRAS: Final[Mapping[str, tuple[str, Callable[[Row], str], bool, int]]] = {
    "items": ("item/s", _rate("items", "item"), True, 1),
    "peak": ("% peak", _written(lambda row: row.peak, _peak), True, 1),
    "cpu": ("CPU", _processor, True, 3),
    "mhz": ("MHz", _mhz, True, 7),
    "watts": ("W", _energy("watts", "{:.0f}".format), True, 1),
    "joules": ("energy", _energy("joules_per_launch", units.energy), True, 2),
    "celsius": ("°C", _celsius, False, 7),
}
"""What the machine did meanwhile, by the word of ``--columns``: title, cell, whether it
is shown unasked, and how soon it goes. ``cpu`` is the process's time of a launch."""


def _known_time(time: float) -> str:
    return units.duration(time) if time else units.NOTHING


def axis(name: str) -> Callable[[Row], str]:
    """Return what writes an axis of a row."""
    return lambda row: str(row.axes.get(name, units.NOTHING))


def read(words: str) -> list[str]:
    """Read ``watts,mhz``: columns that are asked for.

    Raises:
        SteelyardError: there is none of that name.
    """
    wanted = [word for word in words.split(",") if word]
    for word in wanted:
        if word not in EXTRAS:
            raise SteelyardError(
                f"--columns {word}: there is no such column; expected some of "
                f"{', '.join(EXTRAS)}."
            )
    return wanted
