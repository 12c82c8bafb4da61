"""Measure cases together and each alone, and say how many agree.

What ran before a case in its process must not be part of its time:
``python ci/alone.py PATHS WORD`` ends with 1 where fewer than 95 % of the rows have
intervals that meet.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import click

from steelyard.analyse.rows import Row, rows
from steelyard.declare.plan import able
from steelyard.store import session
from steelyard.store.store import Store

SHARE = 0.95

MODE = "kernel/warm"


def measured(store: Path, places: list[str], pattern: str) -> dict[str, Row]:
    """Return the rows of a new run, by case."""
    line = ["run", *places, "-k", pattern, "--mode", MODE, "--store", str(store)]
    program = [sys.executable, "-m", "steelyard.cli", *line, "--wait", "600"]
    # Cases that have no such mode fail, and are in no row that is asked for.
    subprocess.run(program, stdout=subprocess.DEVNULL, check=False)
    with Store.open(str(store)) as opened:
        return {row.case: row for row in rows(opened.trials(opened.find("@-1").uid))}


def meet(one: Row, other: Row) -> bool:
    """Tell whether the 95 % intervals of two rows have a number in common."""
    first, second = one.estimate, other.estimate
    assert first is not None
    assert second is not None
    return first.low <= second.high and second.low <= first.high


def main(places: list[str], pattern: str) -> int:
    """Print each row that differs and the share that agrees."""
    found, _ = able(session.find(places, pattern))
    cases = [case.id for case in found if MODE in map(str, case.modes())]
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "alone.db"
        whole = measured(store, places, pattern)
        alone = {case: measured(store, places, case)[case] for case in cases}
    agree = {case: meet(whole[case], alone[case]) for case in cases}
    for case in cases:
        ratio = alone[case].estimate.value / whole[case].estimate.value
        click.echo(f"{'agrees' if agree[case] else 'DIFFERS'}  {ratio:.3f}  {case}")
    click.echo(f"{sum(agree.values())} of {len(cases)} cases take the same alone")
    return int(sum(agree.values()) < SHARE * len(cases))


if __name__ == "__main__":
    *paths, word = sys.argv[1:]
    sys.exit(main(paths, word))
