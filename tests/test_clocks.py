import math
from itertools import accumulate, count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.clocks.host import HostClock, NativeClock
from steelyard.machine.ticks import FLOOR_SAMPLES, READINGS, smallest_step
from steelyard_device import cpu


class Logged:
    """Work that writes down how it is driven."""

    def __init__(self):
        self.log = []

    def launch(self, launches=1):
        """Submit."""
        self.log.append(launches)

    def wait(self):
        """Wait."""
        self.log.append("wait")


@settings(max_examples=40)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=10), st.integers(1, 1000))
def test_the_tick_is_the_divisor_of_all_steps(steps, tick):
    """A clock of 10 ns that takes 30 or 40 to read ticks in 10."""
    step = iter(step * tick for _ in count() for step in steps)
    readings = accumulate(step)
    found = smallest_step(lambda: next(readings))
    if any(steps[: READINGS - 1]):
        assert found == math.gcd(*(s * tick for s in steps))
    else:
        assert found == math.inf


@pytest.mark.parametrize("count", [7, 1, 0])
def test_launches_are_awaited_at_the_end_or_one_by_one(count):
    """The hand-over of the last is inside the window."""
    for dependent, log in ((False, [count, "wait"]), (True, [1, "wait"] * count)):
        work = Logged()
        start, stop = HostClock().window(work, count, dependent=dependent)
        assert work.log == log
        assert start <= stop


@pytest.mark.parametrize("clock", [HostClock(), NativeClock(cpu.null())])
def test_a_clock_states_its_tick_and_what_it_reads_around_nothing(clock):
    """Measured once, here; a floor has an odd number of raw readings."""
    facts = clock.facts
    assert clock.facts is facts
    assert 0 < facts.quantum < math.inf
    assert len(facts.floor) == FLOOR_SAMPLES
    assert FLOOR_SAMPLES % 2
    assert min(facts.floor) >= 0
    assert all(isinstance(reading, int) for reading in facts.floor)
    assert facts.version >= 1


def test_a_clock_that_was_never_read_has_nothing_to_say():
    """For trials that failed before."""
    facts = HostClock.nothing()
    assert (facts.id, facts.quantum, facts.floor) == ("none", 0.0, ())


def test_the_native_clock_drives_native_work():
    """Readings come from the work itself."""

    class Native(Logged):
        def window(self, launches, *, dependent=False):
            """Say what was asked."""
            self.log.append((launches, dependent))
            return 5, 9

        def null(self):
            """Give a null launch."""
            return cpu.null()

        def ready(self):
            """Wake."""

        def facts(self):
            """Say nothing."""
            return {}

    work = Native()
    assert NativeClock(work).window(work, 3, dependent=True) == (5, 9)
    assert work.log == [(3, True)]
