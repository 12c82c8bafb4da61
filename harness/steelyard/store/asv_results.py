"""What asv kept of its runs (``asv.conf.json``'s ``results_dir``), as a history."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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

ENDLESS: Final = 1e300
"""What is no number of anything; NaN is not less either."""

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
    times = benchmarks(folder)
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
    return [
        one
        for content, file in results
        for name in times
        if name in content["results"]
        for one in _of_benchmark(content, name, file)
    ]


def benchmarks(folder: Path) -> dict[str, list[str]]:
    """Return the benchmarks of a folder of results that are times, with their parameters.

    Raises:
        SteelyardError: it has no list of them, or that cannot be read.
    """
    found: dict[str, list[str]] = {}
    for name, one in _read(folder / BENCHMARKS).items():
        if isinstance(one, dict) and one.get("unit") == SECONDS:
            said = one.get("param_names")
            found[name] = list(map(str, said)) if isinstance(said, list) else []
    return found


def _checked(file: Path) -> dict[str, Any]:
    content = _read(file)
    version = content.get("version")
    if version != FORMAT:
        raise SteelyardError(
            f"{file} has version {version} of asv's results, this reads {FORMAT}. "
            "Convert it with `asv update`."
        )
    try:
        checked(content, Content)
        day(content)
    except (ValueError, OverflowError, OSError) as error:  # Malformed is one
        raise _broken(file, str(error)) from error
    return content


class Content(TypedDict):
    """What a file of results has."""

    commit_hash: str
    date: int
    result_columns: list[str]
    results: dict[str, list[Any] | None]


def day(content: Mapping[str, Any]) -> str:
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


@dataclass(frozen=True, slots=True)
class Result:
    """What a file says of one point of a benchmark."""

    point: tuple[str, ...]
    """The texts of its parameters."""
    at: int
    """Where it stands in the columns of its benchmark."""
    row: Mapping[str, Any]
    """These columns by name."""
    estimate: Estimate | None
    """Nanoseconds; None where it failed, or took no time that is one."""


def points(content: Mapping[str, Any], name: str) -> Iterator[Result]:
    """Yield what a file says of each point of a benchmark that was asked for.

    Raises:
        Malformed: there are other results than points.
    """
    columns = content["result_columns"]
    row = dict(itertools.zip_longest(columns, content["results"][name] or ()))
    params, results = row.get("params") or [], row.get("result")
    checked(params, list[list[str]], f"params of {name}")
    if math.prod(map(len, params)) > MOST:
        raise Malformed(f"{name} has more than {MOST} points")
    every: list[tuple[str, ...]] = list(itertools.product(*params))  # () without any
    values = results if isinstance(results, list) else [None] * len(every)
    if len(values) != len(every):
        raise Malformed(f"{name} has {len(values)} results of {len(every)} points")
    for at, (point, value) in enumerate(zip(every, values, strict=True)):
        if isinstance(value, float) and math.isnan(value):
            continue  # skipped, or not asked for
        ends = [number(row, f"stats_ci_99_{end}", at) for end in "ab"]
        yield Result(point, at, row, _estimate(value, *ends))


def _of_benchmark(
    content: Mapping[str, Any], name: str, file: Path
) -> Iterator[Measured]:
    """Yield what a file says of each point of a benchmark as part of a series."""
    commit, when = content["commit_hash"], day(content)
    try:
        for one in points(content, name):
            like = (file.parent.name, *method(content, one))
            case = f"{name}({', '.join(one.point)})" if one.point else name
            found = (
                Point(commit, commit[:8], when, one.estimate) if one.estimate else None
            )
            yield Measured(case, "", like, found)
    except Malformed as error:
        raise _broken(file, str(error)) from error


def method(content: Mapping[str, Any], one: Result) -> tuple[str, str]:
    """Return what two results of one series share: environment, benchmark's version."""
    return str(content.get("env_name")), str(one.row.get("version"))


def number(row: Mapping[str, Any], column: str, at: int) -> float | None:
    """Return the number of a point in a column, None where there is none, or no end."""
    values = row.get(column)
    value = values[at] if isinstance(values, list) and at < len(values) else None
    right = isinstance(value, int | float) and abs(value) < ENDLESS
    return value if right else None


def _estimate(value: Any, low: float | None, high: float | None) -> Estimate | None:
    """Return seconds as nanoseconds; an interval that asv does not know is none."""
    if not isinstance(value, int | float) or not 0 < value < LONGEST:
        return None
    low = value if low is None or not 0 < low <= value else low
    high = value if high is None or not value <= high < LONGEST else high
    return Estimate(NANO * value, NANO * low, NANO * high)
