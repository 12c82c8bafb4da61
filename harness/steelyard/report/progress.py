"""What a run says while it measures: between turns only, and on stderr.

Nothing is repainted by a thread: a repaint inside a window would be measured.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import click

from steelyard import units
from steelyard.analyse.trial import Run
from steelyard.declare.plan import Plan, PlannedTrial, Settings, once
from steelyard.report import tables
from steelyard.store import session
from steelyard.store.session import Outcome, Request

CLEAR = "\r\x1b[K"
"""Back to the start of the line, and erase it (ECMA-48, EL)."""


SHOWN: Final = 5
"""Names listed of those that never had a turn."""

LISTED: Final = 10_000
"""Turns that a plan is printed with."""


class Progress:
    """One line that each turn overwrites; in a log, a line a block."""

    def __init__(
        self, turns: int, budget: float | None, *, header_to_stderr: bool
    ) -> None:
        self._turns = turns
        self._budget = budget
        self._header_to_stderr = header_to_stderr
        self._repaints = sys.stderr.isatty()
        self._block = -1
        self._began = time.monotonic()

    def start(self, run: Run) -> None:
        """Print the run's header."""
        console = tables.console(stderr=self._header_to_stderr)
        console.print(tables.run_header(run))

    def turn(self, turn: PlannedTrial) -> None:
        """Say which turn comes next, and how long the rest may take."""
        done, now = turn.position, time.monotonic()
        if not done:
            self._began = now
        left = units.left(now - self._began, done, self._turns - done, self._budget)
        where = f"[{done + 1}/{self._turns}] block {turn.block}{left}"
        if self._repaints:
            line = f"{where} {turn.case.id} {turn.mode}"
            width = tables.console(stderr=True).width - 1
            click.echo(f"{CLEAR}{line[:width]}", nl=False, err=True)
        elif turn.block != self._block:
            click.echo(where, err=True)
        self._block = turn.block

    def end(self) -> None:
        """Leave the line."""
        if self._repaints:
            click.echo(CLEAR, nl=False, err=True)


def measured(
    turns: Sequence[PlannedTrial],
    how: Settings,
    asked: Request,
    store: str,
    device: Mapping[str, Any],
    *,
    header_to_stderr: bool = True,
    on_start: Callable[[Run], None] | None = None,
) -> Outcome:
    """Measure a plan, saying on stderr what is under way; raises as `session.measure`."""
    shown = Progress(len(turns), how.budget, header_to_stderr=header_to_stderr)
    outcome = session.measure(
        turns,
        how,
        asked,
        store,
        device=device,
        on_start=on_start or shown.start,
        on_turn=shown.turn,
        say=lambda line: click.echo(line, err=True),
    )
    shown.end()
    return outcome


def ending(outcome: Outcome, store: str) -> None:
    """Say on stderr how the run ended and where it is."""
    from steelyard.machine.printable import shown

    done, asked = len(outcome.trials), len(outcome.turns)
    if outcome.problem is not None:
        click.echo(f"error: {outcome.problem}", err=True)
    if outcome.state == "interrupted":
        click.echo(
            f"interrupted: the run is partial, {done} of {asked} turns.", err=True
        )
    elif outcome.state == "budget":
        click.echo(
            f"the budget ended after {done} of {asked} turns; raise --budget, or ask for "
            "fewer cases, modes or --blocks.",
            err=True,
        )
        if outcome.missing:
            names = sorted(" ".join(point) for point in outcome.missing)
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            click.echo(f"never had a turn: {', '.join(names[:SHOWN])}{more}", err=True)
    if outcome.failed:
        click.echo(f"failed: {', '.join(sorted(outcome.failed))}", err=True)
    name = outcome.run.short
    click.echo(f"run {name} in {shown(store)}", err=True)
    click.echo(
        f"one case: `steelyard show {name} CASE`; a change: `steelyard gate COMMIT`",
        err=True,
    )


def plan(turns: Plan) -> None:
    """Print the order of all turns, or of the first of very many."""
    for turn in turns[:LISTED]:
        click.echo(f"{turn.position:5} block {turn.block} {turn.case.id} {turn.mode}")
    if len(turns) > LISTED:
        click.echo(f"  ... {len(turns) - LISTED} more turns of the same cases")
    cases = units.count(len({turn.case.id for turn in once(turns)}), "case")
    said = f"{cases}, {units.count(len(turns), 'turn')}; nothing was measured"
    click.echo(said, err=True)
