"""The axes of a run that sizes lie on, and the sizes that fall off them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from steelyard.analyse.cliffs import COPY, FEWEST, Cliff, Size, cliffs
from steelyard.analyse.rows import Row
from steelyard.analyse.trial import Run

if TYPE_CHECKING:
    from steelyard.report.curves import Curve

MEASURES: Final = ("bytes", "operations")

Copies = Mapping[tuple[Any, ...], float]
"""What copies took, by benchmark, mode and the axes that they share with other cases."""


def axes(made: Sequence[Row]) -> list[str]:
    """Return the axes of numbers above 0 that have enough values for a sweep."""
    values: dict[str, dict[str, Any]] = {}  # by text: a shape need not be hashable
    for row in made:
        for name, value in row.axes.items():
            values.setdefault(name, {})[str(value)] = value
    several = {name: v for name, v in values.items() if len(v) >= FEWEST}
    if not several:
        return []
    from steelyard.report.curves import is_size  # few runs are sweeps

    return [
        name for name, found in several.items() if all(map(is_size, found.values()))
    ]


def curves(run: Run, made: Sequence[Row], across: str) -> list[Curve]:
    """Return the curves of rows over an axis, with their cliffs."""
    from steelyard.report import curves as drawn

    copies = {key: time for row in made for key, time in _copy(row)}

    def find(group: Sequence[Row]) -> list[Cliff]:
        if group[0].mode.startswith("build/"):
            return []
        sizes = [(row, _size(row, across, copies)) for row in group if row.estimate]
        if all(COPY in one.work for _, one in sizes) or "/cold" in group[0].mode:
            return cliffs([one for _, one in sizes])
        levels = sorted(sizes, key=lambda one: _level(run, one[0]))
        return [
            cliff
            for _, level in groupby(levels, key=lambda one: _level(run, one[0]))
            for cliff in cliffs([one for _, one in level])
        ]

    return drawn.curves(made, across, find)


def sentences(run: Run, made: Sequence[Row]) -> Iterator[str]:
    """Yield a sentence for each cliff over each axis."""
    for across in axes(made):
        from steelyard.report import curves as drawn

        yield from drawn.cliffs(curves(run, made, across), across)


def _size(row: Row, across: str, copies: Copies) -> Size:
    assert row.estimate is not None
    work = {name: row.fact(name) for name in MEASURES}
    peers = (_without(row, name) for name in row.axes)
    work[COPY] = next((copies[key] for key in peers if key in copies), None)
    if row.peak is not None and row.peak.bound == COPY:
        work[COPY] = row.peak.share * row.estimate.value
    known = {name: float(value) for name, value in work.items() if value}
    return Size(float(row.axes[across]), row.estimate, known)


def _copy(row: Row) -> Iterator[tuple[tuple[Any, ...], float]]:
    """Yield what finds a row's time for other cases, where it is of a copy."""
    for name, value in row.axes.items():
        if value == COPY and row.estimate is not None:
            yield _without(row, name), row.estimate.value


def _without(row: Row, axis: str) -> tuple[Any, ...]:
    others = frozenset((n, str(v)) for n, v in row.axes.items() if n != axis)
    return row.benchmark, row.mode, axis, others


def _level(run: Run, row: Row) -> int:
    """Return how many of its machine's caches a warm launch's bytes do not fit in."""
    gpu = row.trials and "gpu" in row.trials[-1].extra
    if gpu:
        sizes = [run.machine.get("gpu", {}).get("l2")]
    else:
        caches = run.machine.get("identity", {}).get("caches", {})
        known = caches.values() if isinstance(caches, Mapping) else ()
        sizes = [one.get("bytes") for one in known if isinstance(one, Mapping)]
    moved = row.fact("bytes") or 0
    return sum(isinstance(size, (int, float)) and moved > size for size in sizes)
