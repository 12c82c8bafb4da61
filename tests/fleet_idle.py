"""What a Ray that idles beside a measurement does to it: 30 cases, with it and without.

python tests/fleet_idle.py [--minutes 11]

Two trials of a case take windows in turn in one process, on the same buffers: while one
does, every process of a fleet of this machine is stopped, while the other does, they go
on. A block is the logarithm of the second over the first. Prints each case with its 95 %
interval and its smallest detectable change, as a gate has both, and the mean of all, plain
and with each case weighed by the inverse of its mean's variance. Exits with 1 if a case
moved by more than is detectable, or the second mean by more than 0.3 %.
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
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Final

import click
import psutil
import shell

from steelyard.analyse import verdict
from steelyard.declare import discovery
from steelyard.declare.mode import parse_all
from steelyard.declare.plan import Settings
from steelyard.gate import decide
from steelyard.gate.blocks import value
from steelyard.gate.decide import POLICY, Evidence
from steelyard.measure.instruments import Instruments
from steelyard.measure.one_case import Measurement, placed
from steelyard.measure.prepared import PreparedCase
from steelyard.measure.sampler import no_collection

MEAN: Final = 0.003
"""By which the mean of all cases may differ, as a share."""

SETTLE: Final = 4.0
"""Seconds for a cluster to come to rest."""

TURN: Final = 0.05
"""Seconds of windows of one of both trials, short beside what drifts."""

TURNS: Final = (False, True, True, False) * 6
"""Whether the fleet goes on in each turn of a block."""

CATCH_UP: Final = 0.03
"""Seconds for what was stopped to do what it missed, or to be stopped."""

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


def started(folder: Path) -> list[psutil.Process]:
    """Start a fleet of this machine; return the processes that it is."""
    steelyard("fleet", "up", "--local", "1")
    time.sleep(SETTLE)
    for one in psutil.process_iter():
        with suppress(psutil.Error):
            line = one.cmdline()
            if "steelyard.fleet.local" in line and str(folder) in " ".join(line):
                return [one, *one.children(recursive=True)]
    raise SystemExit("no fleet started")


def block(
    prepared: PreparedCase, scale: Instruments, fleet: list[psutil.Process]
) -> float:
    """Return the logarithm of a case's time beside the fleet over that without."""
    (mode,) = parse_all(["kernel/warm"])
    trials = {
        on: Measurement(prepared, mode, scale, Settings()) for on in (False, True)
    }
    with placed(prepared), no_collection() as collected:
        windows = {on: trial.windows(collected) for on, trial in trials.items()}
        going = {on: next(one) for on, one in windows.items()}
        going[True].count = going[False].count
        for on in TURNS:
            for process in fleet:
                (process.resume if on else process.suspend)()
            time.sleep(CATCH_UP)
            until = time.monotonic() + TURN
            while time.monotonic() < until:
                next(windows[on])
        for on, one in windows.items():
            going[on].last = True
            next(one, None)
    with_it, without = (value(trials[on].trial()) for on in (True, False))
    return math.log(with_it / without)


def rounds(folder: Path, minutes: float) -> list[dict[str, float]]:
    """Return the blocks of every case, as many as there is time for."""
    cases = discovery.find([str(folder / "suites")])
    prepared = {case.id: PreparedCase(case, Settings()) for case in cases}
    scale, fleet = Instruments(None), started(folder)
    until, found, longest = time.monotonic() + 60 * minutes, [], 0.0
    try:
        while time.monotonic() + longest < until:
            began = time.monotonic()
            found.append(
                {id_: block(one, scale, fleet) for id_, one in prepared.items()}
            )
            longest = max(longest, time.monotonic() - began)
            click.echo(
                f"round {len(found)}: {time.monotonic() - began:.0f} s", err=True
            )
    finally:
        for process in fleet:
            process.resume()
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
    turns = list(zip(*(one.blocks for one in blocks.values()), strict=True))
    precise = [verdict.mean(one.blocks).error ** -2 for one in blocks.values()]
    means = {
        "plain": verdict.mean([fmean(block) for block in turns]),
        "by precision": verdict.mean([fmean(block, precise) for block in turns]),
    }
    for name, mean in means.items():
        value, low, high = (
            100 * math.expm1(mean.value + side * mean.half()) for side in (0, -1, 1)
        )
        click.echo(
            f"mean of {len(blocks)} cases, {name}: {value:+.3f} % [{low:+.3f} to "
            f"{high:+.3f}]; the bar is {100 * MEAN:g} %"
        )
    return fine and abs(means["by precision"].value) <= math.log1p(MEAN)


def main() -> None:
    """Measure and judge."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=11.0)
    minutes = parser.parse_args().minutes
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        os.environ["STEELYARD_CACHE"] = str(folder / "cache")
        shell.files(folder, {"suites/bench_work.py": SUITE})
        try:
            found = rounds(folder, minutes)
        finally:
            steelyard("fleet", "down")
    blocks = {case: Evidence(tuple(one[case] for one in found)) for case in found[0]}
    sys.exit(not said(blocks))


if __name__ == "__main__":
    main()
