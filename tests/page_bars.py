"""How long pages of 2,000 cases in 50 runs take to write, and how large they are.

python tests/page_bars.py [--store FILE] [--runs 50] [--cases 2000]

Fills a store (one of its own, unless another is named), then writes its history, its latest
run and the folder of it. Prints seconds, those of processors, which a busy machine hardly
lengthens, and megabytes; exits with 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
import trials

from steelyard.store import archive
from steelyard.store.store import Store

BAR = 10.0
"""Seconds of processors to write pages."""
MOST = 5e6
"""Bytes of a page."""


def run_of(number: int, cases: int, rng: random.Random) -> bytes:
    """Return the export of one made-up run, in one block."""
    made = []
    for case in range(cases):
        level = 1000 * (1 + case % 97) * (1.1 if case % 50 == 7 and number > 30 else 1)
        ticks = [round(level * rng.gauss(1, 0.01)) for _ in range(20)]
        made.append(trials.trial(f"norm[hidden={case},dtype=float16,impl=ours]", ticks))
    started = f"2026-01-{1 + number // 24:02}T{number % 24:02}:00:00"
    how = {"started": started, "state": "finished", "commit": f"{number:040x}"}
    return archive.write(trials.run(**how), made)


def _processor_time() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Fill a store and write its pages."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--store")
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--cases", type=int, default=2000)
    options = parser.parse_args()
    rng, missed = random.Random(1), False  # noise, not a secret
    with tempfile.TemporaryDirectory() as folder:
        url = options.store or f"{folder}/store.db"
        with Store.open(url) as store:
            for number in range(len(store.runs()), options.runs):
                store.load(run_of(number, options.cases, rng))
        for subject in ("history", "@-1", "store"):
            place = Path(folder) / (subject if subject == "store" else "page.html")
            line = [sys.executable, "-m", "steelyard.cli", "report", subject]
            began, before = time.monotonic(), _processor_time()
            subprocess.run([*line, "-o", place, "--store", url], check=True)
            busy = _processor_time() - before
            files = place.iterdir() if place.is_dir() else [place]
            size = max(one.stat().st_size for one in files)
            click.echo(
                f"{subject}: {time.monotonic() - began:.1f} s, {busy:.1f} s of processors, "
                f"{size / 1e6:.1f} MB at most"
            )
            missed |= busy > BAR or size > MOST
    sys.exit(missed)


if __name__ == "__main__":
    main()
