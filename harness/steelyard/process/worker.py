"""The process that measures: imports cases by path and id, and may be killed any time.

Run as ``python -m steelyard.process.worker DESCRIPTOR`` by ``runner``.
"""

from __future__ import annotations

import gc
import io
import os
import socket
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from steelyard.analyse.doubts.work import CHANGES_PROCESS, REPLACES_FUNCTIONS
from steelyard.analyse.trial import Trial
from steelyard.declare.benchmark import FAILURES, Case, named, raised, sentence
from steelyard.declare.handles import CUDA
from steelyard.declare.plan import PlannedTrial, Settings
from steelyard.errors import SteelyardError
from steelyard.machine import heap
from steelyard.machine.alive import SIGNS
from steelyard.machine.isolation import Isolation
from steelyard.measure import inject
from steelyard.measure.failed import failed_turn
from steelyard.measure.instruments import Instruments
from steelyard.measure.interleave import Token, alone, in_rounds
from steelyard.measure.one_case import Measurement, measure_case, placed
from steelyard.measure.pair import PortableBinary, beside, measure_pair
from steelyard.measure.prepared import PreparedCase, static_facts
from steelyard.measure.sampler import no_collection
from steelyard.measure.solving import Solver
from steelyard.prepare import problems
from steelyard.prepare.capsules import SUFFIX
from steelyard.prepare.problems import Area
from steelyard.process import confirm, origins, wire
from steelyard.process.origins import Origins
from steelyard_device import cuda
from steelyard_device.errors import DeviceError

SIGNS_A_TIMEOUT: Final = 20
"""Signs of life in the time after which a silent worker is ended: each wakes the run,
so that cases of short launches have none."""

MEMORY_SHARE: Final = 4
"""Prepared cases may fill one part in this many of the memory that is free at start, or
of all that a GPU has."""


class CaseCache:
    """Prepared cases, kept between their turns as long as memory lasts."""

    def __init__(self, flush_bytes: int | None) -> None:
        heap.fix()
        self._scale = Instruments(flush_bytes)
        self._room = heap.available() // MEMORY_SHARE
        self._kept: OrderedDict[str, PreparedCase] = OrderedDict()
        self._solver: Solver | None = None
        self._isolation = Isolation()
        self._turns = 0

    def measure(self, turn: PlannedTrial, settings: Settings) -> Trial:
        """Measure one turn; what goes wrong becomes the trial's error.

        What the case changes of the process is put back, and noted.
        """
        with self._isolation.turn(_file(turn.case.benchmark.path)) as changed:
            trial = self._in_turn(turn, settings)
        return self._noted(trial, changed, settings)

    def _noted(self, trial: Trial, changed: Sequence[str], settings: Settings) -> Trial:
        """Return a trial with what it changed, and what its process had been through."""
        trial = origins.watched(trial, settings.scratch)
        threads = len(list(Path("/proc/self/task").iterdir()))
        process = {"turn": self._turns, "threads": threads, "modules": len(sys.modules)}
        self._turns += 1
        if changed:
            self._kept.pop(trial.case, None)  # it was prepared in what is no longer so
        replaced = self._isolation.replaced.get(_file(trial.hashes.get("file", "")))
        found = {"changed": list(changed), "replaced": replaced}
        extra = {**trial.extra, **{k: v for k, v in found.items() if v}}
        seen = [CHANGES_PROCESS.name] * bool(changed and not trial.error)
        seen += [REPLACES_FUNCTIONS.name] * bool(replaced)
        doubts = (*trial.doubts, *seen)
        return replace(trial, extra={**extra, "process": process}, doubts=doubts)

    def _in_turn(self, turn: PlannedTrial, settings: Settings) -> Trial:
        try:
            token = Token.inherited(settings.role, settings.timeout)
        except SteelyardError as error:
            return failed_turn(turn, str(error))
        trial = self._measure(turn, settings, token)
        if token is not None and trial.error is not None:
            token.drop()
        return trial

    def _measure(
        self, turn: PlannedTrial, settings: Settings, token: Token | None
    ) -> Trial:
        try:
            if token is not None:
                token.wait_to_prepare()
            return measure_case(
                self._prepare(turn, settings),
                turn.mode,
                self._scale,
                settings,
                block=turn.block,
                position=turn.position,
                drive=token.drive if token else alone,
            )
        except FAILURES as error:
            return failed_turn(turn, sentence(error))

    def facts(self, turn: PlannedTrial, settings: Settings) -> wire.Message:
        """Say what is known of a turn's case without measuring it."""
        try:
            facts = static_facts(turn.case, settings)
            facts = facts or self._prepare(turn, settings).reported()
        except FAILURES as error:
            return {"error": named(turn.case.id, sentence(error))}
        libraries = Origins.stated().libraries()
        return facts | {"environment": origins.digest(), "libraries": libraries}

    def binary(self, turn: PlannedTrial, settings: Settings) -> wire.Message:
        """Give a case's kernel away; nothing of other work, or where that fails."""
        try:
            portable = PortableBinary.of(turn.case, settings)
        except FAILURES:  # measuring it says what is wrong
            portable = None
        return {"lent": portable and portable.message()}

    def capsule(
        self, turn: PlannedTrial, settings: Settings, folder: Path
    ) -> wire.Message:
        """Write the members of a case's capsule to a folder; say what it is."""
        from steelyard.process import capsules  # few are asked for any

        try:
            prepared = self._prepare(turn, settings)
            return {"content": capsules.record(prepared, settings, folder)}
        except FAILURES as error:
            return {"error": named(turn.case.id, sentence(error, OSError))}

    def measure_pair(
        self, turn: PlannedTrial, settings: Settings, asked: Mapping[str, Any]
    ) -> list[Trial]:
        """Measure a turn, interleaved with an exported kernel; none where that cannot be."""
        try:
            own = self._prepare(turn, settings)
        except FAILURES:  # measuring it alone says what is wrong
            return []
        other = beside(own, PortableBinary.of_message(asked["lent"]))
        if other is None:
            return []
        sides = [own, other]
        turns = [turn, replace(turn, position=asked["position"])]
        order = -1 if asked["leads"] else 1
        trials = measure_pair(sides[::order], turns[::order], self._scale, settings)
        return trials[::order]

    def measure_many(
        self, turn: PlannedTrial, settings: Settings, rest: Sequence[Mapping[str, Any]]
    ) -> list[Trial]:
        """Measure a turn, and cases on the same buffers, in rounds.

        None where the first cannot be prepared, or another needs other buffers.
        """
        make, first = turn.case.benchmark.case, turn
        turns = [first, *(replace(first, **_moved(make, each)) for each in rest)]
        try:
            own = self._prepare(first, settings)
        except FAILURES:  # measuring it alone says what is wrong
            return []
        sides: list[PreparedCase | str | None] = [own]
        sides += [_beside(own, each.case) for each in turns[1:]]
        if None in sides:
            return []
        able = {
            place: Measurement(
                side, each.mode, self._scale, settings, each.block, each.position
            )
            for place, (side, each) in enumerate(zip(sides, turns, strict=True))
            if isinstance(side, PreparedCase)
        }
        with placed(own), no_collection() as collected:
            in_rounds([each.windows(collected) for each in able.values()])
        return [
            able[place].trial()
            if place in able
            else failed_turn(turn, str(sides[place]))
            for place, turn in enumerate(turns)
        ]

    def solve(self, message: wire.Message, settings: Settings) -> wire.Message:
        """Launch a case on a range of posed problems.

        Only the first request has the case imported and prepared: others are timed.
        """
        asked = message["beside"]
        try:
            if self._solver is None:
                self._isolation.end()
                file = _file(Path(message["path"]))
                turn = self._isolation.imported(file, lambda: wire.turn_of(message))
                self._isolation.begin(file)
                prepared = self._prepare(turn, settings)
                handles = prepared.description.handles
                area = Area.opened(Path(asked["area"]), handles, asked["count"])
                self._solver = Solver(prepared, turn.mode, self._scale, area)
            self._solver.solve(*asked["range"])
            if asked["ends"]:
                self._solver.end()
                self._solver = None
        except FAILURES as error:
            self._solver = None
            return {"error": sentence(error, OSError)}
        return {}

    def answer(self, message: wire.Message, settings: Settings) -> wire.Message:
        """Return the answer to one request, and whether its GPU was lost with it.

        Raises:
            SteelyardError: the case cannot be imported.
        """
        if message["ask"] == wire.SOLVE:
            return self.solve(message, settings)
        self._isolation.end()
        origins.begin(settings.scratch)
        file, ask = _file(Path(message["path"])), message["ask"]
        turn = self._isolation.imported(file, lambda: wire.turn_of(message))
        answer: wire.Message
        wrong = False
        if ask == wire.TRIAL:
            trial = self.measure(turn, settings)
            answer, wrong = {"trial": asdict(trial)}, trial.error is not None
        elif ask == wire.BOTH:
            with self._isolation.turn(file) as changed:
                both = self.measure_pair(turn, settings, message["beside"])
            answer = {
                "trials": [asdict(self._noted(one, changed, settings)) for one in both]
            }
        elif ask == wire.MANY:
            with self._isolation.turn(file) as changed:
                trials = self.measure_many(turn, settings, message["beside"]["rest"])
            noted = [self._noted(one, changed, settings) for one in trials]
            answer = {"trials": [asdict(one) for one in noted]} if noted else {}
            wrong = any(one.error for one in noted)
        else:
            with self._isolation.turn(file):
                answer = self._reported(turn, settings, message)
            wrong = "error" in answer
        lost = bool(self._isolation.spent) or (wrong and self.lost(turn, settings))
        return answer | ({"lost": True} if lost else {})

    def _reported(
        self, turn: PlannedTrial, settings: Settings, message: wire.Message
    ) -> wire.Message:
        """Answer what needs no launch that is timed."""
        if message["ask"] == wire.POSE:
            return pose(turn, settings, message["beside"])
        if message["ask"] == wire.CAPSULE:
            return self.capsule(turn, settings, Path(message["beside"]["folder"]))
        facts = message["ask"] == wire.FACTS
        return (self.facts if facts else self.binary)(turn, settings)

    def _prepare(self, turn: PlannedTrial, settings: Settings) -> PreparedCase:
        name = turn.case.id
        if name not in self._kept:
            self._kept[name] = PreparedCase(turn.case, settings)
            inject.inject_delay(self._kept[name])
        self._kept.move_to_end(name)
        while len(self._kept) > 1 and self._crowded():
            self._kept.popitem(last=False)
        return self._kept[name]

    def lost(self, turn: PlannedTrial, settings: Settings) -> bool:
        """Whether this process can use a turn's GPU no more; asked after a failure.

        Other libraries' errors do not say, and some come with the next call only.
        """
        try:
            if turn.case.device() == CUDA:
                cuda.context(settings.gpu).wait()
        except SteelyardError:
            return False  # it could not be described: nothing was launched
        except DeviceError as error:
            return isinstance(error, cuda.CUDAError) and error.lost
        return False

    def _crowded(self) -> bool:
        held: Counter[cuda.Context | None] = Counter()
        for case in self._kept.values():
            # An in-place argument is kept twice, so count everything twice.
            held[case.buffers.context] += 2 * case.buffers.nbytes
        return any(
            nbytes > (gpu.device.memory_bytes // MEMORY_SHARE if gpu else self._room)
            for gpu, nbytes in held.items()
        )


def _moved(make: Callable[..., Case], asked: Mapping[str, Any]) -> dict[str, Any]:
    return {"case": make(asked["axes"]), "position": asked["position"]}


def _beside(own: PreparedCase, case: Case) -> PreparedCase | str | None:
    """Return another case on a case's buffers, or why there is none; None: it has others."""
    try:
        return own.beside(case)
    except FAILURES as error:
        return sentence(error)


def pose(
    turn: PlannedTrial, settings: Settings, asked: Mapping[str, Any]
) -> wire.Message:
    """Draw data of a case by seeds and ask its reference; the work is never launched.

    Answers with the handles of the case where no ``seeds`` are asked for.
    """
    try:
        described = turn.case.describe()
        if not asked["seeds"]:
            return confirm.about(described)
        place = Path(asked["area"])
        area = Area.opened(place, described.handles, len(asked["seeds"]))
        posed, answers = problems.pose(described, area, settings.inputs, asked["seeds"])
        for number, answer in enumerate(answers):
            np.save(place.with_suffix(f".{number}.npy"), answer, allow_pickle=False)
    except FAILURES as error:
        return {"error": named(turn.case.id, sentence(error, OSError))}
    return {"posed": posed}


def _file(path: str | Path) -> str:
    return os.path.realpath(path)


def _print_at_once() -> None:
    """Print whole lines as they come: a crash would take them along."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)


def main(descriptor: str) -> None:
    """Answer the requests of the run until it closes its end."""
    os.set_inheritable(int(descriptor), False)
    pipe = wire.Pipe(socket.socket(fileno=int(descriptor)))
    SIGNS.tell = pipe.sign
    _print_at_once()
    home = os.getpid()
    origins = Origins.stated()
    # Last, and not first as -m has it: what is installed comes before what lies here.
    with suppress(OSError):  # it may be gone
        sys.path.append(str(Path.cwd()))
    bench = None
    while True:
        try:
            message = pipe.receive()
        except EOFError:
            gc.freeze()  # what is left at the end is not looked through
            return
        settings = Settings(**message["settings"])
        SIGNS.seconds = settings.timeout / SIGNS_A_TIMEOUT
        answer: wire.Message
        try:
            if message["path"].endswith(SUFFIX):
                from steelyard.process import capsules

                capsules.confine(Path(message["path"]))
            bench = bench or CaseCache(settings.flush_bytes)
            answer = bench.answer(message, settings)
        except SteelyardError as error:
            answer = {"error": str(error)}
        except BaseException as error:
            if isinstance(error, Exception):
                raise  # ours: `FAILURES` are the work's
            # Nobody else interrupts a worker.
            answer = {"error": sentence(error), "lost": True}
        # Launches on new data are timed with their answer; the trial before them has
        # imported what they use.
        if message["ask"] != wire.SOLVE and (refusal := origins.refusal()):
            answer = {"refused": refusal}
        if os.getpid() != home:
            os._exit(1)  # the work forked and the child returned: one answer is enough
        try:
            pipe.send(answer)
        except (TypeError, ValueError, RecursionError) as error:
            pipe.send({"error": f"what is known of it cannot be sent: {raised(error)}"})


if __name__ == "__main__":
    main(*sys.argv[1:])
