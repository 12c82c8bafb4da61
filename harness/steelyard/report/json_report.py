"""A run as JSON for other programs.

::

    {
      "schema": 1,              raised when a key changes its meaning
      "run": {"uid", "started", "finished", "state", "command", "version", "commit",
              "dirty", "tags", "settings"},
      "machine": {"identity", "settings", "versions", "moment",
                  "gpu"},       where a case ran on one: its facts, and `peaks`
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
          "floor": 0.4,         what the clock reads around nothing, per launch
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
          "cpu": 410.0,         nanoseconds of processor time of the process, per launch
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
import math
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from steelyard import stats
from steelyard.errors import SteelyardError
from steelyard.gpu import agreement
from steelyard.machine import UNKNOWN
from steelyard.report.rows import block_estimate, floor_share, peak
from steelyard.storing import codec
from steelyard.storing.run import Run
from steelyard.trial import Trial

SCHEMA: Final = 1

CODE: Final = (
    *("code_hash", "compiler", "schedule"),
    *("registers", "spill_bytes", "shared_bytes", "blocks_per_multiprocessor"),
)
"""What is said of a trial's code, as the facts name it."""


def report(run: Run, trials: Sequence[Trial]) -> dict[str, Any]:
    """Return the document of a run."""
    values = asdict(run)
    hidden = {"machine", "writer"}
    return {
        "schema": SCHEMA,
        "run": _strict({k: v for k, v in values.items() if k not in hidden}),
        "machine": _strict(run.machine),
        "trials": [_strict(_trial(trial, _peaks(run))) for trial in trials],
    }


def dumps(run: Run, trials: Sequence[Trial]) -> str:
    """Return the document's text."""
    return json.dumps(report(run, trials), indent=2, allow_nan=False)


def require_writable(place: str) -> None:
    """Refuse a file that could not be written once the run is over.

    Raises:
        SteelyardError: its folder is missing or gives no permission.
    """
    path = Path(place)
    target = path if path.exists() else path.parent
    if place != "-" and (path.is_dir() or not os.access(target, os.W_OK)):
        raise SteelyardError(
            f"--json {place} cannot be written: {target} is a folder, is missing or gives "
            "no permission. Name a file in a folder that exists, or - for stdout."
        )


def write(place: str, run: Run, trials: Sequence[Trial]) -> None:
    """Write the document to a file, or to stdout for ``-``.

    Raises:
        SteelyardError: the disk refuses; the run is in the store all the same.
    """
    text = dumps(run, trials) + "\n"
    if place == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    try:
        Path(place).write_text(text, encoding="utf-8")
    except OSError as error:
        raise SteelyardError(
            f"--json {place}: {error.strerror}. The run is stored; write it with "
            "`steelyard show --format json`."
        ) from error


def _peaks(run: Run) -> Mapping[str, Any]:
    found: Mapping[str, Any] = run.machine.get("gpu", {}).get("peaks", {})
    return found


def _trial(trial: Trial, peaks: Mapping[str, Any]) -> dict[str, Any]:
    good = trial.error is None and len(trial.samples) > 0
    estimate = block_estimate(trial) if good else None
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
        **_clock(trial, good=good),
        **_device(trial),
        "peak": near and near.share,
        "peak_bound": near and near.bound,
        "doubts": trial.doubts,
        "error": trial.error,
    }


def _clock(trial: Trial, *, good: bool) -> dict[str, Any]:
    clock, samples = trial.clock, trial.samples
    return {
        "clock": clock.id,
        "quantum": clock.quantum,
        "offset": clock.offset,
        "budget": stats.budget(trial) if good else None,
        "clocks": _readings(trial) if good else None,
        "cpu": sum(samples.cpu) / sum(samples.launches) if good else None,
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


def _strict(value: Any) -> Any:
    """Return JSON values, null for what is no finite number."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(k): _strict(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(v) for v in value]
    return codec.plain(value)
