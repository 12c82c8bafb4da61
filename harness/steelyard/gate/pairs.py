"""A worker of each side, with a token between them; or one that has both kernels."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Self

from steelyard.analyse.trial import Trial
from steelyard.declare.plan import PlannedTrial, Settings
from steelyard.gate.outcome import BASE, HEAD
from steelyard.gate.sides import Side
from steelyard.measure import interleave
from steelyard.process import wire
from steelyard.process.runner import Workers


class Pair:
    """Workers of both sides, or head's with both kernels; started when there is work.

    Kernels are launched in turn on the same buffers in head's process, which base's gives
    its binary. What has none, is called on other memory or ends the process is measured in
    a process of each side.
    """

    def __init__(self, sides: Mapping[str, Side]) -> None:
        self._sides = sides
        self._workers: dict[str, Workers] = {}
        self._exported: dict[str, wire.Message | None] = {}
        self._threads = ThreadPoolExecutor(len(sides))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.renew()
        self._threads.shutdown()

    def facts(
        self, side: str, turn: PlannedTrial, settings: Settings
    ) -> Mapping[str, Any]:
        """Ask a side's worker."""
        return self._started()[side].ask(turn, settings, wire.FACTS)

    def measure(self, side: str, turn: PlannedTrial, settings: Settings) -> Trial:
        """Have a side's worker measure a turn."""
        worker = self._started()[side]
        return worker.confirmed(turn, settings, worker.measure(turn, settings))

    def in_turn(
        self, leader: str, turns: Mapping[str, PlannedTrial], settings: Settings
    ) -> dict[str, Trial]:
        """Measure a turn of each side, windows taken in turn."""
        if turns[HEAD].mode.quantity == "kernel":
            trials = self._both(leader, turns, settings)
            if trials is not None:
                return dict(zip((HEAD, BASE), trials, strict=True))
        return self.apart(leader, turns, settings)

    def apart(
        self, leader: str, turns: Mapping[str, PlannedTrial], settings: Settings
    ) -> dict[str, Trial]:
        """Have both measure at once; the token says whose turn it is."""
        workers = self._started()
        trials = self._at_once(workers, leader, turns, settings)
        if any(one.died_of_another for one in workers.values()):
            self.renew()
            workers = self._started()
            trials = self._at_once(workers, leader, turns, settings)
        return {
            side: workers[side].confirmed(turns[side], settings, trial)
            for side, trial in trials.items()
        }

    def _at_once(
        self,
        workers: Mapping[str, Workers],
        leader: str,
        turns: Mapping[str, PlannedTrial],
        settings: Settings,
    ) -> dict[str, Trial]:
        asked = {}
        for side, turn in turns.items():
            role = interleave.LEAD if side == leader else interleave.FOLLOW
            how = replace(settings, role=role)
            asked[side] = self._threads.submit(workers[side].measure, turn, how)
        return {side: one.result() for side, one in asked.items()}

    def renew(self) -> None:
        """End both."""
        for one in self._workers.values():
            one.end()
        self._workers = {}

    def _started(self) -> Mapping[str, Workers]:
        """Start both here: a worker ends with the thread that started it."""
        if self._workers and all(one.lives for one in self._workers.values()):
            return self._workers
        self.renew()
        ends = socket.socketpair()
        for (name, side), end in zip(self._sides.items(), ends, strict=True):
            self._workers[name] = Workers(
                side.python, side.variables, side.path_of, side.folder, end
            )
        for one in self._workers.values():
            one.started()
        for end in ends:  # theirs alone: who is left must see that the other is gone
            end.close()
        return self._workers

    def _both(
        self, leader: str, turns: Mapping[str, PlannedTrial], settings: Settings
    ) -> tuple[Trial, Trial] | None:
        exported = self._binary_of_base(turns[BASE], settings)
        if exported is None:
            return None
        trials = self._started()[HEAD].measure_pair(
            turns[HEAD],
            settings,
            exported=exported,
            position=turns[BASE].position,
            leads=leader == BASE,
        )
        if trials is None:
            self._exported[turns[HEAD].case.id] = None  # nor would its other modes
            self.renew()  # if it died, the other has a token that nobody takes
            return None
        own, other = trials
        return self._started()[HEAD].confirmed(turns[HEAD], settings, own), other

    def _binary_of_base(
        self, turn: PlannedTrial, settings: Settings
    ) -> wire.Message | None:
        """Return base's binary, or None where it has none or dies of the question."""
        case = turn.case.id
        if case not in self._exported:
            answer = self._started()[BASE].ask(turn, settings, wire.BINARY)
            self._exported[case] = answer.get("lent")
            if "error" in answer:
                self.renew()
        return self._exported[case]


class Apart(Pair):
    """Workers of both sides, each with its own code alone: a capsule's runs confined."""

    def _both(
        self, leader: str, turns: Mapping[str, PlannedTrial], settings: Settings
    ) -> None:
        """Have each measure in its own process."""
        del leader, turns, settings
