"""Results of google-benchmark (``--benchmark_out_format=json``).

The fields are those of its ``json_reporter.cc`` (google/benchmark, src). Each repetition
is a window of its iterations; a file of aggregates alone has a mean with its deviation.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, NotRequired, TypedDict

from steelyard.machine.decoding import Malformed, Within
from steelyard.store import foreign
from steelyard.store.foreign import Count, Format, Report, Result, Source, Window

UNITS: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}

SUFFIX: Final = re.compile(r"/(?:(\w+):)?([^/:]+)$")
"""An argument, or what was set of a benchmark, at the end of its name."""

TIMERS: Final = ("real_time", "process_time", "manual_time")
"""Words of a name that say which time decides."""

SETTINGS: Final = ("repeats", "min_time", "min_warmup_time", "iterations")
"""What a name has beside arguments: how long it was measured."""

Time = Annotated[float, Within(0, 1e18)]


class _Run(TypedDict):
    name: str
    run_name: NotRequired[str]
    run_type: NotRequired[str]
    aggregate_name: NotRequired[str]
    family_index: NotRequired[int]
    per_family_instance_index: NotRequired[int]
    repetitions: NotRequired[Count]
    iterations: NotRequired[Count]
    real_time: NotRequired[Time]
    cpu_time: NotRequired[float]
    time_unit: NotRequired[str]
    bytes_per_second: NotRequired[Time]
    items_per_second: NotRequired[Time]
    error_occurred: NotRequired[bool]
    error_message: NotRequired[str]
    skipped: NotRequired[bool]


class _File(TypedDict):
    context: dict[str, Any]
    benchmarks: list[_Run]


def _reports(found: _File, _: Source) -> Iterator[Report]:
    context, when = found["context"], found["context"].get("date")
    named: dict[tuple[Any, ...], list[_Run]] = defaultdict(list)
    for one in found["benchmarks"]:
        family = one.get("family_index"), one.get("per_family_instance_index")
        named[one.get("run_name", one["name"]), *family].append(one)
    yield Report(
        [one for (name, *_), group in named.items() for one in _results(name, group)],
        version=str(context.get("library_version", "")),
        machine=_machine(context),
        started=foreign.moment(str(when)) if when else None,
        command=str(context.get("executable", "")),
    )


def _results(name: str, group: Sequence[_Run]) -> Iterator[Result]:
    base, axes = _axes(name)
    case = foreign.named(base, axes)
    same: dict[str, Any] = {"case": case, "mode": "google-benchmark", "axes": axes}
    failed = next((one for one in group if one.get("error_occurred")), None)
    if failed is not None:
        yield Result(**same, error=failed.get("error_message") or "it failed")
        return
    single = [one for one in group if one.get("run_type", "iteration") == "iteration"]
    timed = [one for one in single if "real_time" in one and not one.get("skipped")]
    if timed:
        windows = [_window(one) for one in timed]
        yield Result(**same, windows=windows, facts=_facts(name, timed[-1]))
        return
    means = {one.get("aggregate_name"): one for one in group if "real_time" in one}
    if "mean" in means:
        whole = means["mean"]
        window, count = _window(whole), whole.get("repetitions", 1)
        spread = _window(means["stddev"]).seconds if "stddev" in means else 0.0
        stated = foreign.mean(window.seconds, spread, count)
        facts = _facts(name, whole)
        yield Result(**same, windows=[window], stated=stated, facts=facts)


def _window(one: _Run) -> Window:
    unit = one.get("time_unit", "ns")
    if unit not in UNITS:
        raise Malformed(f"{one['name']} has the unit {unit!a}")
    processor = max(one.get("cpu_time", 0.0), 0.0)  # it may be a difference of two
    if "real_time" not in one:
        raise Malformed(f"{one['name']} has no real_time")
    scale, launches = UNITS[unit], one.get("iterations", 1)
    return Window(scale * one["real_time"], launches, scale * processor)


def _facts(name: str, one: _Run) -> dict[str, Any]:
    """Return what one iteration moved: rates are over the time that decides."""
    window = _window(one)
    own = any(f"/{word}" in name for word in TIMERS)
    over = window.seconds if own else window.processor
    rates = {"bytes": "bytes_per_second", "items": "items_per_second"}
    found: Mapping[str, Any] = one
    return {what: found[rate] * over for what, rate in rates.items() if rate in found}


def _axes(name: str) -> tuple[str, dict[str, Any]]:
    """Return a name without its arguments, and these: ``BM_Copy/8/threads:2``."""
    found: list[tuple[str, str]] = []
    base = name
    while (last := SUFFIX.search(base)) and _is_axis(last[1], last[2]):
        found.append((last[1] or ("timer" if last[2] in TIMERS else ""), last[2]))
        base = base[: last.start()]
    kept = [one for one in found[::-1] if one[0] not in SETTINGS]
    axes = {said or f"arg{at}": foreign.axis(v) for at, (said, v) in enumerate(kept)}
    # A name that repeats itself is kept as it is: no two cases are one.
    return (base, axes) if len(axes) == len(kept) else (name, {})


def _is_axis(name: str | None, value: str) -> bool:
    return bool(name) or value in TIMERS or re.fullmatch(r"-?\d+", value) is not None


def _machine(context: Mapping[str, Any]) -> dict[str, Any]:
    caches = context.get("caches")
    sizes = {
        f"L{one.get('level')} {one.get('type')}": {"bytes": size}
        for one in (caches if isinstance(caches, list) else ())
        if isinstance(one, dict) and (size := foreign.count(one.get("size")))
    }
    load = context.get("load_avg")
    return {
        "identity": foreign.known(
            id=str(context.get("host_name", "")),
            cores=foreign.count(context.get("num_cpus")),
            caches=sizes or None,
        ),
        "settings": foreign.known(
            scaling=str(context.get("cpu_scaling_enabled", "")),
            aslr=str(context.get("aslr_enabled", "")),
        ),
        "versions": foreign.known(build=str(context.get("library_build_type", ""))),
        "moment": foreign.known(
            mhz=foreign.count(context.get("mhz_per_cpu")),
            load=load[0] if isinstance(load, list) and load else None,
        ),
    }


FORMAT: Final = Format(
    "google-benchmark", frozenset({"context", "benchmarks"}), _File, _reports
)
