"""A made-up GPU and its clock, whose times and frequency are known."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field

from steelyard.analyse.trial import ClockFacts
from steelyard.clocks import Expired, Reading


@dataclass
class Machine:
    """A GPU that does what is submitted in order, at a known frequency."""

    log: list = field(default_factory=list)
    time: int = 1000
    mhz: int = 1980
    marks: dict = field(default_factory=dict)

    def stamp(self, place):
        """Note cycles and time at once: nothing else is under way."""
        self.log.append(f"stamp {place}")
        self.time += 2000
        self.marks[place] = (self.time * self.mhz // 1000, self.time)

    def read(self, count):
        """Return what was noted; places that were not stamped read zero."""
        return [self.marks.get(place, (0, 0)) for place in range(count)]

    @contextmanager
    def watched(self):
        """Log when the clock is watched; nothing held it back."""
        found = {}
        self.log.append("watch")
        yield found
        self.log.append("watched")
        found["power"] = 0

    def does(self, word):
        """Return work that is logged."""
        return lambda: self.log.append(word)


@dataclass
class FakeClock:
    """Reads what a kernel takes, and an offset that it knows."""

    machine: Machine
    kernel: int = 3200
    facts: ClockFacts = field(
        default_factory=lambda: ClockFacts("fake", 1, 32.0, (), offset=2000.0)
    )
    late: list = field(default_factory=list)
    """Sizes of queues that outlast their spin, each once."""
    kernels: int = 1
    caches: tuple = ("cold", "warm")
    room: int = 900
    asked: list = field(default_factory=list)
    """Windows of every queue."""

    def facts_in(self, cache):
        """Read alike whatever the caches are."""
        del cache
        return self.facts

    def serves(self, cache):
        """Say which caches it reads."""
        return cache in self.caches

    def capacity(self, kernels):
        """Have room for so many kernels."""
        return max(1, self.room // kernels)

    def read(self, work, windows, ahead):
        """Take all windows of a queue, one after the other."""
        self.asked.append(windows)
        if windows in self.late:
            self.late.remove(windows)
            raise Expired("late")
        found = []
        for place in range(windows):
            ahead(place)
            start = self.machine.time
            self.machine.log.append("launch")
            self.machine.time += self.kernel + 70_000
            found.append(Reading(self.kernel + 2000, start, self.kernels))
        self.machine.log.append("wait")
        return found
