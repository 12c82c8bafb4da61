"""Gate head against a stored run: unpaired, so day-to-day drift counts.

Nothing is paired, so that what the machine does from day to day is in the difference.
A case is told slower or faster only where the change is far beyond how much its own
time moved from run to run, and nothing is ever told the same: it stays unresolved.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Final

from steelyard import units
from steelyard.analyse import compare, kinds, verdict
from steelyard.analyse.change_points import divide
from steelyard.analyse.distributions import quantile
from steelyard.analyse.stats import Estimate
from steelyard.analyse.trial import METHOD_VERSION, Run, Trial
from steelyard.analyse.verdict import Judgement, Verdict
from steelyard.declare.plan import PlannedTrial, Settings
from steelyard.errors import SteelyardError, StoreError
from steelyard.gate import findings as made
from steelyard.gate.blocks import Point, same_code, unusable, value
from steelyard.gate.decide import POLICY
from steelyard.gate.outcome import HEAD, INCOMPARABLE, Finding
from steelyard.gate.sides import Side
from steelyard.gate.worktrees import no_commit
from steelyard.process import runner
from steelyard.process.runner import Workers
from steelyard.store.store import Store

WEAK: Final = (
    "base's numbers are from another time: nothing was measured in turn, and only a "
    "change far beyond the history's noise is told"
)

BLOCKS: Final = 4
RARE: Final = 0.00025
"""The chance that a case which did not change is slower; and that it is faster."""

FAR: Final = 5
"""Standard deviations that a change must be beyond where they are `ASSUMED`."""

RUNS: Final = 24
"""The latest runs that say how much a case moves by itself."""

ENOUGH: Final = 5
"""Runs that tell it; with fewer it is taken to be `ASSUMED`."""

ROBUST: Final = 8
"""Runs of which a few that were disturbed are trimmed."""

ASSUMED: Final = 0.05
"""A public history's unchanged kernels moved by more than this in a quarter of pairs."""

Key = tuple[str, str]


def find(store: Store, name: str, folder: Path) -> Run:
    """Return the stored run that a baseline names.

    Raises:
        StoreError: it is neither a commit nor a run.
    """
    try:
        return store.find(name)
    except StoreError as error:
        raise StoreError(f"{no_commit(name, folder)}, and {error}") from error


def require_comparable(base: Run, head: Run, store: Store) -> None:
    """Refuse a run of another machine, GPU, driver or method, or one without numbers.

    Raises:
        SteelyardError: it says what differs.
    """
    compare.require_same_machine(base, head)
    if differ := compare.deciding(base, head):
        what = "; ".join(f"{one.name} {one.base} -> {one.new}" for one in differ)
        raise SteelyardError(
            f"run {base.short} is of another GPU or driver and does not compare: "
            f"{what}. Measure the baseline again here."
        )
    trials = store.trials(base.uid)
    if not any(trial.error is None for trial in trials):
        raise SteelyardError(
            f"run {base.short} has no number to compare with. Name another."
        )
    methods = {trial.hashes.get("method") for trial in trials}
    if methods != {str(METHOD_VERSION)}:
        several = ", ".join(sorted(str(method) for method in methods))
        raise SteelyardError(
            f"run {base.short} was measured by method {several} and this is method "
            f"{METHOD_VERSION}: they do not compare. Measure the baseline again."
        )


def measure(
    head: Side,
    points: Sequence[Point],
    how: Settings,
    on_trial: Callable[[str, Trial], None],
    say: Callable[[str], None],
) -> None:
    """Measure every point in blocks of fresh workers."""
    every = itertools.product(range(BLOCKS), points)
    turns = [
        PlannedTrial(position, block, point.case, point.mode)
        for position, (block, point) in enumerate(every)
    ]

    begun: set[int] = set()
    began = monotonic()

    def on_turn(turn: PlannedTrial) -> None:
        if turn.block not in begun:
            begun.add(turn.block)
            done = turn.position
            left = units.left(monotonic() - began, done, len(turns) - done)
            cases = f"{len(points)} cases and modes"
            say(f"block {turn.block + 1} of {BLOCKS}: {cases}{left}")

    place = (head.python, head.variables, head.path_of, head.folder)
    keep = functools.partial(on_trial, HEAD)
    runner.run(turns, replace(how, budget=None), keep, on_turn, lambda: Workers(*place))


def findings(
    store: Store, base: Run, head: Run, points: Sequence[Point]
) -> Iterator[Finding]:
    """Yield what is said of every point, then of each case that only base has."""
    old, new = (_by_key(store.trials(run.uid)) for run in (base, head))
    past = _past(store, head, {run.uid for run in (base, head)})
    for point in points:
        key = (point.case.id, str(point.mode))
        yield _finding(point, old.get(key, []), new.get(key, []), past.get(key, []))
    yield from made.vanished({case for case, _ in old}, {p.case.id for p in points})


def _by_key(trials: Sequence[Trial]) -> dict[Key, list[Trial]]:
    found: dict[Key, list[Trial]] = {}
    for trial in trials:
        found.setdefault((trial.case, trial.mode), []).append(trial)
    return found


def _past(store: Store, head: Run, skipped: set[str]) -> Mapping[Key, list[float]]:
    """Return the logarithms of the times of each case in the latest runs here."""
    place = kinds.place(head.machine)
    here = [
        run
        for run in store.heads()
        if run.place == place and run.uid not in skipped and not run.pruned
    ]
    found: dict[Key, list[float]] = {}
    for run in here[-RUNS:]:
        for key, trials in _by_key(store.trials(run.uid)).items():
            blocks = _blocks(trials)
            if blocks:
                found.setdefault(key, []).append(statistics.fmean(blocks))
    return found


def _blocks(trials: Sequence[Trial]) -> list[float]:
    good = [t for t in trials if t.error is None and not unusable(t)]
    return [math.log(value(trial)) for trial in good]


def _finding(
    point: Point, old: Sequence[Trial], new: Sequence[Trial], past: Sequence[float]
) -> Finding:
    problem = next((t.error or unusable(t) for t in new if t.error or unusable(t)), "")
    if problem or not new:
        return made.finding(point, None, note=problem or "it was not measured")
    if not old:
        return made.finding(point, None, new=True, note="new: the run lacks this case")
    before = _blocks(old)
    if not before:
        note = f"base failed: {old[0].error}"
        return made.finding(point, Verdict.UNRESOLVED, note=note)
    obstacle = _obstacle(old[-1], new[-1])
    if obstacle:
        return made.finding(point, Verdict.UNRESOLVED, note=obstacle)
    code, other = (str(t.facts.get("code_hash") or "") for t in (old[-1], new[-1]))
    if point.mode.quantity == "kernel" and same_code(old[-1].facts, new[-1].facts):
        return made.finding(point, Verdict.IDENTICAL_CODE, codes=(code, other))
    judgement = judge(before, _blocks(new), past)
    return made.finding(
        point, judgement.verdict, judgement=judgement, codes=(code, other)
    )


def _obstacle(old: Trial, new: Trial) -> str:
    """Say why two trials are not of the same thing."""
    for what, read in compare.METHOD.items():
        if read(old) != read(new):
            return f"{INCOMPARABLE}: {what} {read(old)} -> {read(new)}"
    dtypes = [trial.facts.get("dtype") for trial in (old, new)]
    if all(dtypes) and dtypes[0] != dtypes[1]:
        return f"{INCOMPARABLE}: dtype {dtypes[0]} -> {dtypes[1]}"
    if old.hashes.get("inputs") != new.hashes.get("inputs"):
        return f"{INCOMPARABLE}: other inputs"
    return ""


def judge(
    base: Sequence[float], head: Sequence[float], past: Sequence[float]
) -> Judgement:
    """Judge two sets of blocks that were not paired, by how much the case moves.

    Runs before the case's latest step say nothing of that. Few runs hardly know it:
    the change must be beyond Student's t of so many.
    """
    change = statistics.fmean(head) - statistics.fmean(base)
    moves, far = _moves(past)
    within = sum(statistics.pvariance(side) / len(side) for side in (base, head))
    reach = far * math.sqrt(2 * moves**2 + within)
    margin = math.log1p(POLICY.margin)
    said = Verdict.UNRESOLVED
    if abs(change) > margin + reach:
        said = Verdict.SLOWER if change > 0 else Verdict.FASTER
    ends = (math.exp(change - reach), math.exp(change + reach))
    return Judgement(
        said,
        Estimate(math.exp(change), *ends),
        min(len(base), len(head)),
        math.expm1(margin + reach),
    )


def _moves(past: Sequence[float]) -> tuple[float, float]:
    """Return how much a case moves from run to run, and how many of that are far."""
    parts = divide([math.exp(run) for run in past]).segments
    latest = past[parts[-1].first :] if parts else ()
    if len(latest) < ENOUGH:
        return ASSUMED, FAR
    centre = (verdict.trimmed if len(latest) >= ROBUST else verdict.mean)(latest)
    spread = centre.error * math.sqrt(len(latest))
    return spread, quantile(1 - RARE, centre.freedom)
