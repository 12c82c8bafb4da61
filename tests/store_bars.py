"""How long `steelyard history` of everything takes with 100,000 trials in the store.

python tests/store_bars.py [--store URL] [--runs 250]

Fills a store (an SQLite file of its own, unless another is named) by imports: runs of 50
cases in 2 modes in 4 blocks. Prints seconds, and those of the reader's processor time,
which a busy machine does not lengthen; exits with 1 if reading takes more than the bar.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

import click
import trials

from steelyard.store import archive
from steelyard.store.store import Store

BAR = 3.0
"""Seconds for all histories of 100,000 trials."""


MODES = ("kernel/cold", "kernel/warm")


def run_of(
    number: int,
    rng: random.Random,
    cases: int = 50,
    modes: Sequence[str] = MODES,
    blocks: int = 4,
) -> bytes:
    """Return the export of one made-up run; a case in 50 is slower from the 31st on."""
    made = []
    for case in range(cases):
        level = 1000 * (1 + case % 97) * (1.1 if case % 50 == 7 and number > 30 else 1)
        name = f"norm[hidden={case},dtype=float16,impl=ours]"
        for mode, block in itertools.product(modes, range(blocks)):
            ticks = [round(level * rng.gauss(1, 0.01)) for _ in range(20)]
            made.append(trials.trial(name, ticks, mode=mode, block=block))
    started = f"2026-01-{1 + number // 24:02}T{number % 24:02}:00:00"
    how = {"started": started, "state": "finished", "commit": f"{number:040x}"}
    return archive.write(trials.run(**how), made)


def processor_time() -> float:
    """Return the seconds of processors that children which ended took."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def read(*words: str) -> tuple[float, float]:
    """Return the least seconds, and those of a processor, of a command in three runs."""
    line = [sys.executable, "-m", "steelyard.cli", *words]
    # An installed steelyard has its bytecode.
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    seconds, busy = [], []
    for _ in range(3):
        began, before = time.monotonic(), processor_time()
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL, env=kept)
        seconds.append(time.monotonic() - began)
        busy.append(processor_time() - before)
    return min(seconds), min(busy)


def main() -> None:
    """Fill a store and read it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--store")
    parser.add_argument("--runs", type=int, default=250)
    options = parser.parse_args()
    rng = random.Random(1)  # noise, not a secret
    with tempfile.TemporaryDirectory() as folder:
        url = options.store or f"{folder}/store.db"
        began = time.monotonic()
        with Store.open(url) as store:
            for number in range(options.runs):
                store.load(run_of(number, rng))
            count = sum(store.counts().values())
        click.echo(f"filled with {count} trials in {time.monotonic() - began:.1f} s")
        seconds, busy = read("history", "--store", url)
    click.echo(
        f"all histories: {seconds:.2f} s, {busy:.2f} s of a processor; the bar is {BAR:g} s"
    )
    sys.exit(seconds > BAR * count / 100_000)


if __name__ == "__main__":
    main()
