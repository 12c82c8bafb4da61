"""What `show` does with the runs of a store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import click
from rich.text import Text

from steelyard.analyse import compare as comparing
from steelyard.analyse.rows import Row, nearest, relative_to, rows, with_peaks
from steelyard.analyse.trial import Run, Trial
from steelyard.declare import config
from steelyard.errors import SteelyardError, StoreError
from steelyard.report import clocks_table, details, pivot, sweeps, tables
from steelyard.report.formats import Results, formats, unmeasured
from steelyard.report.grid import Column, Sheet
from steelyard.store.store import Store

LATEST = "@-1"


def locate(store: Store, run: str | None, case: str | None) -> tuple[Run, str | None]:
    """Return the run and the case that one or two words name.

    One word is a run, or else a case of the latest run.

    Raises:
        SteelyardError: it is neither.
    """
    if run is None or case is not None:
        return store.find(run or LATEST), case
    try:
        return store.find(run), None
    except StoreError:
        latest = store.find(LATEST)
        if any(run in trial.case for trial in store.trials(latest.uid)):
            return latest, run
        raise


def of_case(trials: Sequence[Trial], case: str | None) -> list[Trial]:
    """Return the trials of the case with this id, or with it in theirs.

    Raises:
        SteelyardError: there is none; the sentence has the nearest.
    """
    if case is None:
        return list(trials)
    found = [t for t in trials if t.case == case] or [
        t for t in trials if case in t.case
    ]
    if not found:
        ids = sorted({t.case for t in trials})
        raise SteelyardError(
            f"the run has no case {case!r} among {len(ids)}.{nearest(case, ids)} See "
            "`steelyard show`."
        )
    return found


def runs_sheet(runs: Sequence[Run], counts: Mapping[str, int]) -> Sheet[Run]:
    """Return a line a run; ``counts`` are the numbers of their trials."""
    columns: dict[str, Callable[[Run], str]] = {
        "run": lambda run: run.short,
        "started (UTC)": lambda run: run.started[:16].replace("T", " "),
        "state": lambda run: run.state,
        "trials": lambda run: str(counts.get(run.uid, 0)),
        "commit": lambda run: run.commit[:10],
        "tags": lambda run: ", ".join(run.tags),
        "command": lambda run: run.command,
    }
    folded = [
        Column(title, cell, right=False, folds=True, names=title == "run")
        for title, cell in columns.items()
    ]
    return Sheet("", folded, runs)


def rows_of(run: Run, trials: Sequence[Trial], relative: str | None) -> list[Row]:
    """Return the rows of a run, each with its ratio to those of ``relative``."""
    made = with_peaks(rows(trials), run.peaks)
    return relative_to(made, relative) if relative else made


@dataclass(frozen=True, slots=True)
class Baseline:
    """A stored run that the rows of another are related to."""

    run: Run
    trials: Sequence[Trial]

    @classmethod
    def of(cls, store: Store, name: str, relative: str | None) -> Self:
        """Return the run that is named.

        Raises:
            SteelyardError: there is none, or rows would be related to two others.
        """
        if relative:
            raise SteelyardError(
                "--baseline and --relative-to exclude each other: give one."
            )
        found = store.find(name)
        return cls(found, store.trials(found.uid))

    def beside(
        self, made: Sequence[Row], run: Run, trials: Sequence[Trial], *, stderr: bool
    ) -> list[Row]:
        """Add each row's ratio, where the two compare; print what differs around both."""
        from steelyard.report import comparison  # few runs have a baseline

        around = comparing.around(self.run, run, self.trials, trials)
        console = tables.console(stderr=stderr)
        console.print(*comparison.heading(self.run, run, around), sep="\n")
        try:
            comparing.require_same_machine(self.run, run)
        except SteelyardError as error:
            console.print(f"no ratios: {error}", markup=False)
        return comparing.beside(made, run, self.run, self.trials)


def print_rows(
    run: Run, made: Sequence[Row], wanted: Sequence[str], across: str | None
) -> None:
    """Print a table, or one for each benchmark with an axis across."""
    console = tables.console()
    page = pivot.page(made, across, wanted) if across else tables.page(made, wanted)
    for part in page:
        console.print(part)
    for said in sweeps.sentences(run, made):
        console.print(Text(said))
    if run.settings.get("clock") == config.ALL:
        for part in clocks_table.page(made):
            console.print(part)


def print_header(run: Run, done: int) -> None:
    """Print which run this is; a partial one says how many turns it had."""
    tables.console().print(tables.run_header(run, done))


def print_details(run: Run, made: Sequence[Row]) -> None:
    """Print everything about a few rows."""
    console = tables.console()
    console.print(tables.run_header(run))
    for row in made:
        for part in details.page(run, row):
            console.print(part)
    hints = tables.hints(made)
    if hints is not None:
        console.print(hints)


def dumps(shape: str, found: Results) -> str:
    """Return a run as text for other programs.

    Raises:
        SteelyardError: an axis goes across, of what is no table.
    """
    if found.across and shape != "markdown":
        raise SteelyardError(
            f"--across makes tables, and --format {shape} is none. Give --format table "
            "or markdown."
        )
    chosen = formats()[shape]
    assert chosen.results is not None, shape
    if chosen.partial and (out := unmeasured(found)):
        cases = ", ".join(dict.fromkeys(row.case for row in out))
        click.echo(f"{shape} has no place for what has no time: {cases}", err=True)
    return chosen.results(found)
