"""Blocks: both sides of each case in turn, in fresh workers; a log ratio a block.

Both workers of a block live at once and one measures at a time. Windows that the host's
clock reads are taken in turn, a few milliseconds apart (`interleave`), those of kernels of
both sides in one process, on the same memory (`pair`); of kernels on a GPU, whose
windows stand in queues, each side has two visits, A B B A or B A A B. So what drifts
cancels; where the memory of a process lies is new in each block.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from steelyard.analyse import stats
from steelyard.analyse.trial import Trial
from steelyard.declare.benchmark import Case
from steelyard.declare.handles import CUDA
from steelyard.declare.mode import Mode
from steelyard.declare.plan import PlannedTrial, Settings
from steelyard.errors import SteelyardError
from steelyard.gate.outcome import BASE, HEAD, INCOMPARABLE
from steelyard.gate.pairs import Pair
from steelyard.gate.sides import Side
from steelyard.measure import interleave
from steelyard.process import scratch

VISIT: Final = 0.03
"""Seconds of sampling in one visit; in turn both sides have four of them together, and
eight where most of the time goes to flushes or builds."""

QUICKEST: Final = 0.2
"""The share of windows in turn that counts. Neighbours on a machine only ever add time:
on a busy one a block of these is half as uncertain as of the median, on a quiet one as
certain. What becomes slower in some windows only is in the mean of all of them."""

TRIMMED: Final = 0.1
"""The share of windows at each end that the mean of all windows leaves out: one that is
interrupted may take longer than all others together."""

PRECISION: Final = 0.004
"""Half-width at which a visit ends before: blocks differ by more than that."""

UNTIMED: Final = "_ns"
"""How facts end that are times themselves, and differ between any two builds."""

COMPILER: Final = "compiler_hash"
"""The fact that tells one compiler from another: a hash of its sources."""


@dataclass(frozen=True, slots=True)
class Point:
    """One case in one mode."""

    case: Case
    mode: Mode

    @property
    def key(self) -> str:
        """The case's id and the mode, as verdicts are kept by."""
        return f"{self.case.id} {self.mode}"


@dataclass(frozen=True, slots=True)
class Reading:
    """What one block says of one point."""

    ratio: float | None = None
    """The logarithm of head over base; None where a side failed."""
    mean: float | None = None
    """The same of the mean of all windows but the most extreme (`TRIMMED`)."""
    grain: float = 0.0
    """The share of a side's time that its clock cannot tell."""
    cycles: float | None = None
    """The same of clock cycles, where the clock was read beside."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Sentences by the side that failed."""
    identical: frozenset[str] = frozenset()
    """Quantities of which both sides run the same code: these are not measured."""
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What the work of each side says of itself."""


class Blocks:
    """Measures blocks and reports every trial as it arrives, with its side."""

    def __init__(
        self,
        base: Side,
        head: Side,
        settings: Settings,
        on_trial: Callable[[str, Trial], None],
        start: Callable[[Mapping[str, Side]], Pair] = Pair,
    ) -> None:
        self._sides = {BASE: base, HEAD: head}
        self._settings = replace(settings, precision=PRECISION)
        self._on_trial = on_trial
        self._start = start
        self._positions = itertools.count()

    @contextmanager
    def scratch(self) -> Iterator[None]:
        """Let all blocks within share references and how far a flush walks."""
        before = self._settings
        with scratch.folder() as folder:
            self._settings = replace(before, scratch=before.scratch or folder)
            try:
                yield
            finally:
                self._settings = before

    def measure(
        self, number: int, points: Sequence[Point], *, identity: bool = False
    ) -> Iterator[tuple[Point, Reading]]:
        """Measure one block of every point, and yield each when it is done.

        With ``identity`` the code of both sides is looked at first, and kernels and
        builds that are the same are not measured.
        """
        with self._start(self._sides) as pair:
            for place, group in enumerate(by_case(points, number)):
                code = self._look(pair, group[0], number) if identity else Reading()
                for offset, point in enumerate(group):
                    same = point.mode.quantity in code.identical
                    if code.failed or same:
                        yield point, code
                        continue
                    forward = (number + place + offset) % 2 == 0
                    order = (BASE, HEAD) if forward else (HEAD, BASE)
                    reading = self._read(pair, point, number, order)
                    if reading.failed:
                        pair.renew()  # one side may still wait for the other
                    yield point, replace(reading, facts=code.facts)

    def look(self, point: Point) -> Reading:
        """Return what both sides say of a point's code; nothing is measured."""
        with self._start(self._sides) as pair:
            return self._look(pair, point, 0)

    def _look(self, pair: Pair, point: Point, number: int) -> Reading:
        turn = PlannedTrial(0, number, point.case, point.mode)
        answers = {s: pair.facts(s, turn, self._settings) for s in self._sides}
        code = _identity(answers, unbuilt=self._sides[BASE].unbuilt)
        if code.failed:
            pair.renew()
        return code

    def _read(
        self, pair: Pair, point: Point, number: int, order: tuple[str, str]
    ) -> Reading:
        if not _in_queues(point):
            return self._in_turn(pair, point, number, order[0])
        first, second = order
        visits: dict[str, list[Trial]] = {BASE: [], HEAD: []}
        for side in (first, second, second, first):
            turn = self._turn(point, number)
            trial = pair.measure(side, turn, replace(self._settings, budget=VISIT))
            self._take(side, trial)
            visits[side].append(trial)
            if trial.error or unusable(trial):
                break
        return of_visits(visits)

    def _in_turn(self, pair: Pair, point: Point, number: int, leader: str) -> Reading:
        turns = {side: self._turn(point, number) for side in self._sides}
        cold = point.mode.cache == "cold"
        how = replace(self._settings, budget=(8 if cold else 4) * VISIT)
        trials = pair.in_turn(leader, turns, how)
        for side, trial in trials.items():
            self._take(side, trial)
        return of_turns(trials)

    def _turn(self, point: Point, number: int) -> PlannedTrial:
        return PlannedTrial(next(self._positions), number, point.case, point.mode)

    def _take(self, side: str, trial: Trial) -> None:
        self._on_trial(side, trial)
        walked = trial.extra.get("flush_bytes")
        if walked is not None:
            self._settings = replace(self._settings, flush_bytes=walked)


def _in_queues(point: Point) -> bool:
    """Say whether a GPU's clock reads windows that nobody waits within."""
    if point.mode.quantity != "kernel":
        return False
    try:
        return point.case.device() == CUDA
    except SteelyardError:
        return False  # measuring it says why


def of_visits(visits: Mapping[str, Sequence[Trial]]) -> Reading:
    """Return what two visits of each side say."""
    problems = {side: _failures(trials) for side, trials in visits.items()}
    failed = {side: why[0] for side, why in problems.items() if why}
    if failed:
        return Reading(failed=failed)
    times = {s: [math.log(value(t)) for t in trials] for s, trials in visits.items()}
    clocks = {s: [_megahertz(t) for t in trials] for s, trials in visits.items()}
    ratio = fmean(times[HEAD]) - fmean(times[BASE])
    windows = {
        s: [x for t in trials for x in stats.corrected(t)]
        for s, trials in visits.items()
    }
    grain = max(_grain(trial) for trials in visits.values() for trial in trials)
    found = Reading(ratio, _of_means(windows), grain)
    if not all(all(read) for read in clocks.values()):
        return found
    faster = {side: fmean(map(math.log, read)) for side, read in clocks.items()}
    return replace(found, cycles=ratio + faster[HEAD] - faster[BASE])


def of_turns(trials: Mapping[str, Trial]) -> Reading:
    """Return what windows in turn say: the ratio of each side's quickest ones."""
    problems = {side: _failures([trial]) for side, trial in trials.items()}
    failed = {side: why[0] for side, why in problems.items() if why}
    blamed = {s: why for s, why in failed.items() if not why.endswith(interleave.OTHER)}
    if failed:
        return Reading(failed=blamed or failed)
    ratio = math.log(quickest(trials[HEAD]) / quickest(trials[BASE]))
    windows = {side: stats.corrected(trial) for side, trial in trials.items()}
    return Reading(ratio, _of_means(windows), max(map(_grain, trials.values())))


def quickest(trial: Trial) -> float:
    """Return the mean nanoseconds of a launch in the quickest windows of a trial."""
    times = sorted(stats.corrected(trial))
    return fmean(times[: math.ceil(QUICKEST * len(times))])


def _of_means(windows: Mapping[str, Sequence[float]]) -> float | None:
    """Return the logarithm of head over base of the mean of all windows."""
    base, head = (mean_of(windows[side]) for side in (BASE, HEAD))
    return math.log(head / base) if base > 0 and head > 0 else None


def mean_of(windows: Sequence[float]) -> float:
    """Return the mean of windows, without the most extreme of either end."""
    ordered = sorted(windows)
    cut = int(TRIMMED * len(ordered))
    return fmean(ordered[cut : len(ordered) - cut])


def _grain(trial: Trial) -> float:
    """Return the share of a trial's time that its clock cannot tell.

    Of windows that begin at any phase of a tick the mean is off by less than one.
    """
    steps = trial.clock.quantum / trial.samples.launches[0]
    return steps / math.sqrt(len(trial.samples)) / quickest(trial)


def _failures(trials: Iterable[Trial]) -> list[str]:
    problems = (trial.error or unusable(trial) for trial in trials)
    return [problem for problem in problems if problem]


def _megahertz(trial: Trial) -> float:
    read = [mhz for mhz in trial.samples.mhz if mhz]
    return median(read) if read else 0.0


def value(trial: Trial) -> float:
    """Return the nanoseconds of a launch that one visit found."""
    return stats.of(trial).estimate.value


def unusable(trial: Trial) -> str:
    """Say why a trial's number is none; nothing where it is one."""
    if not len(trial.samples):
        return f"{trial.case}: no window was taken."
    none = sum(not ticks > 0 for ticks in trial.samples.ticks)
    if none:
        return (
            f"{trial.case}: {none} of {len(trial.samples)} windows took no time, or "
            f"less; clock {trial.clock.id} stands or steps back."
        )
    times = stats.corrected(trial)
    finite = all(map(math.isfinite, times))
    found = min(value(trial), quickest(trial)) if finite else times[0]
    if not (finite and found > 0):
        return f"{trial.case}: takes {found} ns, which is no time."
    return ""


def by_case(points: Iterable[Point], seed: int | str) -> list[list[Point]]:
    """Return the modes of each case together, the cases in a random order."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(point.case.id, []).append(point)
    order = list(groups.values())
    random.Random(seed).shuffle(order)  # noqa: S311 # an order, not a secret
    return order


def _identity(
    answers: Mapping[str, Mapping[str, Any]], *, unbuilt: bool = False
) -> Reading:
    """Compare what both sides say of a case's code.

    Without a library of its own an ``unbuilt`` base may run other code than its commit's.
    """
    failed = {
        name: str(one["error"]) for name, one in answers.items() if "error" in one
    }
    if failed:
        return Reading(failed=failed)
    facts = {name: dict(one["facts"]) for name, one in answers.items()}
    if len({one["hashes"].get("inputs") for one in answers.values()}) > 1:
        return Reading(failed={BASE: f"{INCOMPARABLE}: other inputs"}, facts=facts)
    base, head = (answers[side].get("libraries") for side in (BASE, HEAD))
    if unbuilt and head and not base:
        why = (
            f"{INCOMPARABLE}: the checkout has loaded {Path(head[0]).name}, the base no "
            "library of its own; name what builds it as `build` in [tool.steelyard]"
        )
        return Reading(failed={BASE: why}, facts=facts)
    return Reading(identical=frozenset(_identical(answers, facts)), facts=facts)


def _identical(
    answers: Mapping[str, Mapping[str, Any]], facts: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    """Yield the quantities of which both sides run the same code on the same inputs."""
    base, head = answers[BASE], answers[HEAD]
    launched_alike = base.get("launch") == head.get("launch")
    if launched_alike and same_code(facts[BASE], facts[HEAD]):
        yield "kernel"
    around = base.get("environment")
    alike = bool(around) and around == head.get("environment")
    if alike and same_build(facts[BASE], facts[HEAD]):
        yield "build"


def same_code(base: Mapping[str, Any], head: Mapping[str, Any]) -> bool:
    """Say whether two sides certainly launch the same code the same way.

    Code without a hash never does; which compiler made it is all the same.
    """
    if not base.get("code_hash"):
        return False
    return _lasting(base, COMPILER) == _lasting(head, COMPILER)


def same_build(base: Mapping[str, Any], head: Mapping[str, Any]) -> bool:
    """Say whether two sides certainly build the same in the same way.

    That takes the same sources of the compiler, whose hash the work tells; and the same
    environment, which is not asked for here.
    """
    return bool(base.get(COMPILER)) and _lasting(base) == _lasting(head)


def _lasting(facts: Mapping[str, Any], *besides: str) -> dict[str, Any]:
    """Return facts that are the same whenever the same is done."""
    return {
        name: fact
        for name, fact in facts.items()
        if name not in besides and not name.endswith(UNTIMED)
    }
