"""ABBA blocks: each side of each case twice, in fresh workers; a log ratio a block.

Both workers of a block live at once and one measures at a time. A case's four visits
follow each other within a fraction of a second, as A B B A or as B A A B in turn, so
that what drifts cancels; where the memory of a process lies is new in each block.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any, Final, Protocol

from steelyard import stats
from steelyard.benchmark import Case
from steelyard.errors import SteelyardError
from steelyard.gate.outcome import BASE, HEAD
from steelyard.gate.sides import Side
from steelyard.mode import Mode
from steelyard.plan import Turn
from steelyard.runner import Workers
from steelyard.settings import Settings
from steelyard.trial import Trial

VISIT: Final = 0.03
"""Seconds of sampling in one visit: four of them, and their warming up, are a block."""

PRECISION: Final = 0.002
"""Half-width at which a visit ends before: blocks differ by more than that."""

UNTIMED: Final = "_ns"
"""How facts end that are times themselves, and differ between any two builds."""


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
    cycles: float | None = None
    """The same of clock cycles, where the clock was read beside."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Sentences by the side that failed."""
    identical: bool = False
    """Whether both sides launch the same code the same way: then nothing is measured."""
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What the work of each side says of itself."""


class Weigher(Protocol):
    """What answers for one side: a worker process, or a fake."""

    def weigh(self, turn: Turn, settings: Settings) -> Trial:
        """Weigh one turn."""
        ...

    def facts(self, turn: Turn, settings: Settings) -> Mapping[str, Any]:
        """Return ``facts``, ``hashes`` and ``strays`` of a case, or its ``error``."""
        ...

    def end(self) -> None:
        """End it."""
        ...


def worker(side: Side) -> Weigher:
    """Return what starts a process of a side's when there is work."""
    return Workers(side.python, side.variables, side.path_of, side.root)


class Blocks:
    """Measures blocks and tells of every trial as it arrives, with its side."""

    def __init__(
        self,
        base: Side,
        head: Side,
        settings: Settings,
        on_trial: Callable[[str, Trial], None],
        start: Callable[[Side], Weigher] = worker,
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
        with TemporaryDirectory(
            prefix="steelyard-", ignore_cleanup_errors=True
        ) as folder:
            self._settings = replace(before, scratch=before.scratch or folder)
            try:
                yield
            finally:
                self._settings = before

    def measure(
        self, number: int, points: Sequence[Point], *, identity: bool = False
    ) -> Iterator[tuple[Point, Reading]]:
        """Measure one block of every point, and yield each when it is done.

        With ``identity`` the code of both sides is looked at first, and kernels that
        are the same are not measured.
        """
        with ExitStack() as opened:
            workers = {name: self._start(side) for name, side in self._sides.items()}
            for one in workers.values():
                opened.callback(one.end)
            for place, group in enumerate(_shuffled(points, number)):
                yield from self._group(workers, group, number, place, identity=identity)

    def _group(
        self,
        workers: Mapping[str, Weigher],
        group: Sequence[Point],
        number: int,
        place: int,
        *,
        identity: bool,
    ) -> Iterator[tuple[Point, Reading]]:
        """Yield the readings of the modes of one case."""
        first = Turn(0, number, group[0].case, group[0].mode)
        told = Reading()
        if identity:
            told = _identity(
                {n: one.facts(first, self._settings) for n, one in workers.items()}
            )
        for offset, point in enumerate(group):
            same = told.identical and point.mode.quantity == "kernel"
            if told.failed or same:
                yield point, told
                continue
            forward = (number + place + offset) % 2 == 0
            reading = self._visits(workers, point, number, forward=forward)
            yield point, replace(reading, facts=told.facts)

    def _visits(
        self,
        workers: Mapping[str, Weigher],
        point: Point,
        number: int,
        *,
        forward: bool,
    ) -> Reading:
        order = (BASE, HEAD, HEAD, BASE) if forward else (HEAD, BASE, BASE, HEAD)
        times: dict[str, list[float]] = {BASE: [], HEAD: []}
        cycles: dict[str, list[float]] = {BASE: [], HEAD: []}
        failed: dict[str, str] = {}
        for name in order:
            if name in failed:
                continue
            trial = self._visit(workers[name], point, number)
            self._on_trial(name, trial)
            problem = trial.error or unusable(trial)
            if problem:
                failed[name] = problem
                continue
            times[name].append(value(trial))
            megahertz = [mhz for mhz in trial.samples.mhz if mhz]
            if megahertz:
                cycles[name].append(value(trial) * median(megahertz))
        if failed:
            return Reading(failed=failed)
        return Reading(log_ratio(times), log_ratio(cycles))

    def _visit(self, one: Weigher, point: Point, number: int) -> Trial:
        turn = Turn(next(self._positions), number, point.case, point.mode)
        trial = one.weigh(turn, replace(self._settings, budget=VISIT))
        walked = trial.extra.get("flush_bytes")
        if walked is not None:
            self._settings = replace(self._settings, flush_bytes=walked)
        return trial


def value(trial: Trial) -> float:
    """Return the nanoseconds of a launch that one visit found."""
    return stats.of(trial).estimate.value


def unusable(trial: Trial) -> str:
    """Say why a trial's number is none; nothing where it is one."""
    if not len(trial.samples):
        return f"{trial.case}: no window was taken."
    backward = sum(ticks < 0 for ticks in trial.samples.ticks)
    if backward:
        return (
            f"{trial.case}: {backward} of {len(trial.samples)} windows are negative; "
            f"clock {trial.clock.id} steps back."
        )
    found = value(trial)
    if not (math.isfinite(found) and found > 0):
        return f"{trial.case}: takes {found} ns, which is no time."
    return ""


def log_ratio(times: Mapping[str, Sequence[float]]) -> float | None:
    """Return the logarithm of head over base of a block's visits, if all are there."""
    if not all(len(times[name]) == 2 for name in (BASE, HEAD)):
        return None
    means = {name: fmean(map(math.log, times[name])) for name in (BASE, HEAD)}
    return means[HEAD] - means[BASE]


def _shuffled(points: Iterable[Point], number: int) -> list[list[Point]]:
    """Return the modes of each case together, the cases in an order of this block."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(point.case.id, []).append(point)
    order = list(groups.values())
    random.Random(number).shuffle(order)  # noqa: S311 # an order, not a secret
    return order


def _identity(told: Mapping[str, Mapping[str, Any]]) -> Reading:
    """Compare what both sides say of a case's code.

    Raises:
        SteelyardError: base runs head's code.
    """
    failed = {name: str(one["error"]) for name, one in told.items() if "error" in one}
    if failed:
        return Reading(failed=failed)
    strays = told[BASE].get("strays")
    if strays:
        raise SteelyardError(
            f"base would run head's code: it imports {', '.join(strays[:5])} from there. "
            "Name a command that builds an environment .venv of its own in "
            "[tool.steelyard] build."
        )
    facts = {name: dict(one["facts"]) for name, one in told.items()}
    inputs = {name: one["hashes"].get("inputs") for name, one in told.items()}
    alike = inputs[BASE] == inputs[HEAD] and same_code(facts[BASE], facts[HEAD])
    return Reading(identical=alike, facts=facts)


def same_code(base: Mapping[str, Any], head: Mapping[str, Any]) -> bool:
    """Say whether two sides certainly launch the same code the same way.

    Code without a hash never does.
    """
    if not base.get("code_hash") or base.get("code_hash") != head.get("code_hash"):
        return False
    sides = [
        {name: fact for name, fact in side.items() if not name.endswith(UNTIMED)}
        for side in (base, head)
    ]
    return sides[0] == sides[1]
