"""Results of hyperfine (``--export-json``): times of whole commands.

The fields are those of ``BenchmarkResult`` (sharkdp/hyperfine, src/benchmark). The file
says neither when nor where, nor of which commit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NotRequired, TypedDict

from steelyard.store import foreign
from steelyard.store.foreign import Format, Report, Result, Seconds, Source, Window


class _Command(TypedDict):
    command: str
    mean: Seconds
    stddev: Seconds | None
    user: Seconds
    system: Seconds
    times: NotRequired[list[Seconds] | None]
    exit_codes: NotRequired[list[int | None]]
    parameters: NotRequired[dict[str, Any]]


class _File(TypedDict):
    results: list[_Command]


def _reports(found: _File, _: Source) -> Iterator[Report]:
    yield Report([_result(one) for one in found["results"]])


def _result(one: _Command) -> Result:
    # Processor time is a mean of all runs.
    used = one["user"] + one["system"]
    times, codes = one.get("times"), one.get("exit_codes") or []
    axes = one.get("parameters") or {}
    stated = None
    if not times:
        count = max(1, len(codes))
        times = [one["mean"]]
        stated = foreign.mean(one["mean"], one["stddev"] or 0.0, count)
    failed = [code for code in codes if code != 0]
    # hyperfine goes on after these with --ignore-failure; a signal leaves no code.
    ended = f"exit codes {sorted({str(code) for code in failed})}".replace("'", "")
    return Result(
        case=_name(one["command"], axes),
        mode="hyperfine",
        windows=[Window(time, processor=used) for time in times],
        axes=axes,
        stated=stated,
        error=f"{len(failed)} of {len(codes)} runs failed: {ended}" if failed else None,
    )


def _name(command: str, axes: dict[str, Any]) -> str:
    """Return a command with its parameters for their values, as it was asked for."""
    for name, value in axes.items():
        if value:
            whole = rf"(?<![\w.]){re.escape(str(value))}(?![\w.])"
            said = f"{{{name}}}".replace("\\", r"\\")
            command = re.sub(whole, said, command)
    return foreign.named(command, axes)


FORMAT: Final = Format("hyperfine", frozenset({"results"}), _File, _reports)
