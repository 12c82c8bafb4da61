"""What a Ray that idles beside a measurement does to it: 30 cases, with it and without.

python tests/fleet_idle.py [--minutes 11]

Rounds of four runs: without, with, with, without, so that what drifts cancels; a round is a
block of every case, the logarithm of with over without. Prints each case with its 95 %
interval and its smallest detectable change, as a gate has both, and the mean of all. Exits
with 1 if a case moved by more than that, or the mean by more than 0.3 %.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Final

import click

from steelyard.analyse import verdict
from steelyard.gate import decide
from steelyard.gate.blocks import value
from steelyard.gate.decide import POLICY, Evidence
from steelyard.store.store import Store

MEAN: Final = 0.003
"""By which the mean of all cases may differ, as a share."""

SETTLE: Final = 4.0
"""Seconds for a cluster to come to rest, and for what it leaves when it ends."""

SUITE: Final = """
import numpy as np

from steelyard import benchmark

WORK = {
    "add": lambda x, out: np.add(x, x, out=out),
    "multiply": lambda x, out: np.multiply(x, x, out=out),
    "sqrt": lambda x, out: np.sqrt(x, out=out),
    "exp": lambda x, out: np.exp(x, out=out),
    "sine": lambda x, out: np.sin(x, out=out),
    "tanh": lambda x, out: np.tanh(x, out=out),
    "copy": lambda x, out: np.copyto(out, x),
    "sort": lambda x, out: (np.copyto(out, x), out.sort()),
    "scan": lambda x, out: np.cumsum(x, out=out),
    "clip": lambda x, out: np.clip(x, 0, 1, out=out),
}


@benchmark(n=[2_000, 50_000, 500_000], op=list(WORK))
def work(b, n, op):
    b.mode("kernel/warm")
    x = b.input(n, dist="uniform")
    out = b.output(n)
    return b.launch(WORK[op], x, out)
"""


def steelyard(*words: str) -> None:
    """Run a command, quietly."""
    line = [sys.executable, "-m", "steelyard.cli", *words]
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL)


def measured(folder: Path, url: str) -> dict[str, float]:
    """Measure every case once; return the nanoseconds of each."""
    how = ("--blocks", "1", "--wait", "600", "--store", url)
    steelyard("run", str(folder), *how)
    with Store.open(url) as store:
        run = max(store.runs(), key=lambda one: one.started)
        return {trial.case: value(trial) for trial in store.trials(run.uid)}


def idling(*, beside: bool) -> None:
    """Start Ray, or end it, and wait until it rests."""
    steelyard("fleet", *(("up", "--local", "1") if beside else ("down",)))
    time.sleep(SETTLE)


def rounds(folder: Path, url: str, minutes: float) -> list[dict[str, float]]:
    """Return the blocks of every case, as many as there is time for."""
    until, found, longest = time.monotonic() + 60 * minutes, [], 0.0
    while time.monotonic() + longest < until:
        began, sums = time.monotonic(), {}
        for beside, times in ((False, 1), (True, 2), (False, 1)):
            if beside or sums:
                idling(beside=beside)
            for _ in range(times):
                for case, one in measured(folder, url).items():
                    half = math.log(one) / 2
                    sums[case] = sums.get(case, 0.0) + (half if beside else -half)
        found.append(sums)
        longest = max(longest, time.monotonic() - began)
        click.echo(f"round {len(found)}: {time.monotonic() - began:.0f} s", err=True)
    return found


def said(blocks: Mapping[str, Evidence]) -> bool:
    """Print what the blocks come to; tell whether Ray disturbs nothing."""
    fine = True
    for case, (one, _) in decide.judge(blocks, {}, POLICY).items():
        still = abs(math.log(one.ratio.value)) <= math.log1p(one.smallest)
        fine &= still
        low, high = (100 * (end - 1) for end in (one.ratio.low, one.ratio.high))
        click.echo(
            f"{case}: {100 * (one.ratio.value - 1):+.2f} % [{low:+.2f} to {high:+.2f}], "
            f"detectable {100 * one.smallest:.2f} %{'' if still else ' MOVED'}"
        )
    every = zip(*(one.blocks for one in blocks.values()), strict=True)
    mean = verdict.mean([fmean(block) for block in every]).ratio()
    low, high = (100 * (end - 1) for end in (mean.low, mean.high))
    click.echo(
        f"mean of {len(blocks)} cases: {100 * (mean.value - 1):+.3f} % [{low:+.3f} to "
        f"{high:+.3f}]; the bar is {100 * MEAN:g} %"
    )
    return fine and abs(math.log(mean.value)) <= math.log1p(MEAN)


def main() -> None:
    """Measure and judge."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=11.0)
    minutes = parser.parse_args().minutes
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        os.environ["STEELYARD_CACHE"] = str(folder / "cache")
        (folder / "suites").mkdir()
        (folder / "suites" / "bench_work.py").write_text(SUITE)
        try:
            found = rounds(folder / "suites", f"{folder}/store.db", minutes)
        finally:
            steelyard("fleet", "down")
    blocks = {case: Evidence(tuple(one[case] for one in found)) for case in found[0]}
    sys.exit(not said(blocks))


if __name__ == "__main__":
    main()
