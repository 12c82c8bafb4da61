"""What a campaign on a GPU runs, and what is read out of its rows."""

from __future__ import annotations

import json
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
from bars import Weighed

from steelyard.analyse.rows import Row, block_estimate, rows
from steelyard.analyse.trial import Trial
from steelyard.store.store import Store

CI: Final = Path(__file__).parent
COMMAND: Final = [sys.executable, "-m", "steelyard.cli"]
COLD: Final = "kernel/cold"
WARM: Final = "kernel/warm"
BOTH: Final = ("--mode", COLD, "--mode", WARM)
FINE: Final = {0, 2, 3}
"""Exit codes of a run that has rows: all fine, a case failed, the budget ended."""


@dataclass(frozen=True, slots=True)
class Campaign:
    """Where results go, and what their names begin with."""

    folder: Path
    prefix: str
    commit: str = ""
    """What is weighed, where no checkout says so."""

    def weigh(self, *arguments: str, keep: str = "") -> Weighed:
        """Run the product on its suites; ``keep`` names the JSON that it leaves."""
        kept = self.folder / f"{self.prefix}-{keep}.json"
        with tempfile.TemporaryDirectory() as scratch:
            store = f"{scratch}/bars.db"
            asked = [*arguments, *(["--json", str(kept)] if keep else [])]
            done = subprocess.run(
                [*COMMAND, "run", *asked, "--store", store],
                check=False,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            if done.returncode not in FINE:
                raise click.ClickException(f"steelyard run {asked}: {done.stderr}")
            with Store.open(store) as opened:
                run = opened.runs()[0]
                trials = opened.trials(run.uid)
        made = rows(trials)
        for row in made:
            for error in row.errors:
                click.echo(f"{row.case} {row.mode}: {error}", err=True)
        command = shlex.join(["steelyard", "run", *arguments])
        if keep:
            self._told(kept, command)
        return Weighed(run, made, command)

    def _told(self, kept: Path, command: str) -> None:
        """Say in a kept run what to type, and which commit it is of."""
        document = json.loads(kept.read_text())
        document["run"]["command"] = command
        if self.commit:
            document["machine"]["versions"]["commit"] = self.commit
        kept.write_text(json.dumps(document, indent=1) + "\n")


def known(trial: Trial) -> float:
    """Return the nanoseconds that a delay's cycles take at the frequency it had."""
    megahertz = statistics.median(trial.samples.mhz)
    return float(trial.facts["cycles"]) / megahertz * 1e3


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return slope and intercept of the least squares of relative errors.

    Weighed by 1/x: a per mille is as much at 2 us as at 2 ms.
    """
    weights = [1 / x for x, _ in points]
    total = sum(weights)
    x = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
    y = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
    over = sum(w * (a - x) * (b - y) for w, (a, b) in zip(weights, points, strict=True))
    under = sum(w * (a - x) ** 2 for w, (a, _) in zip(weights, points, strict=True))
    return over / under, y - over / under * x


def agreeing(row: Row, limit: float) -> float:
    """Return the share of blocks within a share, or a tick, of their median."""
    values = [block_estimate(trial).value for trial in row.trials]
    middle = statistics.median(values)
    tick = max(t.clock.quantum / t.samples.launches[0] for t in row.trials)
    room = max(limit * middle, tick)
    return statistics.fmean(abs(value - middle) <= room for value in values)


def script(name: str, *arguments: str) -> Any:
    """Run another script of this folder; return the object that it prints."""
    command = [sys.executable, str(CI / name), *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout[done.stdout.index("{") :])
