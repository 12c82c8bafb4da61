"""Find the fastest candidate of a point: build all, halve by measuring, confirm the best.

Candidates are schedules of a kernel, or partitions of a program of several launches.

    Point --build--> distinct codes --screen, a quarter each time--> finalists --confirm-->

Every trial is a case's of the harness and stored when it is taken. A tuning that was
stopped goes on where it was: what is stored of it is not measured again.
"""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Final

from steelyard.analyse import rows as analysed
from steelyard.analyse.rows import Row
from steelyard.analyse.stats import Estimate
from steelyard.analyse.trial import KILLED, Run, Trial
from steelyard.declare.benchmark import Case
from steelyard.declare.mode import parse as mode
from steelyard.declare.plan import PlannedTrial, Settings
from steelyard.errors import SteelyardError
from steelyard.machine import lock, writer
from steelyard.process import scratch
from steelyard.process.runner import Workers
from steelyard.store import session
from steelyard.store.store import Store
from steelyard_kernels.artifact import Artifact, Failure, digest
from steelyard_kernels.building import tuned
from steelyard_kernels.building.cache import keeps
from steelyard_kernels.building.keys import sources
from steelyard_kernels.errors import KernelError
from steelyard_kernels.group import Batch
from steelyard_kernels.schedule.schedule import Schedule
from steelyard_kernels.targets import parse
from steelyard_lock.points import Point
from steelyard_lock.tuning_cases import case
from steelyard_lock.tuning_space import How, Space

KEPT: Final = 4
"""One candidate in so many goes on from each round of the screening."""

FINALISTS: Final = 6
"""Candidates that are confirmed, beside the heuristic's."""

TOGETHER: Final = 16
"""Candidates whose windows are taken in turn, on the same buffers."""

SCREENED: Final = 0.03
"""Seconds of windows of a candidate in the first round; twice that in each that follows."""

PRECISION: Final = 0.02
"""Half-width of the interval at which a candidate has enough windows in the screening."""

CONFIRMED: Final = 0.1
"""Seconds of windows of a finalist in each block."""

FEWEST: Final = 2
"""Blocks of the finalists at least, for an interval."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """What a tuning came to."""

    space: Space
    batch: Batch
    run: Run
    trials: tuple[Trial, ...]
    resumed: int
    """Trials that an earlier process had stored."""
    finalists: tuple[Row, ...]
    """Of the last blocks alone, with their time over the heuristic's, the fastest first."""
    seconds: Mapping[str, float]
    """That building, screening and confirming took."""

    @property
    def point(self) -> Point:
        """What was tuned."""
        return self.space.point

    @property
    def failures(self) -> tuple[str, ...]:
        """Why candidates came to nothing: in their build, or when they were measured."""
        failed = [f.error for f in self.batch.results if isinstance(f, Failure)]
        return (*failed, *(t.error for t in self.trials if t.error))

    @property
    def counts(self) -> dict[str, int]:
        """How many candidates there were, and what became of them."""
        return {
            "candidates": len(self.batch.results),
            "distinct": len(self.batch.distinct),
            "failed": len(self.failures),
        }

    @property
    def chosen(self) -> Schedule:
        """The fastest finalist; the heuristic's where none is surely faster."""
        best = self.finalists[0]
        ratio = best.relative
        if ratio is None or not ratio.high < 1:
            return self.space.heuristic
        return self.space.tuned.schedule(str(best.axes["schedule"]))

    @property
    def gain(self) -> Estimate | None:
        """The time of the fastest finalist over the heuristic's."""
        return self.finalists[0].relative

    def keep(self, path: str) -> None:
        """Write the choice to a file that builds may be told to read."""
        facts = {
            "kernel": self.point.kernel.rpartition(":")[2],
            "arrays": self.point.shapes,
            "target": self.point.target,
            "mode": self.finalists[0].mode,
            "label": self.chosen.label,
            "heuristic": self.space.heuristic.label,
            "ratio": round(self.gain.value, 4) if self.gain else None,
            "run": self.run.uid,
        }
        program, target = self.space.tuned.program, parse(self.point.target)
        tuned.keep(path, program, target, self.chosen, facts)


def tune(space: Space, how: How) -> Tuning:
    """Build and measure the candidates of a point.

    Raises:
        KernelError: nothing of it can be built, or there is nowhere to keep builds.
        SteelyardError: another run measures, or no candidate is right.
    """
    if not keeps():
        raise KernelError(
            "tuning hands builds to the processes that measure by the cache on disk, and "
            "STEELYARD_CACHE=off says that there is none; unset it, or name a folder."
        )
    began = perf_counter()
    deadline = began + how.seconds
    batch = space.built(how)
    built = perf_counter()
    first = _same_code(batch, space.heuristic)
    with _recorded(space, how) as journal:
        every = [one.schedule for one in batch.distinct]
        left = journal.screened(every, first, (built + deadline) / 2)
        screened = perf_counter()
        last = journal.confirmed(left, first, deadline)
        own = case(space.point, first).id
        found = journal.audited(_finalists(last, journal.trials, own))
    times = {
        "build": built - began,
        "screen": screened - built,
        "confirm": perf_counter() - screened,
    }
    trials, resumed = tuple(journal.trials), journal.resumed
    return Tuning(space, batch, journal.run, trials, resumed, tuple(found), times)


def _same_code(batch: Batch, wanted: Schedule) -> Schedule:
    """Return the schedule whose code a schedule's is; raises KernelError if it failed."""
    for place, result in enumerate(batch.results):
        if result.schedule == wanted:
            if isinstance(result, Failure):
                raise KernelError(f"the heuristic's choice failed: {result.error}")
            same = batch.results[batch.duplicates.get(place, place)]
            assert isinstance(same, Artifact)
            return same.schedule
    raise AssertionError(wanted.label)


def _finalists(
    trials: Sequence[Trial], every: Sequence[Trial], heuristic: str
) -> list[Row]:
    """Return rows with their ratio to the heuristic's, the fastest first.

    Of `every` trial those of the heuristic's say why it has none.
    """
    made = [row for row in analysed.rows(trials) if row.estimate is not None]
    base = [row for row in made if row.case == heuristic]
    if not base:
        errors = "; ".join(t.error for t in every if t.error and t.case == heuristic)
        raise SteelyardError(f"no choice: the heuristic's was not measured: {errors}")
    related = [
        replace(row, relative=analysed.paired_ratio(row.trials, base[0].trials))
        for row in made
    ]
    return sorted(related, key=lambda row: row.estimate.value if row.estimate else 0.0)


@dataclass(slots=True)
class Journal:
    """A tuning's run: what is stored of it, and what is measured yet."""

    space: Space
    how: How
    store: Store
    run: Run
    trials: list[Trial]
    resumed: int
    scratch: str
    block: int = 0

    def screened(
        self, every: Sequence[Schedule], first: Schedule, deadline: float
    ) -> list[Schedule]:
        """Leave a quarter each time, until few enough are left; `first` always stays.

        Past the deadline the best of those that were measured are left.
        """
        left, seconds = list(every), SCREENED
        while len(left) > FINALISTS + 1:
            settings = replace(self.how.settings, precision=PRECISION, audit=False)
            settings = replace(settings, budget=seconds)
            found = self._block(left, settings, "screening", deadline)
            order = _by_time(found)
            over = perf_counter() > deadline
            most = FINALISTS if over else max(FINALISTS, -(-len(left) // KEPT))
            left = sorted(left, key=lambda s: order.get(self._case(s).id, 1e300))
            left = [s for s in left[:most] if self._case(s).id in order]
            left += [first] if first not in left else []
            seconds *= 2
        return left

    def confirmed(
        self, left: Sequence[Schedule], first: Schedule, deadline: float
    ) -> list[Trial]:
        """Measure finalists in several blocks, in `FEWEST` where there is time for no more.

        The audit of the fastest, which comes next, takes about as long as a block.
        """
        every = left if first in left else [*left, first]
        settings = replace(self.how.settings, budget=CONFIRMED, audit=False)
        found: list[Trial] = []
        taken = 0.0
        for number in range(self.how.blocks):
            began = perf_counter()
            if number >= FEWEST and began + 2 * taken > deadline:
                break
            found += self._block(every, settings, "confirming")
            taken = perf_counter() - began
        return found

    def audited(self, rows: Sequence[Row]) -> list[Row]:
        """Leave out the fastest until it is right on other data too: see `audit`."""
        errors = []
        for place, row in enumerate(rows):
            fastest = self.space.tuned.schedule(str(row.axes["schedule"]))
            (trial,) = self._block([fastest], self.how.settings, "auditing")
            if not trial.error:
                return list(rows[place:])
            errors.append(trial.error)
        raise SteelyardError(f"no finalist is right: {'; '.join(errors)}")

    def _case(self, schedule: Schedule) -> Case:
        return case(self.space.point, schedule)

    def _block(
        self,
        every: Sequence[Schedule],
        settings: Settings,
        what: str,
        deadline: float = math.inf,
    ) -> list[Trial]:
        """Measure each candidate once, in a process, but what is stored already.

        Past the deadline none is begun.
        """
        settings = replace(settings, scratch=self.scratch)
        cases = [self._case(schedule) for schedule in every]
        known = {t.case: t for t in self.trials if t.block == self.block}
        found = [known[each.id] for each in cases if each.id in known]
        broken = {t.case for t in self.trials if t.error}
        wanted = [each for each in cases if each.id not in known.keys() | broken]
        shuffle = random.Random(f"{settings.seed} {self.block}")  # noqa: S311 # an order
        shuffle.shuffle(wanted)
        places = range(len(self.trials), len(self.trials) + len(wanted))
        turns = [
            PlannedTrial(position, self.block, each, mode(self.how.mode))
            for position, each in zip(places, wanted, strict=True)
        ]
        with Workers() as workers:
            for trials in _measured(workers, turns, settings):
                for trial in trials:
                    self.store.add(self.run.uid, trial)
                    self.trials.append(trial)
                    found.append(trial)
                self.how.measured(what, len(found), len(cases))
                if perf_counter() > deadline:
                    break
        self.block += 1
        return found


def _measured(
    workers: Workers, turns: Sequence[PlannedTrial], settings: Settings
) -> Iterator[list[Trial]]:
    """Yield trials as they come: many in rounds, or each audited."""
    if settings.audit:
        for turn in turns:
            trial = workers.measure(turn, settings)
            yield [workers.confirmed(turn, settings, trial)]
        return
    for begin in range(0, len(turns), TOGETHER):
        part = turns[begin : begin + TOGETHER]
        budget = (settings.budget or 0.0) * len(part)
        yield workers.measure_many(part, replace(settings, budget=budget))


def _by_time(trials: Sequence[Trial]) -> dict[str, float]:
    """Return the estimates of those that did not fail, by case."""
    return {
        row.case: row.estimate.value
        for row in analysed.rows(trials)
        if row.estimate is not None and not row.errors
    }


@contextmanager
def _recorded(space: Space, how: How) -> Iterator[Journal]:
    """Go on with a run that was stopped, or begin one; store how it ends."""
    name = _name(space, how)
    with (
        lock.measuring(how.wait),
        Store.open(how.store) as store,
        scratch.folder() as shared,
    ):
        run, trials = _stopped(store, name), []
        if run is None:
            facts = asdict(how.settings) | {"blocks": how.blocks}
            run = session.begun(facts, ("tune", name), how.gpu)
            store.begin(run)
        else:
            trials = store.trials(run.uid)
        state = "failed"
        try:
            yield Journal(space, how, store, run, trials, len(trials), shared)
            state = "finished"
        except KeyboardInterrupt:
            state = "interrupted"
            raise
        finally:
            store.finish(run.uid, state)


def _name(space: Space, how: How) -> str:
    """Return what a tuning's runs are found by: all that its trials depend on."""
    choice = tuned.key(space.tuned.program, parse(space.tuned.target))
    own = sources("steelyard", "steelyard_lock")
    asked = (choice, own, how.mode, how.top, how.blocks, repr(how.settings))
    return f"tune-{digest(json.dumps(asked).encode())[:12]}"


def _stopped(store: Store, name: str) -> Run | None:
    """Return the last run of a tuning, if it was stopped on this machine."""
    mine = [head for head in store.heads() if name in head.tags]
    if not mine:
        return None
    run, here = store.run(mine[-1].uid), writer.process(os.getpid())
    stopped = run.state in {"interrupted", KILLED, "failed"}
    return run if stopped and run.writer.get("machine") == here["machine"] else None
