"""Cases over many runs: their times in order, and where they stepped.

Only what was measured alike is of one series: the machine, the method and the clock are
those of the latest; for a kind of machines, the kind. A step is told from the case's own
noise (`change_points`).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from steelyard.analyse import change_points, kinds
from steelyard.analyse.change_points import Episode, Step
from steelyard.analyse.rows import nearest
from steelyard.analyse.stats import Estimate
from steelyard.analyse.trial import UNKNOWN, Run
from steelyard.errors import SteelyardError
from steelyard.store.run import Head
from steelyard.store.store import Store
from steelyard.store.summary import Entry

OTHERWISE: Final = ("gate", "selftest", "bisect", "replay", "attach")
"""Tags (or what stands before their /) of runs that are no history: their trials are
short, or measure code that was made slower on purpose or is a capsule's, of any commit.
``--tag`` asks for them."""


MANY: Final = 10
SHARED: Final = 0.25
"""Histories that step at one commit, in number and as a share of those measured across
it, from which the machine, a compiler or a dependency is the likely cause."""


@dataclass(frozen=True, slots=True)
class Point:
    """What one run says of a case, in nanoseconds per launch."""

    commit: str
    run: str
    """What the run is called where its commit is unknown."""
    started: str
    estimate: Estimate
    place: str = ""
    """The machine, where several of a kind are of one history."""

    @property
    def name(self) -> str:
        """The commit as people write it, or the run."""
        return f"run {self.run}" if self.commit == UNKNOWN else self.commit[:10]


@dataclass(frozen=True, slots=True)
class Measured:
    """One case in one mode of one run."""

    case: str
    mode: str
    like: Hashable
    """What two of a series share: where, how and with which clock it was measured."""
    point: Point | None
    """None where it failed, or took no time that is one."""
    kind: str = ""
    """Of the machine."""


@dataclass(frozen=True, slots=True)
class History:
    """One case in one mode over runs, the latest last."""

    case: str
    mode: str
    points: tuple[Point, ...]
    left_out: int
    """Runs that have the case but were measured otherwise or elsewhere."""
    failed: int
    """Runs in which it failed."""
    steps: tuple[Step, ...]
    episodes: tuple[Episode, ...] = ()
    """Runs that left their level for a short time."""
    smallest: float = math.inf
    """The smallest step that the next few runs would show, as a share."""

    @property
    def machines(self) -> int:
        """How many machines its points are of."""
        return len({point.place for point in self.points})


def histories(measured: Iterable[Measured]) -> list[History]:
    """Return the series of every case and mode, in order of their first runs."""
    series: dict[tuple[str, str], list[Measured]] = defaultdict(list)
    for one in measured:
        series[one.case, one.mode].append(one)
    return [_history(*key, found) for key, found in series.items()]


def _history(case: str, mode: str, series: Sequence[Measured]) -> History:
    good = [one for one in series if one.point is not None]
    points = [m.point for m in good if m.point and m.like == good[-1].like]
    division = change_points.divide([point.estimate.value for point in points])
    return History(
        case=case,
        mode=mode,
        points=tuple(points),
        left_out=len(good) - len(points),
        failed=len(series) - len(good),
        steps=division.steps,
        episodes=division.episodes,
        smallest=division.segments[-1].smallest if points else math.inf,
    )


@dataclass(frozen=True, slots=True)
class Place:
    """A commit at which histories stepped."""

    point: Point
    """The first run with the commit, of any history."""
    found: tuple[tuple[History, Step], ...]
    """The histories that stepped there, the greatest change first."""
    measured: int
    """Histories with runs on both sides of the commit."""

    @property
    def everywhere(self) -> bool:
        """Whether so many stepped at once that one change of code is unlikely."""
        return len(self.found) >= max(MANY, SHARED * self.measured)


def places(found: Iterable[History]) -> list[Place]:
    """Return the commits at which histories stepped, the latest first."""
    found = list(found)
    by_name: dict[str, list[tuple[History, Step]]] = defaultdict(list)
    for one in found:
        for step in one.steps:
            by_name[one.points[step.at].name].append((one, step))
    across = Counter(p.name for one in found for p in one.points[1:])
    made = [
        Place(
            min((h.points[s.at] for h, s in each), key=lambda p: p.started),
            tuple(sorted(each, key=lambda one: -abs(math.log(1 + one[1].change)))),
            across[name],
        )
        for name, each in by_name.items()
    ]
    return sorted(made, key=lambda place: place.point.started, reverse=True)


def chosen(found: Sequence[History], mode: str | None) -> History:
    """Return one case's history in a mode, by default the first it was measured in.

    Raises:
        SteelyardError: it was never measured in that mode, or failed in every run.
    """
    modes = [one.mode for one in found]
    if mode is not None and mode not in modes:
        raise SteelyardError(
            f"{found[0].case} was never measured in mode {mode}; it was in "
            f"{', '.join(modes)}."
        )
    wanted = [one for one in found if mode in {None, one.mode}]
    for one in wanted:
        if one.points:
            return one
    raise SteelyardError(
        f"{found[0].case} failed in all {wanted[0].failed} runs; `steelyard show` says "
        "why."
    )


def stored(
    store: Store,
    case: str | None = None,
    tag: str | None = None,
    commits: Sequence[str] | None = None,
    *,
    on: Sequence[str] = (),
    last: int | None = None,
) -> list[Measured]:
    """Return what the runs of a store say of a case, or of all, the latest last.

    ``tag`` leaves only the runs that have it, and ``last`` the latest so many. Of
    ``commits``, the oldest first, only runs of unchanged checkouts are taken, and stand
    in their order. With ``on`` (see `kinds.accepts`) all machines of such kinds count,
    and two of one kind are of one series.

    Raises:
        SteelyardError: there is no such run, or none has the case.
    """
    runs = [run for run in store.heads() if is_of_history(run, tag)]
    runs.sort(
        key=lambda run: run.started
    )  # an imported one may be older than its place
    if commits is not None:
        runs = along([run for run in runs if not run.dirty], commits)
    if not runs:
        raise _without_runs(store, tag, branch=commits is not None)
    runs = _on(runs, on, store.name)
    runs = runs[-last:] if last else runs
    summaries = store.summaries([run.uid for run in runs], case, runs)
    found = [
        _measured(run, entry, by_kind=bool(on))
        for run in runs
        for entry in summaries[run.uid]
    ]
    if found:
        return found
    known = store.summaries([runs[-1].uid])[runs[-1].uid]
    raise unknown(case or "", [entry.case for entry in known], f"store {store.name}")


def _on(runs: list[Head], on: Sequence[str], store: str) -> list[Head]:
    """Return the runs of machines that one of the selectors accepts."""
    every = {kind: kinds.facts_of(kind) for kind in dict.fromkeys(r.kind for r in runs)}
    wanted = {
        kind
        for kind, facts in every.items()
        if not on or any(kinds.accepts(one, facts) for one in on)
    }
    if not wanted:
        raise SteelyardError(
            f"--on {', '.join(on)}: no run of store {store} is of such a machine; they "
            f"are of {' | '.join(every)}."
        )
    return [run for run in runs if run.kind in wanted]


def by_kind(measured: Iterable[Measured]) -> dict[str, list[Measured]]:
    """Return what was measured by the kind of its machine."""
    found: dict[str, list[Measured]] = defaultdict(list)
    for one in measured:
        found[one.kind].append(one)
    return found


def along(runs: Iterable[Head], commits: Sequence[str]) -> list[Head]:
    """Return the runs of some commits, in the commits' order."""
    places: Mapping[str, int] = {commit: at for at, commit in enumerate(commits)}
    taken = [run for run in runs if run.commit in places]
    return sorted(taken, key=lambda run: (places[run.commit], run.started))


def unknown(case: str, known: Iterable[str], place: str) -> SteelyardError:
    """Return the error of a case that no run has."""
    return SteelyardError(
        f"no run of {place} has a case {case!r}; `steelyard history` lists those that "
        f"stepped, `steelyard show` those of the latest.{nearest(case, known)}"
    )


def usable(estimate: Estimate | None) -> bool:
    """Tell whether an estimate is a time."""
    return estimate is not None and 0 < estimate.value < math.inf


def is_of_history(run: Run | Head, tag: str | None) -> bool:
    """Tell whether a run is of the history of a tag; without one, of the usual one."""
    if tag is not None:
        return tag in run.tags
    return not any(word.partition("/")[0] in OTHERWISE for word in run.tags)


def _measured(run: Head, entry: Entry, *, by_kind: bool) -> Measured:
    """Return an entry of a run; two of one series share machine, clock and method."""
    point = None
    if entry.estimate is not None and usable(entry.estimate):
        point = Point(run.commit, run.short, run.started, entry.estimate, run.place)
    like = (run.kind if by_kind else run.place, entry.clock, entry.method)
    return Measured(entry.case, entry.mode, like, point, run.kind)


def _without_runs(store: Store, tag: str | None, *, branch: bool) -> SteelyardError:
    if branch:
        return SteelyardError(
            f"no run of store {store.name} is of an unchanged commit of that branch; "
            "`steelyard show --runs` lists their commits."
        )
    if tag is not None:
        return SteelyardError(
            f"no run of store {store.name} has the tag {tag!r}; `steelyard show --runs` "
            "lists them."
        )
    return SteelyardError(
        f"store {store.name} has no run yet; make one with `steelyard run`."
    )
