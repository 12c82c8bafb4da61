"""Run the product and read back what it stored, for the scripts beside this one."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass

import click

from steelyard.analyse.rows import Row, rows
from steelyard.analyse.stats import Estimate
from steelyard.analyse.trial import Run
from steelyard.store.store import Store

FINE = {0, 2, 3}
"""Exit codes of a run that has rows: all fine, a case failed, the budget ended."""

COLD = "kernel/cold"
WARM = "kernel/warm"
BOTH = ("--mode", COLD, "--mode", WARM)


@dataclass(frozen=True, slots=True)
class Measured:
    """One run, read back from its store."""

    run: Run
    rows: list[Row]
    command: str

    def estimate(self, case: str, mode: str) -> Estimate:
        """Return the estimate of a row."""
        (found,) = [r for r in self.rows if (r.case, r.mode) == (case, mode)]
        if found.estimate is None:
            raise SystemExit(f"{case} {mode}: {' '.join(found.errors)}")
        return found.estimate


def measure(*arguments: str) -> Measured:
    """Run `steelyard run` with these arguments."""
    with tempfile.TemporaryDirectory() as folder:
        line = ["run", *arguments, "--store", f"{folder}/runs.db", "--wait", "600"]
        done = subprocess.run(
            [sys.executable, "-m", "steelyard.cli", *line],
            check=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        if done.returncode not in FINE:
            raise SystemExit(f"{shlex.join(line)}: {done.stderr}")
        with Store.open(f"{folder}/runs.db", create=False) as opened:
            run = opened.find("@-1")
            made = rows(opened.trials(run.uid))
    for row in made:
        for error in row.errors:
            click.echo(f"{row.case} {row.mode}: {error}", err=True)
    return Measured(run, made, shlex.join(["steelyard", "run", *arguments]))
