"""Everything one case has to say: statistics, blocks, facts and how to repeat it."""

from __future__ import annotations

import re
import shlex
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from steelyard import units
from steelyard.analyse import stats
from steelyard.analyse.rows import Row
from steelyard.analyse.trial import UNKNOWN, Run, Trial
from steelyard.prepare.capsules import SUFFIX
from steelyard.report import text
from steelyard.report.grid import Line, Sheet, grid
from steelyard.units import NOTHING

RAW: Final = frozenset({"began_ns", "wall_ns", "spans", "mhz_before", "mhz_after"})
"""Stamps that doubts and other reports are made from; JSON exports have them."""


def reproduce(run: Run, row: Row, modes: str | None = None) -> str:
    """Return the command line that measures a row again as it was measured.

    Of an imported run it is as much of that as its file says.

    ``modes`` are those of its case, instead of the row's own.
    """
    if "imported" in run.settings:
        return run.command
    place = next((t.hashes["file"] for t in row.trials if "file" in t.hashes), "suites")
    if place.endswith(SUFFIX):  # it lay in a folder of the run
        return run.command
    words = ["steelyard", "run", place, "-k", row.case]
    plain = {n: v for n, v in row.axes.items() if re.fullmatch(r"[\w.+-]+", str(v))}
    words += [w for n, v in plain.items() for w in ("-p", f"{n}={v}")]
    words += ["--mode", modes or row.mode, "--seed", str(run.settings.get("seed", 0))]
    words += ["--blocks", str(1 + max((t.block for t in row.trials), default=0))]
    if run.settings.get("precision") is not None:
        words += ["--precision", f"{100 * run.settings['precision']:g}"]
    if run.machine.get("gpu") and run.settings.get("clock", "auto") != "auto":
        clock = run.settings["clock"]
        words += ["--clocks" if clock == "all" else "--clock", clock]
    if run.settings.get("check") is False:
        words.append("--no-check")
    for name, path in dict(run.settings.get("inputs", {})).items():
        words += ["--input", f"{name}=@{path}"]
    return shlex.join(words)


def page(run: Run, row: Row) -> Iterator[RenderableType]:
    """Yield all that is known of a row."""
    yield Text(f"\n{row.case} {row.mode}", style="bold")
    for error in row.errors:
        yield Text(f"failed: {error}", style="red")
    if not row.trials:
        return
    count = units.count(len(row.trials), "block")
    near = f" · {100 * row.peak.share:.1f} % of {row.peak.bound}" if row.peak else ""
    yield Text(
        f"{text.time(row)} {text.margin(row.estimate)} over {count}"
        f" · {text.gigabytes(row)} GB/s{near} · {row.histogram()}"
    )
    yield replace(blocks(row), title="")
    yield _facts(groups(row))
    yield Text(f"$ {reproduce(run, row)}", style="bold")


def groups(row: Row) -> dict[str, dict[str, str]]:
    """Return what is known of a row beside its times, by group and name."""
    last = row.trials[-1]
    found: dict[str, Mapping[str, Any]] = {
        "facts": last.facts,
        "floors (ns)": last.floors,
        "ledger (ns)": row.ledger(),
        "hashes": last.hashes,
        "extra": _reported(last.extra),
        "clock (ns)": _clock(last),
        "error bar (ns, half)": stats.budget(last),
    }
    return {
        group: {str(name): _shown(value) for name, value in values.items()}
        for group, values in found.items()
    }


def _reported(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a reader can use: no raw stamps, nothing that did not happen."""
    return {
        name: value
        for name, value in extra.items()
        if name not in RAW and value not in (None, False, 0, "", [], {}, ())
    }


def _clock(trial: Trial) -> dict[str, Any]:
    """Return which clock read a trial, and what is known of its errors."""
    clock = trial.clock
    return {
        "id": clock.id,
        "version": clock.version,
        "quantum": clock.quantum,
        "floor": statistics.median(clock.floor) if clock.floor else "-",
        "offset": clock.offset,
        "offset may be wrong by": clock.uncertainty,
        "drift (share)": clock.drift,
    }


def blocks(row: Row) -> Sheet[Line]:
    """Return every statistic: a line each, a column a block."""
    found = [_block(trial) for trial in row.trials]
    names = dict.fromkeys(chain.from_iterable(found))  # not all blocks know the same
    numbers = [str(trial.block) for trial in row.trials]
    lines = ((name, *(one.get(name, NOTHING) for one in found)) for name in names)
    return grid(f"{row.mode} by block", ("block",), numbers, lines)


def _block(trial: Trial) -> dict[str, str]:
    samples, found = trial.samples, stats.of(trial)
    wall = sum(samples.ticks)
    times = {
        "min": found.minimum,
        **dict(zip(("5 %", "25 %", "75 %", "95 %"), found.quantiles, strict=True)),
        "max": found.maximum,
        "mean": found.mean,
        "midmean": found.midmean,
        "standard deviation": found.deviation,
    }
    return {
        "estimate": units.duration(found.estimate.value),
        "half its 95 % interval": text.margin(found.estimate),
        **{name: units.duration(value) for name, value in times.items()},
        "variation": f"{100 * found.variation:.2g} %",
        "samples": str(found.samples),
        "launches a sample": str(samples.launches[0]),
        "CPU / wall": units.figures(sum(samples.cpu) / wall, 3)
        if wall and any(samples.cpu)
        else "-",
        "preempted samples": str(sum(map(bool, samples.preemptions))),
        "worker": str(trial.worker),
        "place in the plan": str(trial.position),
        **({"others on the GPU": _others(trial)} if "gpu" in trial.extra else {}),
        "histogram": stats.histogram(stats.corrected(trial)),
        "doubts": "\n".join(trial.doubts),
    }


def _others(trial: Trial) -> str:
    """Say how many processes had the GPU too; unknown, as in containers, is not none."""
    state = trial.extra["gpu"]
    seen = [state.get(when, {}).get("others") for when in ("before", "after")]
    known = [each for each in seen if isinstance(each, (list, tuple))]
    pids = {one["pid"] for each in known for one in each}
    if pids:
        return str(len(pids))
    return "none" if len(known) == len(seen) else UNKNOWN


def _facts(groups: Mapping[str, Mapping[str, str]]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column()
    table.add_column(overflow="fold")
    for group, values in groups.items():
        for index, (name, value) in enumerate(values.items()):
            table.add_row("" if index else group, Text(name), Text(value))
    return table


def _shown(value: Any) -> str:
    """Write a value as people do, and not as Python."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_shown(part)}" for name, part in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_shown, value))
    return units.figures(value) if isinstance(value, float) else str(value)
