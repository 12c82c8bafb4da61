"""A run as JSON for other programs.

::

    {
      "schema": 1,              raised when a key changes its meaning
      "run": {"uid", "started", "finished", "state", "command", "version", "commit",
              "dirty", "tags", "settings"},
      "machine": {"identity", "settings", "versions", "moment",
                  "gpu"},       where a case ran on one: its facts, and `peaks`
      "rows": [                 one a case and mode, over all its blocks, as it is printed
        {
          "case": "copy[n=1000]",
          "axes": {"n": 1000},
          "mode": "kernel/cold",
          "estimate": 3200.0,   per launch; null, with low and high, where it failed
          "low": 3190.0,        the 95 % interval over blocks
          "high": 3212.0,
          "unit": "ns",
          "blocks": 4,
          "samples": 160,       windows of all blocks
          "minimum": 3150.0,    the fastest window, per launch
          "floor": 0.0001,      what the clock reads around nothing, as a share of a launch
          "bytes_per_second": 2.5e9,    or null; so operations and items
          "operations_per_second": null,
          "items_per_second": null,
          "relative": null,     time over that of --relative-to's case, with its interval
          "relative_low": null,
          "relative_high": null,
          "peak": 0.93,         share of what the GPU does at most, or null
          "peak_bound": "copy", at what
          "ledger": {},         of a latency or a first build: nanoseconds of each part
          "doubts": ["preempted"],
          "errors": []          why blocks failed
        }
      ],
      "trials": [               one a case, mode and block, as they were measured
        {
          "case": "copy[n=1000]",
          "axes": {"n": 1000},
          "mode": "kernel/cold",
          "block": 0,
          "estimate": 3200.0,   per launch; null, with low and high, where it failed
          "low": 3190.0,        the 95 % interval of this block alone
          "high": 3212.0,
          "unit": "ns",
          "launches": 100,      in one window; null where there is no window
          "samples": 40,        windows
          "bytes": 8000,        of one launch, or null; so operations and items
          "operations": null,
          "items": null,
          "floor": 0.4,         what is read around nothing, per launch; with the call
                                of a Python callable
          "floors": {"empty": 20.0, "null": 22.0, "call": 41.0},    of one window
          "ledger": {},         of a latency or a first build: nanoseconds of each part
          "code_hash": "...",   or null where it is not known
          "compiler": "...",    its name and build; null where nothing was compiled
          "schedule": "...",    the knobs it was built with, or null
          "registers": 40,      of a thread of a GPU's code, or null; so spill_bytes
          "spill_bytes": 0,     (of a thread) and shared_bytes (of a block)
          "shared_bytes": 0,
          "blocks_per_multiprocessor": 8,       that fit at once, or null
          "library": null,      whose kernels they are, with its version, if not ours
          "clock": "cupti",     which read the windows
          "quantum": 32.0,      its tick
          "offset": 0.0,        what it read of each window beside the launches
          "budget": {"sampling", "quantum", "offset", "drift"},     parts of half the
                                interval, nanoseconds per launch
          "clocks": {"cupti": {"estimate", "low", "high"}, ...},    this one and those
                                that read the same kernel beside it, each by itself
          "cpu": 410.0,         nanoseconds of processor time of the process, per launch,
                                or null
          "kernels": 1,         of the GPU in one launch, or null
          "mhz": 1980,          of a GPU's multiprocessors: median and least of the
          "mhz_least": 1965,    samples, or null
          "joules": null,       of one launch, where it was metered
          "watts": null,        meanwhile
          "peak": 0.93,         share of what the GPU does at most, or null
          "peak_bound": "copy", at what
          "gpu": {"before", "after",    its state round the trial, and nanoseconds of
                  "capped"},    the samples with its clock held back, by why; or null
          "ncu": null,          what the counters of Nsight Compute read
          "coldness": "unknown",        or proven, or contradicted, by those counters
          "coldness_why": null,
          "doubts": ["preempted"],
          "error": null         or the sentence why it failed
        }
      ]
    }

It is strict JSON: what is not a finite number is null.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from steelyard.analyse import agreement, stats
from steelyard.analyse.compare import Comparison
from steelyard.analyse.rows import (
    Row,
    block_estimate,
    floor_share,
    peak,
    rows,
    with_peaks,
)
from steelyard.analyse.stats import Estimate
from steelyard.analyse.trial import UNKNOWN, Run, Trial
from steelyard.machine import files
from steelyard.store.codec import strict

SCHEMA: Final = 1

QUANTITIES: Final = ("bytes", "operations", "items")
"""Facts of a launch that have a rate."""

CODE: Final = (
    *("code_hash", "compiler", "schedule"),
    *("registers", "spill_bytes", "shared_bytes", "blocks_per_multiprocessor"),
)
"""What is said of a trial's code, as the facts name it."""


def report(
    run: Run, trials: Sequence[Trial], made: Sequence[Row] | None = None
) -> dict[str, Any]:
    """Return the document of a run; ``made`` are its rows where they are known."""
    values = asdict(run)
    if made is None:
        made = with_peaks(rows(trials), run.peaks)
    hidden = {"machine", "writer"}
    return {
        "schema": SCHEMA,
        "run": strict({k: v for k, v in values.items() if k not in hidden}),
        "machine": strict(run.machine),
        "rows": [row_record(row) for row in made],
        "trials": [strict(_trial(trial, run.peaks)) for trial in trials],
    }


def row_record(row: Row) -> dict[str, Any]:
    """Return a row as it is printed, with its numbers in full."""
    record = {
        "case": row.case,
        "axes": row.axes,
        "mode": row.mode,
        **interval("estimate", row.estimate),
        "unit": "ns",
        "blocks": len(row.trials),
        "samples": row.samples,
        "minimum": row.minimum if row.trials else None,
        "floor": row.floor,
        **{f"{what}_per_second": row.rate(what) for what in QUANTITIES},
        **interval("relative", row.relative, "relative_"),
        "peak": row.peak and row.peak.share,
        "peak_bound": row.peak and row.peak.bound,
        "ledger": row.ledger(),
        "doubts": row.doubts,
        "errors": row.errors,
    }
    found: dict[str, Any] = strict(record)
    return found


def interval(name: str, found: Estimate | None, before: str = "") -> dict[str, Any]:
    """Return an estimate under a name, with ``low`` and ``high`` behind ``before``."""
    ends = (found.value, found.low, found.high) if found else (None, None, None)
    return dict(zip((name, f"{before}low", f"{before}high"), ends, strict=True))


def comparison_record(one: Comparison) -> dict[str, Any]:
    """Return one case of two runs with its numbers in full."""
    record = {
        "case": one.case,
        "mode": one.mode,
        **interval("base", one.base, "base_"),
        **interval("new", one.new, "new_"),
        "unit": "ns",
        **interval("ratio", one.ratio),
        "differs": one.differs if one.ratio else None,
        "note": one.note,
    }
    found: dict[str, Any] = strict(record)
    return found


def dumps(run: Run, trials: Sequence[Trial], made: Sequence[Row] | None = None) -> str:
    """Return the document's text."""
    return text_of(report(run, trials, made))


def text_of(document: Mapping[str, Any]) -> str:
    """Return strict JSON."""
    return json.dumps(document, indent=2, allow_nan=False)


def write(place: str, text: str) -> None:
    """Write a document to a file, or to stdout for ``-``.

    Raises:
        SteelyardError: the disk refuses; the run is in the store all the same.
    """
    text += "\n"
    if place == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    hint = "The run is stored; write it with `steelyard show --format json`."
    files.save(place, text, "--json", hint)


def _trial(trial: Trial, peaks: Mapping[str, Any]) -> dict[str, Any]:
    estimate = block_estimate(trial) if trial.usable else None
    near = peak([trial], estimate, peaks)
    return {
        "case": trial.case,
        "axes": trial.axes,
        "mode": trial.mode,
        "block": trial.block,
        "estimate": estimate and estimate.value,
        "low": estimate and estimate.low,
        "high": estimate and estimate.high,
        "unit": "ns",
        "launches": next(iter(trial.samples.launches), None),
        "samples": len(trial.samples),
        "bytes": trial.facts.get("bytes"),
        "operations": trial.facts.get("operations"),
        "items": trial.facts.get("items"),
        "floor": floor_share(trial),
        "floors": trial.floors,
        "ledger": trial.ledger,
        **{name: trial.facts.get(name) for name in CODE},
        **_clock(trial, good=trial.usable),
        **_device(trial),
        "peak": near and near.share,
        "peak_bound": near and near.bound,
        "doubts": trial.doubts,
        "error": trial.error,
    }


def _clock(trial: Trial, *, good: bool) -> dict[str, Any]:
    clock, samples = trial.clock, trial.samples
    used = sum(samples.cpu)
    return {
        "clock": clock.id,
        "quantum": clock.quantum,
        "offset": clock.offset,
        "budget": stats.budget(trial) if good else None,
        "clocks": _readings(trial) if good else None,
        "cpu": used / sum(samples.launches) if good and used else None,
    }


def _readings(trial: Trial) -> dict[str, Any]:
    return {
        name: {"estimate": found.value, "low": found.low, "high": found.high}
        for name, found in agreement.readings(trial).items()
    }


def _device(trial: Trial) -> dict[str, Any]:
    """Return what is known of the GPU that a trial ran on, null for a CPU's."""
    extra, mhz = trial.extra, [each for each in trial.samples.mhz if each]
    state = extra.get("gpu", {})
    energy = state.get("energy", {})
    return {
        "kernels": trial.facts.get("kernels"),
        "library": trial.facts.get("library"),
        "mhz": statistics.median(mhz) if mhz else None,
        "mhz_least": min(mhz, default=None),
        "joules": energy.get("joules_per_launch"),
        "watts": energy.get("watts"),
        "gpu": state or None,
        "ncu": trial.facts.get("ncu"),
        "coldness": extra.get("coldness", UNKNOWN),
        "coldness_why": extra.get("coldness_why"),
    }
