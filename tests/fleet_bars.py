"""What a fleet costs beside environments and measuring, and what environments cost.

python tests/fleet_bars.py

Makes a small project of a few commits and its environments with uv, then does jobs on this
machine as an agent does. Prints seconds and exits with 1 if one is above its bar.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import click
import shell

from steelyard.fleet import agent, environments, jobs
from steelyard.fleet.agent import Order
from steelyard.fleet.record import Record
from steelyard.store.store import Store

BARS = {"uv cache warm": 3.0, "environment cached": 0.1, "overhead of a job": 1.0}

PROJECT = """
[project]
name = "work"
version = "0.{}"
dependencies = ["numpy"]
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[tool.hatch.build.targets.wheel]
only-include = ["work.py"]
"""
SUITE = """
from work import scaled
from steelyard import benchmark


@benchmark
def scale(b):
    b.mode("kernel/warm")
    x = b.input(100)
    y = b.output(100)
    return b.launch(scaled, x, out=y)
"""


def repository(root: Path) -> list[str]:
    """Make a project of three commits and return them."""

    def made(number: int) -> str:
        texts = {
            "suites/bench_work.py": SUITE,
            "pyproject.toml": PROJECT.format(number),
            "work.py": f"def scaled(x, out):\n    out[:] = x * {number}\n",
        }
        return shell.commit(shell.files(root, texts), f"{number}")

    return [made(number) for number in range(3)]


def environment(root: Path, commit: str) -> float:
    """Return the seconds until a commit's environment is there."""
    began = time.monotonic()
    with environments.made(str(root), commit):
        return time.monotonic() - began


def overhead(root: Path, commit: str, url: str) -> float:
    """Return the seconds of a job but for its environment and its child."""
    book = Record(url)
    name = book.add(jobs.planned([commit], ["suites"], ["any"], 1))
    (entry,) = book.entries(name)
    book.close()
    spent, run = [], agent._run

    def timed(*words):
        began = time.monotonic()
        code = run(*words)
        spent.append(time.monotonic() - began)
        return code

    @contextmanager
    def made(*words, **named):
        began = time.monotonic()
        with kept(*words, **named) as found:
            spent.append(time.monotonic() - began)
            yield found

    kept, environments.made, agent._run = environments.made, made, timed
    began = time.monotonic()
    order = Order(name, url, str(root), commit, 60, job=entry.job, machine="here")
    word = agent.work(order, threading.Event())
    total = time.monotonic() - began
    environments.made, agent._run = kept, run
    assert word == "done", word
    return total - sum(spent)


def main() -> None:
    """Measure each three times and print the least."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["STEELYARD_CACHE"] = f"{folder}/cache"
        root, url = Path(folder) / "repository", f"{folder}/store.db"
        first, *others = repository(root)
        environment(root, first)  # uv's own cache is warm then
        with Store.open(url):
            pass
        found = {
            "uv cache warm": min(environment(root, one) for one in others),
            "environment cached": min(environment(root, first) for _ in range(3)),
            "overhead of a job": min(overhead(root, first, url) for _ in range(3)),
        }
        shell.git(root, "worktree", "prune")
    for what, seconds in found.items():
        click.echo(f"{what}: {seconds:.3f} s; the bar is {BARS[what]:g} s")
    sys.exit(any(found[what] > bar for what, bar in BARS.items()))


if __name__ == "__main__":
    main()
