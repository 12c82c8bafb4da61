"""Whether a number holds for launches on new data that this process timed itself.

Once a run, each case in each mode is launched on data that nobody can have seen before:
another process draws it and asks the reference, the worker launches, and this one, which
runs none of that code, reads clocks round the launches and compares every result.
What the worker's trial says is believed if the launches took no longer than that. So
nothing that runs in the worker, however it patches clocks, checks or messages, makes a
number pass that is far below the time of the work, or a result that is wrong.
"""

from __future__ import annotations

import math
import os
import secrets
import signal
import statistics
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import clock_gettime_ns, perf_counter_ns, sleep, thread_time_ns
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from steelyard.analyse import stats
from steelyard.analyse.doubts.work import CONTENDED, UNCONFIRMED
from steelyard.analyse.trial import Trial
from steelyard.declare.benchmark import Description, named
from steelyard.declare.handles import CUDA, Handle
from steelyard.declare.mode import Mode
from steelyard.machine import neighbours
from steelyard.prepare import checking, problems
from steelyard.prepare.problems import Area, solve
from steelyard.process import scratch
from steelyard.units import duration
from steelyard_device import cpu

TIMES: Final = 2.0
"""How much longer launches on new data may take: caches and branch predictors know the
data of a trial, and the machine may be busier than it was."""

LONG: Final = 2_000_000
"""Nanoseconds of launches that a round has at least, as far as there are problems."""

ROUNDS: Final = 4
"""Rounds of which the quickest counts."""

FEWEST: Final = 24
"""Problems at least, unless they are large or slow: work that skips one launch in ten is
found out by nine cases of ten."""

MOST: Final = 512
BYTES: Final = 4 << 20
"""Of all problems of a case in one mode, where they are not `LARGE`."""

LARGE: Final = 16 << 20
"""Bytes of one problem beyond which a case is not confirmed; up to here there are few."""

PAUSES: Final = (0.0, 0.0, 0.0, 0.2, 1.0, 3.0)
"""Seconds before each look at new data, which are as many as it takes until launches are
quick: of work on a busy machine the quickest counts, and work that keeps results is slow
on any new data."""

SLOW: Final = 500_000_000
"""Nanoseconds after which there are no more rounds."""

LONGER: Final = {"cpu": 4, CUDA: 40}
"""How much longer the worker may take beside its launch than this process takes for the
same steps around nothing, at about the same moment: on a GPU its copies wait."""

MARGIN: Final = 500_000
"""Nanoseconds by which answers to two messages may differ where others are at work."""

MESSAGE: Final = 500_000
"""Nanoseconds that a message without a problem takes at most: a worker that is slow to
answer such ones would have its time taken off the others'."""

PROCESS: Final = 2
"""What makes a clock of a process's number: the time of processors (`clock_getcpuclockid`)."""

Ask = Callable[..., dict[str, Any]]
"""Sends a request with these fields; returns the answer, which may be an ``error``."""


@dataclass(frozen=True, slots=True)
class Confirmed:
    """What launches on new data came to."""

    least: float = 0.0
    """Nanoseconds that a unit of work takes at least."""
    alone: float = 0.0
    """The same less all that any thread waited for a processor: of threads that wait
    actively for each other, one waits for another that waits."""
    error: str = ""
    unknown: str = ""
    """Why nothing could be looked at, which is a doubt of every trial."""

    def of(self, trial: Trial, launches: int) -> Trial:
        """Return a trial with what this says of it; a unit has so many launches."""
        if trial.error is not None:
            return trial
        if self.error:
            return replace(trial, error=named(trial.case, self.error))
        why = self.unknown or self.too_slow(trial, launches)
        if not why:
            return trial
        waited = not (self.unknown or _too_slow(self.alone, trial, launches))
        doubt = CONTENDED if waited else UNCONFIRMED
        extra = dict(trial.extra) | {
            doubt.name: why,
            "fresh_ns": self.least / launches,
        }
        names = sorted({*trial.doubts, doubt.name})
        return replace(trial, doubts=tuple(names), extra=extra)

    def too_slow(self, trial: Trial, launches: int) -> str:
        """Say by how much the launches took longer than the trial's samples explain."""
        return _too_slow(self.least, trial, launches)


def _too_slow(least: float, trial: Trial, launches: int) -> str:
    claimed = stats.of(trial).estimate.value
    if least <= TIMES * max(claimed * launches, 0.0):
        return ""
    return (
        f"a launch on new data takes {duration(least / launches)} at least, where the "
        f"samples say {duration(claimed)}"
    )


def about(description: Description) -> dict[str, Any]:
    """Return what `confirm` has to know of a case, as a message has it."""
    check = description.reference
    return {
        "device": description.device,
        "handles": [[h.name, h.role, h.shape, h.dtype] for h in description.handles],
        "results": [h.name for h in description.results] if check else [],
        "tolerances": [check.rtol, check.atol] if check else [None, None],
        "built_for": description.call.built_for,
    }


def units(mode: Mode) -> int:
    """Return the launches of one unit of a mode's work."""
    return 1 if mode.quantity == "kernel" else mode.batch


@dataclass(frozen=True, slots=True)
class Processes:
    """Who answers: one that poses problems, and the worker that solves them."""

    pose: Ask
    """Asks a process that launches nothing."""
    solve: Ask
    """Asks the worker that gave the trial."""
    process: int
    """The worker's id."""

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Have the worker stopped, but in `going`: it does nothing that is not timed."""
        self._signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal(signal.SIGCONT)

    @contextmanager
    def going(self) -> Iterator[None]:
        """Have the worker go on."""
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.process, number)


def confirm(asked: Processes, trial: Trial, mode: Mode) -> Confirmed:
    """Have a case launched on new data; on other data again if that took too long."""
    least = alone = math.inf
    for pause in PAUSES:
        sleep(pause)
        try:
            found = _looked(asked, trial, mode)
        except OSError as reason:  # a disk that is full
            return Confirmed(unknown=f"data for it cannot be kept: {reason}")
        if found.error or found.unknown or not found.too_slow(trial, units(mode)):
            return found
        least, alone = min(least, found.least), min(alone, found.alone)
    return Confirmed(least, alone)


def _looked(asked: Processes, trial: Trial, mode: Mode) -> Confirmed:
    reply = asked.pose(seeds=[], area="")
    if "error" in reply:
        return Confirmed(unknown=f"another process cannot make it: {reply['error']}")
    case = _Case(reply)
    claimed = max(0.0, stats.of(trial).estimate.value * units(mode))
    count = case.affordable(claimed)
    updates = any(handle.role == "inout" for handle in case.handles)
    if reply["built_for"] or not count or (updates and units(mode) > 1):
        return Confirmed()
    with asked.stopped(), scratch.folder() as folder:
        problem = _Problem.posed(asked.pose, case, Path(folder) / "posed", count)
        if isinstance(problem, str):
            return Confirmed(unknown=problem)
        return Confirmed(*_Rounds(asked, Path(folder), problem, case).all())


@dataclass(frozen=True, slots=True)
class _Problem:
    """Data of launches and what their results should be, which no file holds."""

    given: Mapping[str, NDArray[Any]]
    wanted: list[NDArray[Any]]
    typical: list[float]
    """The median over problems of each result's root mean square."""
    count: int

    @classmethod
    def posed(cls, pose: Ask, case: _Case, path: Path, count: int) -> Self | str:
        """Have so many problems posed in files, which are removed; say why they are not."""
        seeds = [secrets.randbits(62) for _ in range(count)]
        answer = pose(seeds=seeds, area=str(path))
        posed = answer.get("posed", 0)
        if not 1 < posed <= count:
            return str(answer.get("error", f"{posed} of {count} problems were posed"))
        answers = [path.with_suffix(f".{n}.npy") for n in range(len(case.results))]
        wanted = [np.load(file, mmap_mode="r", allow_pickle=False) for file in answers]
        sizes = [list(map(checking.root_mean_square, each)) for each in wanted]
        typical = [statistics.median(each[:posed]) for each in sizes]
        area = Area.opened(path, case.handles, count)
        given = {name: data[:posed] for name, data in area.given.items()}
        for file in (path, *answers):
            file.unlink()
        return cls(given, wanted, typical, posed)


class _Case:
    """A case as `about` describes it."""

    def __init__(self, reply: Mapping[str, Any]) -> None:
        self.handles = [Handle(n, r, tuple(s), d) for n, r, s, d in reply["handles"]]
        self.results = reply["results"]
        self._tolerances = reply["tolerances"]
        self.device = reply["device"]

    def affordable(self, claimed: float) -> int:
        """Return how many problems there are to be of launches of so many nanoseconds."""
        enough = math.ceil(ROUNDS * LONG / max(claimed, 1.0))
        each = max(1, problems.needed(self.handles))
        if each > LARGE:
            return 0
        return max(problems.FEW, min(max(FEWEST, min(enough, MOST)), BYTES // each))

    def any_wrong(self, got: Mapping[str, Any], problem: _Problem, count: int) -> str:
        """Say what is wrong in the first of so many problems in which anything is."""
        every = zip(self.results, problem.wanted, problem.typical, strict=True)
        if all(
            checking.surely_right_on_new_data(
                got[name][:count], wanted[:count], self._tolerances, typical
            )
            for name, wanted, typical in every
        ):
            return ""
        wrong = (self.wrong(got, problem, number) for number in range(count))
        return next(filter(None, wrong), "")

    def wrong(self, got: Mapping[str, Any], problem: _Problem, number: int) -> str:
        """Say which result of a problem is wrong; nothing of right or unknown ones."""
        left = {name: np.asarray(got[name][number]) for name in self.results}
        wanted = [each[number] for each in problem.wanted]
        rtol, atol = self._tolerances
        return checking.wrong_on_new_data(left, wanted, rtol, atol, problem.typical)


class _Rounds:
    """Problems solved, some at a time, between two readings of this process's clock.

    The worker is stopped meanwhile: it sees no problem before, and writes nothing after.
    """

    def __init__(
        self, asked: Processes, folder: Path, problem: _Problem, case: _Case
    ) -> None:
        self._asked, self._problem, self._case = asked, problem, case
        self._path = folder / "problems"
        self._shared = Area.opened(self._path, case.handles, problem.count)
        self._left = {name: a.copy() for name, a in self._shared.left.items()}
        self._idle = Area(problem.given, {n: a.copy() for n, a in self._left.items()})
        every = self._left | dict(problem.given)
        self._own = {n: np.zeros(a.shape[1:], a.dtype) for n, a in every.items()}
        self._null = cpu.null()
        self._error = ""

    def all(self) -> tuple[float, float, str]:
        """Return nanoseconds of a problem as `Confirmed` has them, and what is wrong."""
        case, count = self._case, self._problem.count
        self._take(0, 0)  # whatever is prepared
        nothing = min(MESSAGE, *(self._take(0, 0)[0] for _ in range(3))) + MARGIN
        self._take(0, 1)  # what is loaded at first
        solved, least, alone, began = 1, math.inf, math.inf, perf_counter_ns()
        each = max(1, (count - 1) // ROUNDS)
        while solved + each <= count and (
            least == math.inf or perf_counter_ns() - began < SLOW
        ):
            steps = range(solved, solved + each)
            around = self._around_nothing(steps)
            took, less = self._take(steps.start, steps.stop)
            beside = LONGER[case.device] * max(around, self._around_nothing(steps))
            least = min(least, (took - nothing - beside) / each)
            alone = min(alone, (less - nothing - beside) / each)
            solved += each
        self._take(0, 0, ends=True)
        error = self._error or case.any_wrong(self._left, self._problem, solved)
        if not math.isfinite(least):
            return 0.0, 0.0, error
        return max(0.0, least), max(0.0, alone), error

    def _take(self, first: int, last: int, *, ends: bool = False) -> tuple[int, int]:
        """Return the nanoseconds of one round but those of waiting; see `_Spent.since`."""
        if self._error:
            return 0, 0
        asked = {"range": [first, last], "ends": ends, "count": self._problem.count}
        for name, data in self._problem.given.items():  # nobody has seen it before
            self._shared.given[name][first:last] = data[first:last]
        before, start = self._spent(), perf_counter_ns()
        with self._asked.going():
            answer = self._asked.solve(**asked, area=str(self._path))
            took = perf_counter_ns() - start
        for name, array in self._left.items():
            array[first:last] = self._shared.left[name][first:last]
        self._error = answer.get("error", "")
        return self._spent().since(before, took)

    def _spent(self) -> _Spent:
        """Return nothing on a GPU, whose work waits for no processor."""
        none = self._case.device == CUDA
        return _Spent() if none else _Spent.of(self._asked.process)

    def _around_nothing(self, numbers: range) -> int:
        """Return the nanoseconds that problems take which are copied and not solved."""
        start = thread_time_ns()
        launch = partial(self._null.window, 1)
        solve(numbers, self._idle, self._write, launch, self._own.__getitem__)
        return thread_time_ns() - start

    def _write(self, name: str, data: NDArray[Any]) -> None:
        self._own[name][...] = data


@dataclass(frozen=True, slots=True)
class _Spent:
    """What the kernel says that a process has had of processors, in nanoseconds."""

    all: int = 0
    """Of all of its threads, also of those that ended."""
    threads: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """What each thread that lives has had, and for how long it waited for one."""

    @classmethod
    def of(cls, process: int) -> Self:
        """Return that of a process, and the waiting of this thread; 0 if it is gone."""
        own = str(threading.get_native_id())
        _, waited = neighbours.threads().get(own, (0, 0))
        threads = neighbours.threads(process) | {own: (0, waited)}
        try:
            return cls(clock_gettime_ns(~process << 3 | PROCESS), threads)
        except OSError:
            return cls(0, threads)

    def since(self, before: _Spent, took: int) -> tuple[int, int]:
        """Return how much of ``took`` nanoseconds was no waiting for a processor.

        Threads may have taken turns, or ended, or waited for each other: it is no less
        than the busiest had, than those had that ended, than all had on average, or than
        what nobody waited. The latter comes second.
        """
        pairs = [
            (now, before.threads.get(n, (0, 0))) for n, now in self.threads.items()
        ]
        had = [now[0] - then[0] for now, then in pairs]
        waited = sum(now[1] - then[1] for now, then in pairs)
        every = self.all - before.all
        shared = every // (os.cpu_count() or 1)
        alone = took - waited
        return min(took, max([alone, every - sum(had), shared, *had])), alone
