"""What asv kept of its runs (``asv.conf.json``'s ``results_dir``), as a history."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypedDict

from steelyard.analyse.stats import Estimate
from steelyard.errors import SteelyardError
from steelyard.machine import files
from steelyard.machine.decoding import Malformed, checked, parsed
from steelyard.store.series import Measured, Point

FORMAT: Final = 2
"""Of result files; asv has written no other since 2020."""

BENCHMARKS: Final = "benchmarks.json"
"""What was measured, in which unit."""

MACHINE: Final = "machine.json"

NANO: Final = 1e9
"""asv keeps seconds, histories nanoseconds."""

LONGEST: Final = 1e9
"""Seconds: 31 years; what says more is no time."""

SECONDS: Final = "seconds"

MOST: Final = 1_000_000
"""Points of a benchmark: of more a file could not hold the results."""


def measured(folder: Path, commits: Sequence[str] | None = None) -> list[Measured]:
    """Return every time in a folder of results, by the dates of their commits.

    Results of several machines or environments, or of versions of a benchmark, are of
    one series only as far as the latest is. Of ``commits``, the oldest first, the order
    is theirs.

    Raises:
        SteelyardError: the folder has no results, or a file of it cannot be read.
    """
    units = {
        name: one.get("unit")
        for name, one in _read(folder / BENCHMARKS).items()
        if isinstance(one, dict)
    }
    files = [f for f in sorted(folder.glob("*/*.json")) if f.name != MACHINE]
    results = [(_checked(file), file) for file in files]
    if not results:
        raise SteelyardError(f"{folder} has no results of asv; `asv run` makes some.")
    if commits is not None:
        places = {commit: at for at, commit in enumerate(commits)}
        results = [r for r in results if r[0]["commit_hash"] in places]
        results.sort(key=lambda r: places[r[0]["commit_hash"]])
    else:
        results.sort(key=lambda r: r[0]["date"])
    times = [name for name, unit in units.items() if unit == SECONDS]
    return [
        one
        for content, file in results
        for name in times
        if name in content["results"]
        for one in _of_benchmark(content, name, file)
    ]


def _checked(file: Path) -> dict[str, Any]:
    content = _read(file)
    version = content.get("version")
    if version != FORMAT:
        raise SteelyardError(
            f"{file} has version {version} of asv's results, this reads {FORMAT}. "
            "Convert it with `asv update`."
        )
    try:
        checked(content, _Content)
        _day(content)
    except (ValueError, OverflowError, OSError) as error:  # Malformed is one
        raise _broken(file, str(error)) from error
    return content


class _Content(TypedDict):
    commit_hash: str
    date: int
    result_columns: list[str]
    results: dict[str, list[Any] | None]


def _day(content: Mapping[str, Any]) -> str:
    """Return the day of a commit, which asv keeps in milliseconds."""
    return datetime.fromtimestamp(content["date"] / 1000, UTC).isoformat()


def _read(file: Path) -> dict[str, Any]:
    try:
        content = parsed(files.read(file))
    except FileNotFoundError:
        raise SteelyardError(
            f"there is no {file}; name the results_dir of asv.conf.json."
        ) from None
    except (OSError, ValueError) as error:
        raise _broken(file, str(error)) from error
    if not isinstance(content, dict):
        raise _broken(file, "it holds no object")
    return content


def _broken(file: Path, why: str) -> SteelyardError:
    return SteelyardError(
        f"{file} is no result of asv: {why}. Remove it, or run asv on its commit again."
    )


def _of_benchmark(
    content: Mapping[str, Any], name: str, file: Path
) -> Iterator[Measured]:
    """Yield what a file says of each point of a benchmark."""
    columns = content["result_columns"]
    row = dict(itertools.zip_longest(columns, content["results"][name] or ()))
    params, results = row.get("params") or [], row.get("result")
    try:
        checked(params, list[list[str]], "params")
    except Malformed as error:
        raise _broken(file, f"{name}: {error}") from error
    if math.prod(map(len, params)) > MOST:
        raise _broken(file, f"{name} has more than {MOST} points")
    points = list(itertools.product(*params)) if params else [None]
    values = results if isinstance(results, list) else [None] * len(points)
    if len(values) != len(points):
        raise _broken(file, f"{name} has {len(values)} results of {len(points)} points")
    day = _day(content)
    like = (file.parent.name, str(content.get("env_name")), str(row.get("version")))
    commit = content["commit_hash"]
    for at, (point, value) in enumerate(zip(points, values, strict=True)):
        if isinstance(value, float) and math.isnan(value):
            continue  # skipped, or not asked for
        ends = [_number(row.get(f"stats_ci_99_{end}"), at) for end in "ab"]
        case = name if point is None else f"{name}({', '.join(point)})"
        estimate = _estimate(value, *ends)
        found = Point(commit, commit[:8], day, estimate) if estimate else None
        yield Measured(case, "", like, found)


def _number(values: Any, at: int) -> float | None:
    value = values[at] if isinstance(values, list) and at < len(values) else None
    return value if isinstance(value, int | float) else None


def _estimate(value: Any, low: float | None, high: float | None) -> Estimate | None:
    """Return seconds as nanoseconds; an interval that asv does not know is none."""
    if not isinstance(value, int | float) or not 0 < value < LONGEST:
        return None
    low = value if low is None or not 0 < low <= value else low
    high = value if high is None or not value <= high < LONGEST else high
    return Estimate(NANO * value, NANO * low, NANO * high)
