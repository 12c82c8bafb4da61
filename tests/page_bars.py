"""How long pages of 2,000 cases in 50 runs take to write, and how large they are.

python tests/page_bars.py [--store FILE] [--runs 50] [--cases 2000]

Fills a store (one of its own, unless another is named), then writes its history, its latest
run and the folder of it. Prints seconds, those of processors, which a busy machine hardly
lengthens, and megabytes; exits with 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
import store_bars
from store_bars import MODES

from steelyard.store.store import Store

BAR = 10.0
"""Seconds of processors to write pages."""
MOST = 5e6
"""Bytes of a page."""


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
                store.load(
                    store_bars.run_of(number, rng, options.cases, MODES[:1], blocks=1)
                )
        for subject in ("history", "@-1", "store"):
            place = Path(folder) / (subject if subject == "store" else "page.html")
            line = [sys.executable, "-m", "steelyard.cli", "report", subject]
            began, before = time.monotonic(), store_bars.processor_time()
            subprocess.run([*line, "-o", place, "--store", url], check=True)
            busy = store_bars.processor_time() - before
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
