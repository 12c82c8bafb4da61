"""A case over the stored runs: its times in order, and where they stepped.

Only runs that measure the same thing are of one series: the machine, the method and the
clock are those of the latest. A step is told from the case's own noise (`change_points`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from steelyard import change_points
from steelyard.change_points import Step
from steelyard.errors import SteelyardError
from steelyard.report.rows import Row, nearest, rows
from steelyard.run import Run
from steelyard.stats import Estimate
from steelyard.store import Store
from steelyard.trial import Trial


@dataclass(frozen=True, slots=True)
class Point:
    """What one run says of the case, in nanoseconds per launch."""

    run: Run
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class History:
    """One case in one mode over runs, the latest last."""

    case: str
    mode: str
    points: tuple[Point, ...]
    left_out: int
    """Runs that have the case but were measured otherwise or elsewhere."""
    steps: tuple[Step, ...]


def history(store: Store, case: str, mode: str | None, tag: str | None) -> History:
    """Return the series of a case in one mode, by default the first it was weighed in.

    ``tag`` leaves only the runs that have it, such as those of one branch.

    Raises:
        SteelyardError: no run has the case, or none has it in that mode.
    """
    seen = list(_seen(store, case, tag))
    if not seen:
        raise _unknown(store, case, tag)
    modes = list(dict.fromkeys(row.mode for _, row in seen))
    chosen = mode or modes[0]
    series = [(run, row) for run, row in seen if row.mode == chosen and row.trials]
    if not series:
        raise SteelyardError(
            f"{case} was never weighed in mode {chosen}; it was in {', '.join(modes)}."
        )
    like = _method(*series[-1])
    points = [
        Point(run, row.estimate)
        for run, row in series
        if _method(run, row) == like and row.estimate and row.estimate.value > 0
    ]
    found = change_points.steps([point.estimate.value for point in points])
    left_out = len(series) - len(points)
    return History(case, chosen, tuple(points), left_out, tuple(found))


def _seen(store: Store, case: str, tag: str | None) -> Iterator[tuple[Run, Row]]:
    for run in store.runs():
        if tag is None or tag in run.tags:
            for row in rows(store.trials(run.uid, case)):
                yield run, row


def _method(run: Run, row: Row) -> tuple[Any, ...]:
    """Return what two runs must share for their times to be of one series."""
    trial: Trial = row.trials[-1]
    clock = trial.clock.id, trial.clock.version
    return run.machine.get("identity"), trial.hashes.get("method"), clock


def _unknown(store: Store, case: str, tag: str | None) -> SteelyardError:
    tagged = [run for run in store.runs() if tag is None or tag in run.tags]
    if not tagged:
        return SteelyardError(
            f"no run of store {store.name} has the tag {tag!r}; `steelyard show --runs` "
            "lists them."
            if tag
            else f"store {store.name} has no run yet; make one with `steelyard run`."
        )
    known: Sequence[Trial] = store.trials(tagged[-1].uid)
    return SteelyardError(
        f"no run of store {store.name} has a case {case!r}; `steelyard show` lists those "
        f"of the latest.{nearest(case, [t.case for t in known])}"
    )
