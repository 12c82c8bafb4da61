"""Results of pytest-benchmark (``--benchmark-json``, ``--benchmark-save``).

The fields are those of its `Metadata.as_dict` and of the hook
``pytest_benchmark_generate_json``. A saved run has no samples, unless it was saved with
``--benchmark-save-data``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NotRequired, TypedDict

from steelyard.analyse.trial import UNKNOWN
from steelyard.store import foreign
from steelyard.store.foreign import (
    Count,
    Format,
    Report,
    Result,
    Seconds,
    Source,
    Window,
)


class _Stats(TypedDict):
    mean: Seconds
    stddev: Seconds
    rounds: Count
    iterations: Count
    data: NotRequired[list[Seconds]]


class _Benchmark(TypedDict):
    fullname: str
    params: NotRequired[dict[str, Any] | None]
    options: NotRequired[dict[str, Any]]
    stats: _Stats


class _Commit(TypedDict):
    id: NotRequired[str | None]
    dirty: NotRequired[bool]


class _File(TypedDict):
    machine_info: dict[str, Any]
    commit_info: NotRequired[_Commit]
    benchmarks: list[_Benchmark]
    datetime: NotRequired[str]
    version: NotRequired[str]


def _reports(found: _File, _: Source) -> Iterator[Report]:
    about, commit = found["machine_info"], found.get("commit_info") or {}
    when = found.get("datetime")
    yield Report(
        [_result(one) for one in found["benchmarks"]],
        version=found.get("version", ""),
        machine=_machine(about),
        started=foreign.moment(when) if when else None,
        commit=commit.get("id"),
        dirty=commit.get("dirty"),
    )


def _result(one: _Benchmark) -> Result:
    stats = one["stats"]
    count, launches = stats["rounds"], stats["iterations"]
    stated = None
    windows = [Window(time, launches) for time in stats.get("data") or ()]
    if not windows:
        windows = [Window(stats["mean"], min(count * launches, foreign.MOST))]
        stated = foreign.mean(stats["mean"], stats["stddev"], count)
    return Result(
        case=one["fullname"],  # with pytest's own name of the parameters
        mode="pytest-benchmark",
        windows=windows,
        axes=one.get("params") or {},
        stated=stated,
        clock=str(one.get("options", {}).get("timer", UNKNOWN)),
    )


def _machine(about: Mapping[str, Any]) -> dict[str, Any]:
    cpu = about.get("cpu")
    cpu = cpu if isinstance(cpu, dict) else {}
    system = f"{about.get('system', '')} {about.get('machine', '')}".strip()
    return {
        "identity": foreign.known(
            id=str(about.get("node", "")),
            cpu=str(cpu.get("brand_raw", "")),
            cores=foreign.count(cpu.get("count")),
            system=system,
        ),
        "settings": foreign.known(kernel=str(about.get("release", ""))),
        "versions": foreign.known(
            python=str(about.get("python_version", "")),
            implementation=str(about.get("python_implementation", "")),
        ),
    }


FORMAT: Final = Format(
    "pytest-benchmark", frozenset({"machine_info", "benchmarks"}), _File, _reports
)
