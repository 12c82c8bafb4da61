"""What asv kept of its runs (``asv.conf.json``'s ``results_dir``): runs, or a history.

A file is a run of its own; together they are the history of each benchmark.
"""

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
from steelyard.store import foreign
from steelyard.store.foreign import Format, Report, Result, Source, Window
from steelyard.store.series import Measured, Point

VERSION: Final = 2
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
    for name, one in _object(folder / BENCHMARKS).items():
        if isinstance(one, dict) and one.get("unit") == SECONDS:
            said = one.get("param_names")
            found[name] = list(map(str, said)) if isinstance(said, list) else []
    return found


def _checked(file: Path) -> dict[str, Any]:
    content = _object(file)
    version = content.get("version")
    if version != VERSION:
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


def _object(file: Path) -> dict[str, Any]:
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
class Kept:
    """What a file says of one point of a benchmark."""

    point: tuple[str, ...]
    """The texts of its parameters."""
    at: int
    """Where it stands in the columns of its benchmark."""
    row: Mapping[str, Any]
    """These columns by name."""
    estimate: Estimate | None
    """Nanoseconds; None where it failed, or took no time that is one."""


def points(content: Mapping[str, Any], name: str) -> Iterator[Kept]:
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
        yield Kept(point, at, row, _estimate(value, *ends))


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


def method(content: Mapping[str, Any], one: Kept) -> tuple[str, str]:
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


def _reports(found: Mapping[str, Any], source: Source) -> Iterator[Report]:
    if found.get("version") != VERSION:
        raise Malformed(f"it has version {found.get('version')!a}, expected {VERSION}")
    if source.place is None:
        raise Malformed("their units are in a file beside: name a file, and no pipe")
    folder = source.place.absolute().parent
    try:
        names = benchmarks(folder.parent)
        started = foreign.moment(day(found))
    except (SteelyardError, ValueError, OverflowError, OSError) as error:
        raise Malformed(str(error)) from error
    yield Report(
        [
            _result(found, name, names[name], one)
            for name in names
            if name in found["results"]
            for one in points(found, name)
        ],
        machine=_machine(found.get("params"), folder.name),
        started=started,
        commit=found["commit_hash"],
        dirty=False,  # asv measures commits
    )


def _result(
    found: Mapping[str, Any], name: str, parameters: list[str], one: Kept
) -> Result:
    named = [*parameters, *(f"arg{n}" for n in range(len(parameters), len(one.point)))]
    axes = {
        said: foreign.axis(value.strip("'\""))
        for said, value in zip(named, one.point, strict=False)
    }
    # As asv writes them, so that '1' and 1 are two cases.
    inside = ",".join(map("=".join, zip(named, one.point, strict=False)))
    launches = round(number(one.row, "stats_number", one.at) or 1)
    every = one.row.get("samples")
    samples = every[one.at] if isinstance(every, list) and one.at < len(every) else None
    windows = (
        [Window(s, launches) for s in samples] if isinstance(samples, list) else []
    )
    stated, failed = None, None
    if one.estimate is None:
        windows, failed = [], "asv has no result of it"
    elif not windows:
        said = one.estimate
        seconds = said.value / foreign.NANO
        stated = seconds, said.low / foreign.NANO, said.high / foreign.NANO
        windows = [Window(seconds, launches)]
    return Result(
        f"{name}[{inside}]" if inside else name,
        "asv",
        windows,
        axes,
        stated,
        method=" ".join(method(found, one)),
        error=failed,
    )


def _machine(said: Any, name: str) -> dict[str, Any]:
    about = said if isinstance(said, dict) else {}
    text = {key: str(value) for key, value in about.items() if value is not None}
    cores = text.get("num_cpu", "")
    return {
        "identity": foreign.known(
            id=text.get("machine", name),
            cpu=text.get("cpu", ""),
            cores=int(cores) if cores.isdecimal() and len(cores) < 7 else None,
            memory=text.get("ram", ""),
            system=text.get("arch", ""),
        ),
        "settings": foreign.known(kernel=text.get("os", "")),
        "versions": foreign.known(python=text.get("python", "")),
    }


FORMAT: Final = Format(
    "asv", frozenset({"commit_hash", "result_columns", "results"}), Content, _reports
)
