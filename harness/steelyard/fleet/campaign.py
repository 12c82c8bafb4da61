"""The loop that gives jobs to free machines until every job has ended.

It knows an engine, which starts work on machines, and the record. What the record says
counts: whoever comes later goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from steelyard.errors import FAILED, FINE, REGRESSION, UNRESOLVED, USAGE, StoreError
from steelyard.fleet.jobs import GATE, GONE, Job, Queue
from steelyard.fleet.record import OPEN, Entry, Record, State

T = TypeVar("T")

PAUSE: Final = 0.5
"""Seconds between two looks at machines."""

ALONE: Final = 60.0
"""Seconds after which it is said that jobs have no machine."""


class Engine(Protocol):
    """Starts work on machines."""

    def machines(self) -> Mapping[str, Mapping[str, str]]:
        """Return the facts of each machine that answers, by its name."""
        ...

    def start(self, machine: str, job: Job) -> object:
        """Have a machine do a job; return what `ended` calls it."""
        ...

    def ended(self, seconds: float) -> list[tuple[object, str]]:
        """Return what ended meanwhile, each with the agent's word, or `GONE`."""
        ...

    def stop(self) -> None:
        """Have every machine end its work and queue its job again."""


@dataclass(slots=True)
class Campaign:
    """Jobs that are driven to their ends."""

    name: str
    record: Record
    engine: Engine
    say: Callable[[str], None]
    queue: Queue = field(default_factory=Queue)
    _doing: dict[object, tuple[str, Job]] = field(default_factory=dict)
    _later: list[tuple[float, Job, str]] = field(default_factory=list)
    """What is queued again, when, and why."""
    _alone: float = field(default_factory=time.monotonic)

    def run(self, lease: float) -> list[Entry]:
        """Drive every job to its end, and return what became of each.

        On Ctrl-C the machines end what they do, and the jobs stay queued.
        """
        try:
            for one in self._patiently(lambda: self.record.entries(self.name)):
                if one.state in OPEN:
                    self.queue.put(one.job)
            while self.queue or self._doing or self._later:
                self._start()
                for handle, word in self.engine.ended(PAUSE):
                    self._ended(handle, word, lease)
                self._bring_back()
        except KeyboardInterrupt:
            self.engine.stop()
            raise
        return self._patiently(lambda: self.record.entries(self.name))

    def _start(self) -> None:
        busy = {machine for machine, _ in self._doing.values()}
        machines = self.engine.machines()
        free = {name: facts for name, facts in machines.items() if name not in busy}
        for name, facts in free.items():
            job = self.queue.take(facts)
            if job is not None:
                self._doing[self.engine.start(name, job)] = name, job
                self.say(f"{job.commit[:10]} on {name}: {job.what} {job.id} begins")
        left = self.queue.unserved(machines.values())
        if not left:
            self._alone = time.monotonic()
        elif time.monotonic() - self._alone > ALONE:
            self._alone = time.monotonic()
            self.say(f"no machine is {' or '.join(left)}: its jobs wait")

    def _ended(self, handle: object, word: str, lease: float) -> None:
        machine, job = self._doing.pop(handle)
        if word == "done":
            self.say(f"{job.commit[:10]} on {machine}: {job.what} {job.id} is done")
            return
        self.say(f"{job.commit[:10]} on {machine}: {job.what} {job.id} {word}")
        wait = lease if word in {GONE, "lost", "busy"} else 0.0
        self._later.append((time.monotonic() + wait, job, word))

    def _bring_back(self) -> None:
        """Queue again what failed once, and what was lost once its lease is over."""
        due = [one for one in self._later if one[0] <= time.monotonic()]
        with suppress(StoreError):  # the next look asks again
            for one in due:
                _, job, word = one
                if self.record.again(self.name, job.id, gone=word == GONE):
                    self.queue.put(job)
                self._later.remove(one)

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Ask the record until it answers."""
        while True:
            try:
                return ask()
            except StoreError as error:
                self.say(f"waiting: {error}")
                time.sleep(PAUSE)


def exit_code(entries: Sequence[Entry]) -> int:
    """Return what a campaign ends with: the gravest of its jobs."""
    if any(one.state != State.DONE for one in entries):
        return FAILED
    codes = {one.code for one in entries}
    order = (REGRESSION, FAILED, USAGE, UNRESOLVED)
    return next((code for code in order if code in codes), FINE)


def lines(name: str, entries: Sequence[Entry]) -> list[str]:
    """Say what became of a campaign: what failed with its log, each gate's verdict."""
    counts = {
        state: sum(one.state == state for one in entries)
        for state in (State.DONE, State.FAILED, State.RUNNING, State.QUEUED)
    }
    said = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    found = [f"campaign {name}: {said or 'no job'}"]
    for one in entries:
        if one.state == State.FAILED or (one.job.what == GATE and one.log):
            where = f"{one.job.commit[:10]} on {one.machine or one.job.on}"
            found += ["", f"{where}: {one.job.what} {one.job.id} ended with {one.code}"]
            found += [f"  {line}" for line in (one.log or "").strip().splitlines()]
    return found
