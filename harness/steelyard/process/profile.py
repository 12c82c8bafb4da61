"""Have Nsight Compute count one clean launch of each case: ``run --profile ncu``.

The launch is made by a fresh process, ``python -m steelyard.process.profile``, between a
profiler's marks. Its command line is anybody's to run by hand.
"""

from __future__ import annotations

import csv
import json
import math
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from steelyard import units
from steelyard.analyse.doubts.caches import WRONG_CACHE
from steelyard.analyse.trial import Trial
from steelyard.declare.handles import CUDA
from steelyard.declare.plan import PlannedTrial, Settings
from steelyard.errors import SteelyardError
from steelyard.process import scratch, stage
from steelyard_device.errors import DeviceError

MODULE: Final = "steelyard.process.profile"

PASSES: Final = 10
"""ncu starts the program anew for each pass over its counters. Our metrics take fewer,
so it may be silent for this many times as long as a case."""

KEYS: Final = ("must", "working_set", "l2_bytes")
"""What the fresh process says of its launch, as `coldness` takes it."""

MISSING: Final = (
    "there is no ncu on PATH, so nothing is counted here: install Nsight Compute, or "
    "run these command lines where it is."
)


class RefusedError(SteelyardError):
    """ncu counted nothing, and why; ``always`` if it will of no other case either."""

    def __init__(self, sentence: str, *, always: bool = False) -> None:
        super().__init__(sentence)
        self.always = always


@dataclass(frozen=True, slots=True)
class Profile:
    """What ncu counted of one launch, and whether that launch was as cold as it says."""

    counted: Mapping[str, Any]
    coldness: Coldness


Profiles = Mapping[tuple[str, str], Profile]
"""By the ids of cases and the state of their caches."""


def profiles(
    turns: Sequence[PlannedTrial], settings: Settings, say: Callable[[str], None]
) -> Profiles:
    """Profile the cases of a plan that run on a GPU, each state of the caches once.

    Each command line is said; so is, in a sentence, what cannot be counted.
    """
    points = [p for p in stage.points(turns) if p[0].device() == CUDA]
    if not points:
        say("--profile ncu: no chosen case runs on a GPU, and ncu sees nothing else.")
        return {}
    stopped = "" if shutil.which("ncu") else MISSING
    version = "" if stopped else _version()
    found: dict[tuple[str, str], Profile] = {}
    for case, cache in points:
        program = stage.program(MODULE, case, cache, settings)
        say(shlex.join(command(program)))
        if stopped:
            continue
        try:
            profile = _profile(program, cache, settings.timeout * PASSES)
        except SteelyardError as error:
            say(f"--profile ncu: {case.id} {cache}: {error}")
            if isinstance(error, RefusedError) and error.always:
                stopped = str(error)
            continue
        counted = {**profile.counted, "version": version}
        found[case.id, cache] = replace(profile, counted=counted)
    if stopped is MISSING:
        say(f"--profile ncu: {stopped}")
    return found


def attach(trial: Trial, found: Profiles) -> Trial:
    """Return a trial with what was counted of its case in its mode's caches."""
    quantity, cache, *_ = trial.mode.split("/")
    profile = found.get((trial.case, cache))
    if profile is None or quantity == "build":
        return trial
    verdict, why = profile.coldness.verdict, profile.coldness.why
    doubts = set(trial.doubts)
    if verdict == "contradicted":
        doubts.add(WRONG_CACHE.name)
    return replace(
        trial,
        facts={**trial.facts, "ncu": profile.counted},
        extra={**trial.extra, "coldness": verdict, "coldness_why": why},
        doubts=tuple(sorted(doubts)),
    )


def _profile(program: Sequence[str], cache: str, seconds: float) -> Profile:
    """Run ncu on a program and read what it counted.

    Raises:
        RefusedError: it counted nothing.
        SteelyardError: it was not done in time.
    """
    with scratch.folder() as folder:
        file = Path(folder, "ncu.csv")
        said = stage.run(command(program, log=str(file)), seconds)
        log = file.read_text(errors="replace") if file.exists() else ""
    kernels, answer = parse(log), said.answer(KEYS)
    if not kernels or answer is None:
        sentence = refusal(log, said.reason(), said.code)
        raise RefusedError(sentence, always=FORBIDDEN in log)
    counted = total(kernels)
    return Profile(counted, coldness(cache, counted=counted, **answer))


def _version() -> str:
    """Return ncu's version, ``2025.3.1.0``; nothing where it does not tell."""
    found = re.search(r"Version (\S+)", stage.run(["ncu", "--version"], 60).output)
    return found.group(1) if found else ""


def main(*line: str) -> None:
    """Launch the case once between the marks, its caches cold or warm."""
    from steelyard_device.cuda import profiler

    case, prepare, _ = stage.opened(*line)
    staged = prepare()
    if staged.context is None:
        raise SteelyardError(f"{case.id} runs on the CPU, where ncu sees nothing.")
    for _, step in staged.before:
        step()
    staged.work.wait()
    with profiler.marked(staged.context):
        staged.work.launch(1)
        staged.work.wait()
    l2_bytes = staged.context.device.l2_bytes
    answer = (staged.must_read(), staged.prepared.buffers.nbytes, l2_bytes)
    print(json.dumps(dict(zip(KEYS, answer, strict=True))))  # noqa: T201 # the answer


METRICS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "time_ns": "gpu__time_duration.sum",
        "eligible_warps": "smsp__warps_eligible.avg.per_cycle_active",
        "occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
        "dram_read": "dram__bytes_read.sum",
        "dram_written": "dram__bytes_write.sum",
        "l2_read": "lts__t_sectors_op_read.sum",
        "l2_hit": "lts__t_sectors_op_read_lookup_hit.sum",
    }
)
"""Our names of what is counted, and ncu's: three passes on an H200, one without the L2
cache's hits."""

SUMMED: Final = ("time_ns", "dram_read", "dram_written", "l2_read", "l2_hit")
"""Of several kernels these are added up; the others are means weighted by time."""

SCALES: Final = MappingProxyType({"l2_read": 32.0, "l2_hit": 32.0, "occupancy": 0.01})
"""To bytes (a sector of the L2 cache has 32) and to a share."""

OPTIONS: Final = (
    "--profile-from-start",  # only between our marks
    "off",
    "--clock-control",  # the clock that everything else was measured at
    "none",
    "--cache-control",  # the caches as we left them: they are what is looked at
    "none",
    "--replay-mode",  # a second pass in one process would find what the first left
    "application",
    "--csv",
    "--print-units",  # nanoseconds and bytes, no prefixes
    "base",
)


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel that ncu looked at, and what it counted under our names."""

    name: str
    counted: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Coldness:
    """Whether a launch found the caches as its mode says, and the figures."""

    verdict: str
    """``proven``, ``contradicted`` or ``unknown``."""
    why: str


def command(
    program: Sequence[str], metrics: Sequence[str] = (), log: str = ""
) -> list[str]:
    """Return the command line that has ncu look at a program.

    ``log`` is a file for what ncu says, which otherwise stands among what the program
    prints; ``metrics`` are ncu's names, all of ours by default.
    """
    names = ",".join(metrics or METRICS.values())
    files = ["--log-file", log] if log else []
    return ["ncu", *OPTIONS, *files, "--metrics", names, *program]


def parse(log: str) -> tuple[Kernel, ...]:
    """Read the kernels of ncu's CSV, in the order they ran; its own lines are skipped."""
    lines = [line for line in log.splitlines() if not line.startswith("==")]
    begin = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if begin is None:
        return ()
    ours = {theirs: name for name, theirs in METRICS.items()}
    found: dict[str, tuple[str, dict[str, float]]] = {}
    for row in csv.DictReader(lines[begin:]):
        _, counted = found.setdefault(row["ID"], (row["Kernel Name"], {}))
        name = ours.get(row["Metric Name"])
        value = _number(row["Metric Value"] or "")  # nothing where the log is cut
        if name is not None and value is not None:
            counted[name] = value * SCALES.get(name, 1.0)
    return tuple(Kernel(name, counted) for name, counted in found.values())


def _number(text: str) -> float | None:
    """Return a number; nothing where ncu could not count, ``n/a`` and the like."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def total(kernels: Sequence[Kernel]) -> dict[str, float]:
    """Return what several kernels count together, and how many they are.

    What was not counted of each is left out.
    """
    found: dict[str, float] = {"kernels": len(kernels)}
    weights = [max(kernel.counted.get("time_ns", 1.0), 1.0) for kernel in kernels]
    for name in METRICS:
        values = [k.counted[name] for k in kernels if name in k.counted]
        if not values or len(values) < len(kernels):
            continue
        if name in SUMMED:
            found[name] = math.fsum(values)
        else:
            weighted = (v * w for v, w in zip(values, weights, strict=True))
            found[name] = math.fsum(weighted) / math.fsum(weights)
    return found


FORBIDDEN: Final = "ERR_NVGPUCTRPERM"
"""What ncu says where counters are for administrators only."""


def refusal(log: str, reason: str, code: int) -> str:
    """Say in one sentence why a log has no kernel.

    ``reason`` is the last line of the program's errors, ``code`` how ncu ended.
    """
    if FORBIDDEN in log:
        return (
            f"ncu may not read this GPU's counters ({FORBIDDEN}): have an "
            "administrator load the driver with NVreg_RestrictProfilingToAdminUsers=0."
        )
    if "application returned an error code" in log and reason:
        return f"the launch under ncu failed: {reason}"
    said = re.findall(r"^==ERROR== (.+)$", log, re.MULTILINE)
    if said:
        return f"ncu counted nothing: {said[0].rstrip('.')}. Run its command by hand."
    if not code:
        return (
            "ncu found no kernel in the launch, and sees neither the driver's copies and "
            "fills nor other processes: profile work that launches kernels."
        )
    return f"ncu ended with exit code {code}: {reason or 'it said nothing'}."


MUST: Final = 0.95
"""Share of the bytes it must read that a cold launch is seen to read from memory. On an
H200 it is all of them and 256 bytes, from 64 KiB to 200 MiB."""

MAY: Final = 0.1
"""Share of those bytes that a warm launch may read from memory; there it is 0.01 %."""

BESIDE: Final = 8 << 10
"""Bytes that a launch may read beside its data (code, arguments, page tables; a null
kernel reads 2.5 KiB cold): of fewer nothing can be told."""

FITS: Final = 0.5
"""Share of the L2 cache in which data surely stays: an H200's has two halves, and either
may hold what the other one does. A copy of 0.4 of it stays, of 0.67 a third does not."""


def coldness(
    cache: str,
    *,
    must: float,
    working_set: int,
    l2_bytes: int,
    counted: Mapping[str, float],
) -> Coldness:
    """Hold what was read from memory against what the mode says.

    ``must`` are the bytes of a launch's inputs, each of which it reads once and more.
    """
    read = counted.get("dram_read")
    if read is None:
        return Coldness("unknown", "ncu did not count what was read from memory")
    seen = f"{units.size(read)} of its {units.size(must)} of input came from memory"
    if {"l2_read", "l2_hit"} <= counted.keys() and counted["l2_read"]:
        share = counted["l2_hit"] / counted["l2_read"]
        seen += f", {share:.0%} of what it asked the L2 cache for was there"
    return Coldness(
        _verdict(cache, read / max(must, 1), must, working_set / l2_bytes), seen
    )


def _verdict(cache: str, share: float, must: float, filled: float) -> str:
    if must < BESIDE:
        return "unknown"
    if cache == "cold":
        return "proven" if share >= MUST else "contradicted"
    if share <= MAY:
        return "proven"
    return "contradicted" if filled <= FITS else "unknown"


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (SteelyardError, DeviceError) as error:
        sys.exit(str(error))
