"""Results of asv: a file of its ``results_dir`` is a run; see `asv_results`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from steelyard.errors import SteelyardError
from steelyard.machine.decoding import Malformed
from steelyard.store import asv_results, foreign
from steelyard.store.asv_results import Content
from steelyard.store.foreign import Format, Report, Result, Source, Window


def _reports(found: Mapping[str, Any], source: Source) -> Iterator[Report]:
    if found.get("version") != asv_results.FORMAT:
        raise Malformed(
            f"it has version {found.get('version')!a}, expected {asv_results.FORMAT}"
        )
    if source.place is None:
        raise Malformed("their units are in a file beside: name a file, and no pipe")
    folder = source.place.absolute().parent
    try:
        names = asv_results.benchmarks(folder.parent)
        started = foreign.moment(asv_results.day(found))
    except (SteelyardError, ValueError, OverflowError, OSError) as error:
        raise Malformed(str(error)) from error
    yield Report(
        [
            _result(found, name, names[name], one)
            for name in names
            if name in found["results"]
            for one in asv_results.points(found, name)
        ],
        machine=_machine(found.get("params"), folder.name),
        started=started,
        commit=found["commit_hash"],
        dirty=False,  # asv measures commits
    )


def _result(
    found: Mapping[str, Any], name: str, parameters: list[str], one: asv_results.Result
) -> Result:
    named = [*parameters, *(f"arg{n}" for n in range(len(parameters), len(one.point)))]
    axes = {
        said: foreign.axis(value.strip("'\""))
        for said, value in zip(named, one.point, strict=False)
    }
    # As asv writes them, so that '1' and 1 are two cases.
    inside = ",".join(map("=".join, zip(named, one.point, strict=False)))
    launches = round(asv_results.number(one.row, "stats_number", one.at) or 1)
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
        method=" ".join(asv_results.method(found, one)),
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
