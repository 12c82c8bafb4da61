"""Run a plan in worker processes that are replaced when they crash or hang."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Final, Self

import psutil

from steelyard.analyse.trial import Trial
from steelyard.declare.mode import Mode
from steelyard.declare.plan import PlannedTrial, Settings
from steelyard.errors import UnjudgedError
from steelyard.machine import children, keeper
from steelyard.machine.printable import printable
from steelyard.measure.failed import failed_turn
from steelyard.measure.interleave import VARIABLE
from steelyard.process import confirm, scratch, wire

GRACE: Final = 0.35
"""Share of a turn's part of the budget that is left for preparing, checking and storing
around the samples."""

PRINTED: Final = 1 << 16
"""Bytes that are shown of what the work prints in one process. They go where errors go:
standard output may be a report."""


def run(
    turns: Sequence[PlannedTrial],
    settings: Settings,
    on_trial: Callable[[Trial], None],
    on_turn: Callable[[PlannedTrial], None],
    start: Callable[[], Workers] | None = None,
) -> None:
    """Measure ``turns`` in order; report each before it starts and its trial after.

    What fails is reported once, with its error, and left out of later blocks. Each
    block has a worker of its own: where its memory lies and what its code aligns to
    stays the same as long as a process lives, and would pass for the kernel's doing.
    Everything is done between turns, while no worker measures. ``start`` makes what
    starts them: by default as this process was.
    """
    began = monotonic()
    broken: set[tuple[str, Mode]] = set()
    block = 0
    with scratch.folder() as shared, (start or Workers)() as workers:
        settings = replace(settings, scratch=settings.scratch or shared)
        for turn in turns:
            if (turn.case.id, turn.mode) in broken:
                continue
            if turn.block != block:
                block = turn.block
                workers.renew()
            share = _share(settings, monotonic() - began, len(turns) - turn.position)
            if share is not None and share <= 0:
                return
            on_turn(turn)
            trial = workers.measure(turn, replace(settings, budget=share))
            trial = workers.confirmed(turn, settings, trial)
            if trial.error is not None:
                broken.add((turn.case.id, turn.mode))
            settings = replace(
                settings,
                flush_bytes=trial.extra.get("flush_bytes", settings.flush_bytes),
            )
            on_trial(trial)


def _share(settings: Settings, spent: float, turns_left: int) -> float | None:
    """Return the seconds of sampling of the next turn."""
    if settings.budget is None:
        return None
    return (settings.budget - spent) * (1 - GRACE) / turns_left


_CONFIRMED: Final[dict[tuple[str, ...], confirm.Confirmed]] = {}
"""What launches on new data came to, by the run's folder, the side's, case and mode."""


def ending(code: int) -> str:
    """Say how a process went by its exit code, which is below 0 of a signal."""
    if code < 0:
        known = -code in set(signal.Signals)
        return f"died of {signal.Signals(-code).name if known else -code}"
    return f"ended with exit code {code}"


class Workers:
    """One worker at a time, started when there is work.

    ``python`` runs it in ``folder``, with what ``environment`` gives for the next one;
    ``path_of`` says where a file of benchmarks lies for it. It inherits ``token``.
    """

    def __init__(
        self,
        python: str = sys.executable,
        environment: Callable[[], Mapping[str, str]] | None = None,
        path_of: Callable[[Path], Path] = lambda path: path,
        folder: Path | None = None,
        token: socket.socket | None = None,
    ) -> None:
        self._token = token
        self._folder = folder
        self._python = python
        self._environment = environment
        self._path_of = path_of
        self._examiner: Workers | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: wire.Pipe | None = None
        self._answered = False
        self.died_of_another = False
        """Whether the last request met the end of a worker that had answered others: what
        it did for them may be why, a moment later."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def measure(self, turn: PlannedTrial, settings: Settings) -> Trial:
        """Have a worker measure one turn.

        Raises:
            UnjudgedError: it imported code that it is not for; see `origins`.
        """
        answer = self.ask(turn, settings, wire.TRIAL)
        if "error" in answer:
            return failed_turn(turn, answer["error"])
        try:
            return wire.trial_of(answer.get("trial", {}), turn)
        except wire.Garbled as reason:
            return failed_turn(turn, self._garbled(reason)["error"])

    def confirmed(self, turn: PlannedTrial, settings: Settings, trial: Trial) -> Trial:
        """Return a trial with what launches on new data say of it; see `confirm`.

        Such launches are made once a run, by the worker that is there. They are the
        same for cold and for warm caches: both trials are held against the first's,
        unless these took too long for the second.
        """
        mode = turn.mode
        asks = settings.check and settings.audit
        if not (asks and trial.usable) or mode.quantity == "build":
            return trial
        other = replace(mode, cache="warm" if mode.cache == "cold" else "cold")
        place = settings.scratch, str(self._folder), turn.case.id
        key, twin = (*place, str(mode)), (*place, str(other))
        known = _CONFIRMED.get(twin)
        if known and not known.too_slow(trial, confirm.units(mode)):
            _CONFIRMED.setdefault(key, known)
        if key not in _CONFIRMED:
            worker = self._worker()
            if worker is None:
                return trial
            if self._examiner is None:
                self._examiner = Workers(
                    self._python, self._environment, self._path_of, self._folder
                )
            asked = confirm.Processes(
                partial(self._examiner.ask, turn, settings, wire.POSE),
                partial(self.ask, turn, settings, wire.SOLVE),
                worker,
            )
            _CONFIRMED[key] = confirm.confirm(asked, trial, mode)
        return _CONFIRMED[key].of(trial, confirm.units(mode))

    def _worker(self) -> int | None:
        """Return the worker's process id, as its keeper and not as itself says it."""
        if self._process is None or self._process.poll() is not None:
            return None
        try:
            children = psutil.Process(self._process.pid).children()
            return int(min(children, key=psutil.Process.create_time).pid)
        except (psutil.Error, ValueError):
            return None

    def measure_pair(
        self,
        turn: PlannedTrial,
        settings: Settings,
        *,
        exported: wire.Message,
        position: int,
        leads: bool,
    ) -> tuple[Trial, Trial] | None:
        """Have a worker measure a turn, interleaved with an exported kernel.

        None where the worker cannot, or did not live to answer.
        """
        beside = {"lent": exported, "position": position, "leads": leads}
        answer = self.ask(turn, settings, wire.BOTH, **beside)
        if not answer.get("trials"):
            return None
        turns = turn, replace(turn, position=position)
        try:
            own, other = map(wire.trial_of, answer["trials"], turns)
        except (wire.Garbled, TypeError, ValueError):
            return None
        return own, other

    def measure_many(
        self, turns: Sequence[PlannedTrial], settings: Settings
    ) -> list[Trial]:
        """Have a worker measure cases of one benchmark on the same buffers, in rounds.

        One by one where it cannot, or did not live to answer.
        """
        rest = [{"axes": dict(t.case.axes), "position": t.position} for t in turns[1:]]
        answer = self.ask(turns[0], settings, wire.MANY, rest=rest)
        try:
            reported = answer.get("trials", ())
            return [wire.trial_of(*each) for each in zip(reported, turns, strict=True)]
        except (wire.Garbled, TypeError, ValueError):
            return [self.measure(turn, settings) for turn in turns]

    def ask(
        self, turn: PlannedTrial, settings: Settings, what: str, **beside: Any
    ) -> wire.Message:
        """Have a worker answer a request; what goes wrong is the answer's ``error``.

        Where a worker ends that has answered others, a new one is asked again.
        """
        answer = self._asked(turn, settings, what, **beside)
        if self.died_of_another and not settings.role and what != wire.SOLVE:
            answer = self._asked(turn, settings, what, **beside)
        return answer

    def _asked(
        self, turn: PlannedTrial, settings: Settings, what: str, **beside: Any
    ) -> wire.Message:
        path = self._path_of(turn.case.benchmark.path)
        pipe = self.started()
        self.died_of_another = False
        try:
            pipe.send(wire.request(turn, settings, what, path, **beside))
            answer = pipe.receive(settings.timeout + (settings.budget or 0))
        except TimeoutError:
            self.renew()
            return {
                "error": f"no answer within {settings.timeout:g} s; the worker was "
                "ended. Look for a loop that does not stop, or raise --timeout if three "
                "launches, or a reference, take as long."
            }
        except wire.Garbled as reason:
            return self._garbled(reason)
        except (EOFError, OSError):
            measures = what in {wire.TRIAL, wire.BOTH, wire.MANY}
            doing = "measuring" if measures else "preparing"
            self.died_of_another = self._answered
            return {"error": f"the worker {self._cause()} while {doing} it."}
        self._answered = True
        if "error" in answer:
            answer["error"] = printable(str(answer["error"]))
        if refused := answer.get("refused"):
            self.end()
            raise UnjudgedError(printable(str(refused)))
        if answer.get("lost"):
            self.renew()  # its GPU would fail every later case
        return answer

    @property
    def lives(self) -> bool:
        """Whether there is a worker that waits for a request."""
        there = self._process is not None and self._process.poll() is None
        return there and self._pipe is not None and self._pipe.silent()

    def _garbled(self, reason: Exception) -> wire.Message:
        self.renew()
        return {
            "error": f"the worker's answer cannot be read: {reason}. Look for work that "
            "writes to descriptors it did not open, or patches modules."
        }

    def started(self) -> wire.Pipe:
        """Start the worker if it does not run; return what is said to it.

        It ends with the thread that starts it: the kernel sees to that.
        """
        if not self.lives:
            self.renew()  # a thread of an earlier case did that; the next is not to blame
        if self._pipe is None:
            ours, theirs = socket.socketpair()
            descriptor = theirs.fileno()
            command = [self._python, "-P", "-m", "steelyard.process.worker"]
            environment = self._environment or children.environment
            variables = dict(environment())
            shared = []
            if self._token and self._token.fileno() >= 0:
                shared = [self._token.fileno()]
                variables[VARIABLE] = str(shared[0])
            # A session of its own: Ctrl-C reaches the run, which ends the worker.
            self._process = subprocess.Popen(
                keeper.command([*command, str(descriptor)], PRINTED),
                pass_fds=[descriptor, *shared],
                cwd=self._folder,
                env=variables,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            theirs.close()
            self._pipe = wire.Pipe(ours)
        return self._pipe

    def _cause(self) -> str:
        """End what is left of the worker and say how it went."""
        assert self._process is not None
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = 0
        self.renew()
        return ending(code)

    def end(self) -> None:
        """End the worker, if there is one, and who poses its problems."""
        self.renew()
        if self._examiner is not None:
            self._examiner.end()
            self._examiner = None

    def renew(self) -> None:
        """End the worker and all that it started; the next request starts another."""
        if self._process is not None:
            keeper.end_kept(self._process)
        if self._pipe is not None:
            self._pipe.close()
        self._process = self._pipe = None
        self._answered = False
