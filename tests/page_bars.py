"""How long pages of 2,000 cases in 50 runs take to write, and how large they are.

python tests/page_bars.py [--store FILE] [--runs 50] [--cases 2000]

Fills a store (one of its own, unless another is named), then writes its history, its latest
run and the folder of it. Prints seconds, those of processors, which a busy machine hardly
lengthens, and megabytes; where there is Chromium (see `test_pages_chromium`), also the
seconds until a page is first seen and until all of it is there. Exits with 1 where a bar is
missed.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import click
import pytest
import store_bars
from store_bars import MODES

from steelyard.store.store import Store

try:
    import test_pages_chromium
except pytest.skip.Exception as why:  # Selenium is not installed
    click.echo(f"pages are not opened: {why}")
    test_pages_chromium = None

BAR = 10.0
"""Seconds of processors to write pages."""
MOST = 5e6
"""Bytes of a page."""
FIRST = 1.0
"""Seconds until something is seen and keys work."""
TIMES = """
const [paint] = performance.getEntriesByName("first-contentful-paint");
const [page] = performance.getEntriesByType("navigation");
return paint && page.loadEventEnd ? [paint.startTime, page.loadEventEnd] : null
"""


def seen(place: Path, opened: int = 9) -> list[tuple[float, float]]:
    """Return the seconds to the first view of a page and to its end, in new tabs."""
    with tempfile.TemporaryDirectory() as profile:
        driver = test_pages_chromium.browser(profile)
        try:
            found = []
            for _ in range(opened):
                driver.switch_to.new_window("tab")
                driver.get(place.as_uri())
                wait = test_pages_chromium.ui.WebDriverWait(driver, 60)
                first, last = wait.until(lambda tab: tab.execute_script(TIMES))
                found.append((first / 1e3, last / 1e3))
                driver.close()
                driver.switch_to.window(driver.window_handles[0])
            return found
        finally:
            driver.quit()


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
            if test_pages_chromium is not None and place.is_file():
                first, last = map(sorted, zip(*seen(place), strict=True))
                click.echo(
                    f"{subject} in Chromium: first view after {median(first):.2f} s "
                    f"({first[0]:.2f} to {first[-1]:.2f}), all of it after "
                    f"{median(last):.2f} s ({last[0]:.2f} to {last[-1]:.2f})"
                )
                missed |= median(first) > FIRST
    sys.exit(missed)


if __name__ == "__main__":
    main()
