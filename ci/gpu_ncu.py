"""Launch one case some times, each between a profiler's marks, for ncu to time.

``ncu ... python ci/gpu_ncu.py PATH NAME AXES CACHE``, as `steelyard.process.stage` takes them. One
launch says little: an H200's clock pulses, slow for half of every 100 us, and a kernel of
50 us takes 3 % more there. The campaign takes the median.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Final

import click

from steelyard.analyse.trial import Trial
from steelyard.process import ncu, stage
from steelyard_device.cuda import profiler

LAUNCHES: Final = 25

SECONDS: Final = 120.0
"""In which ncu is done with a case; it takes about four."""


def nanoseconds(trial: Trial) -> float | None:
    """Have ncu time a trial's case; return the median, or say why there is none."""
    case = [
        trial.hashes["file"],
        trial.case.split("[")[0],
        json.dumps(dict(trial.axes)),
    ]
    program = [sys.executable, str(Path(__file__)), *case, trial.mode.split("/")[1]]
    said = stage.run(ncu.command(program, [ncu.METRICS["time_ns"]]), SECONDS)
    times = [one.counted["time_ns"] for one in ncu.parse(said.output) if one.counted]
    if len(times) == LAUNCHES:
        return statistics.median(times)
    reason = ncu.refusal(said.output, said.reason(), said.code)
    click.echo(f"{trial.case} {trial.mode}: {len(times)} launches; {reason}", err=True)
    return None


def main(*line: str) -> None:
    """Launch the case, cold or warm each time."""
    _, prepare, _ = stage.opened(*line)
    staged = prepare()
    assert staged.context is not None
    for _ in range(LAUNCHES):
        for _, step in staged.before:
            step()
        staged.work.wait()
        with profiler.marked(staged.context):
            staged.work.launch(1)
            staged.work.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
