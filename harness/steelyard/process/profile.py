"""Have Nsight Compute count one clean launch of each case: ``run --profile ncu``.

The launch is made by a fresh process, ``python -m steelyard.process.profile``, between a
profiler's marks. Its command line is anybody's to run by hand.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from steelyard.analyse.doubts.caches import WRONG_CACHE
from steelyard.analyse.trial import Trial
from steelyard.declare.handles import CUDA
from steelyard.declare.plan import PlannedTrial
from steelyard.declare.settings import Settings
from steelyard.errors import SteelyardError
from steelyard.process import ncu, scratch, stage
from steelyard.process.ncu import Coldness
from steelyard_device.errors import DeviceError

MODULE: Final = "steelyard.process.profile"

PASSES: Final = 10
"""ncu starts the program anew for each pass over its counters. Our metrics take fewer,
so it may be silent for this many times as long as a case."""

KEYS: Final = ("must", "working_set", "l2_bytes")
"""What the fresh process says of its launch, as `ncu.coldness` takes it."""

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
        say(shlex.join(ncu.command(program)))
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
        said = stage.run(ncu.command(program, log=str(file)), seconds)
        log = file.read_text(errors="replace") if file.exists() else ""
    kernels, answer = ncu.parse(log), said.answer(KEYS)
    if not kernels or answer is None:
        sentence = ncu.refusal(log, said.reason(), said.code)
        raise RefusedError(sentence, always=ncu.FORBIDDEN in log)
    counted = ncu.total(kernels)
    return Profile(counted, ncu.coldness(cache, counted=counted, **answer))


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


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (SteelyardError, DeviceError) as error:
        sys.exit(str(error))
