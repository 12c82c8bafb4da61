"""Results of nvbench (``--json``): kernels on GPUs, a run for each GPU.

The fields are those of its ``json_printer.cu``, the tags those of ``measure_cold.cu``,
``measure_hot.cu`` and ``measure_cpu_only.cxx`` (NVIDIA/nvbench). Numbers are texts there.
With ``--jsonbin`` samples lie in files beside; otherwise there are means with deviations.
"""

from __future__ import annotations

import itertools
import math
import shlex
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, NotRequired, TypedDict

from steelyard.machine import files
from steelyard.machine.decoding import Malformed, Within
from steelyard.store import foreign
from steelyard.store.foreign import Format, Report, Result, Source, Window


class _Value(TypedDict):
    name: str
    value: str | float | None


class _Summary(TypedDict):
    tag: str
    data: NotRequired[list[_Value] | None]


class _State(TypedDict):
    device: NotRequired[int | None]
    axis_values: list[_Value] | None
    summaries: list[_Summary] | None
    is_skipped: bool
    skip_reason: NotRequired[str]


class _Benchmark(TypedDict):
    name: str
    states: list[_State] | None


class _Device(TypedDict):
    id: int
    name: str
    global_memory_size: NotRequired[Annotated[int, Within(0, 2**63 - 1)]]
    l2_cache_size: NotRequired[Annotated[int, Within(0, 2**63 - 1)]]


class _File(TypedDict):
    meta: dict[str, Any]
    devices: list[_Device] | None
    benchmarks: list[_Benchmark] | None


@dataclass(frozen=True, slots=True)
class _Kind:
    """A measurement, and which tags say what it came to."""

    mode: str
    times: str
    """Begin the tags of its times."""
    count: str
    samples: str = ""
    """The tag that names the file of its samples."""
    on_gpu: bool = True


KINDS: Final = (
    _Kind(
        "nvbench/cold",
        "nv/cold/time/gpu",
        "nv/cold/sample_size",
        "nv/json/bin:nv/cold/sample_times",
    ),
    _Kind("nvbench/batch", "nv/batch/time/gpu", "nv/batch/sample_size"),
    _Kind(
        "nvbench/cpu_only",
        "nv/cpu_only/time/cpu",
        "nv/cpu_only/sample_size",
        "nv/json/bin:nv/cpu_only/sample_times",
        on_gpu=False,
    ),
)


def _reports(found: _File, source: Source) -> Iterator[Report]:
    meta, cases = found["meta"], found["benchmarks"] or []
    argv = meta.get("argv")
    devices = {one["id"]: one for one in found["devices"] or ()}
    every = [(one["name"], state) for one in cases for state in one["states"] or ()]
    for device in dict.fromkeys(state.get("device") for _, state in every):
        states = [one for one in every if one[1].get("device") == device]
        results = [r for name, state in states for r in _results(name, state, source)]
        yield Report(
            results,
            version=_version(meta),
            machine=_machine(devices.get(device) if device is not None else None),
            command=shlex.join(map(str, argv)) if isinstance(argv, list) else "",
        )


def _version(meta: Mapping[str, Any]) -> str:
    said = meta.get("version")
    own = said.get("nvbench") if isinstance(said, dict) else None
    return str(own.get("string", "")) if isinstance(own, dict) else ""


def _results(name: str, state: _State, source: Source) -> Iterator[Result]:
    axes = {
        one["name"]: foreign.axis(one["value"]) for one in state["axis_values"] or ()
    }
    case = foreign.named(name, axes)
    if state["is_skipped"]:
        reason = state.get("skip_reason") or "it was skipped"
        yield Result(case, KINDS[0].mode, axes=axes, error=reason, on_gpu=True)
        return
    said = {
        one["tag"]: {value["name"]: value["value"] for value in one.get("data") or ()}
        for one in state["summaries"] or ()
    }
    for kind in KINDS:
        mean = _number(said, f"{kind.times}/mean")
        if mean is None:
            continue
        count = max(1, round(_number(said, kind.count) or 1))
        spread = _number(said, f"{kind.times}/stdev/absolute")
        windows = [Window(one) for one in _samples(said.get(kind.samples), source)]
        stated = None if windows or not spread else foreign.mean(mean, spread, count)
        yield Result(
            case,
            kind.mode,
            windows or [Window(mean, count)],
            axes,
            stated,
            facts=_facts(said, mean, kind.times.split("/")[1]),
            on_gpu=kind.on_gpu,
        )


def _number(said: Mapping[str, Mapping[str, Any]], tag: str) -> float | None:
    """Return the value of a summary; None of one that is not there, or no number."""
    value = said.get(tag, {}).get("value")
    if value is None:
        return None
    try:
        number = float(value)
    except ValueError as error:
        raise Malformed(f"{tag} is {value!a}, expected a number") from error
    return number if math.isfinite(number) else None


def _facts(said: Mapping[str, Any], mean: float, kind: str) -> dict[str, Any]:
    """Return what one launch moved: nvbench says rates."""
    rates = {
        "bytes": f"nv/{kind}/bw/global/bytes_per_second",
        "items": f"nv/{kind}/bw/item_rate",
    }
    found = {what: _number(said, tag) for what, tag in rates.items()}
    return {what: rate * mean for what, rate in found.items() if rate}


def _samples(said: Mapping[str, Any] | None, source: Source) -> list[float]:
    """Return the seconds of a file of float32 beside the results; none if it is gone."""
    place = Path(str((said or {}).get("filename", "")))
    inside = not place.is_absolute() and ".." not in place.parts and place.name
    if source.place is None or not inside:
        return []
    try:
        content = files.read(source.place.parent / place, follow=False)
    except OSError:
        return []
    if len(content) % 4:
        raise Malformed(f"{place.name} has {len(content)} bytes, expected float32")
    return list(itertools.chain.from_iterable(struct.iter_unpack("<f", content)))


def _machine(device: _Device | None) -> dict[str, Any]:
    if device is None:
        return {}
    facts: Mapping[str, Any] = device
    return {
        "gpu": foreign.known(
            name=device["name"],
            memory=device.get("global_memory_size"),
            l2=device.get("l2_cache_size"),
            ecc=str(facts.get("ecc_state", "")),
            multiprocessors=foreign.count(facts.get("number_of_sms")),
        )
    }


FORMAT: Final = Format(
    "nvbench", frozenset({"meta", "devices", "benchmarks"}), _File, _reports
)
