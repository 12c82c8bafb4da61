"""Clocks that lie: an error, a doubt, or an interval that holds the truth."""

import math
import random
from dataclasses import dataclass, field
from itertools import count
from time import perf_counter_ns

import numpy as np
import pytest
from fakes import case_of
from hypothesis import given
from hypothesis import strategies as st

from steelyard.analyse import stats
from steelyard.analyse.doubts import clocks
from steelyard.analyse.trial import ClockFacts
from steelyard.declare.mode import parse
from steelyard.declare.plan import Settings
from steelyard.machine.ticks import READ, seen_tick, smallest_step
from steelyard.measure import one_case, stream
from steelyard.measure.instruments import Instruments
from steelyard.measure.prepared import PreparedCase

pytestmark = pytest.mark.measuring

SETTINGS = Settings(precision=1e-9, budget=0.02, check=False)


@dataclass
class Lying:
    """The host's clock through a function that bends it; it says that it ticks in 1."""

    bend: object
    honest: bool = False
    facts: ClockFacts = field(init=False)

    def __post_init__(self):
        tick = smallest_step(self.read) if self.honest else 1.0
        self.facts = ClockFacts("lying", 1, tick, (20,) * 3)

    def read(self):
        """Read what it shows."""
        return self.bend(perf_counter_ns())

    def window(self, work, launches, *, dependent):
        """Read around launches."""
        start = self.read()
        work.launch(launches)
        work.wait()
        return start, self.read()


def negate(b):
    """Negate some numbers."""
    x = b.input(2000)
    return b.launch(np.negative, x, out=b.output(2000, name="y"))


def trial_of(clock, monkeypatch, settings=SETTINGS):
    """Return the trial of an honest case under a lying clock."""
    scale = Instruments(flush_bytes=1 << 20)
    monkeypatch.setattr(Instruments, "clock", lambda *_: clock)
    case = PreparedCase(case_of(negate), settings)
    return one_case.measure_case(case, parse("kernel/warm"), scale, settings)


def test_an_honest_clock_is_believed(monkeypatch):
    """Straight through; the same doubts are not raised."""
    trial = trial_of(Lying(lambda now: now), monkeypatch)
    assert trial.error is None
    assert not {"clocks-disagree", "quantised"} & set(trial.doubts)


@pytest.mark.parametrize("rate", [0.9, 0.98, 1.02, 1.3])
def test_a_clock_of_another_rate_is_doubted(rate, monkeypatch):
    """A second one, which nobody sets, says how long the trial took."""
    clock = Lying(lambda now: int(now * rate))
    assert "clocks-disagree" in trial_of(clock, monkeypatch).doubts
    monkeypatch.setattr(clocks, "host_clocks_differ", lambda _: False)
    assert "clocks-disagree" not in trial_of(clock, monkeypatch).doubts


def test_a_clock_whose_rate_drifts_is_doubted(monkeypatch):
    """Its samples grow, and so does what it says of the whole trial."""
    begin = perf_counter_ns()

    def drifting(now):
        gone = now - begin
        return begin + gone + gone * gone // 400_000_000

    trial = trial_of(Lying(drifting), monkeypatch)
    assert {"clocks-disagree", "drifting"} & set(trial.doubts)


def test_a_coarse_clock_that_says_so_is_read_for_longer(monkeypatch):
    """The windows hold so many ticks that one is half a percent of them."""
    tick = 1024
    clock = Lying(lambda now: now // tick * tick, honest=True)
    assert clock.facts.quantum == tick
    trial = trial_of(clock, monkeypatch)
    assert trial.clock.quantum == tick
    assert trial.samples.launches[0] > 1
    found, launches = stats.of(trial).estimate, trial.samples.launches[0]
    narrowest = tick / launches / math.sqrt(len(trial.samples))
    assert (found.high - found.low) / 2 >= narrowest * (1 - 1e-9)


def test_a_coarse_clock_that_says_it_is_fine_is_found_out(monkeypatch):
    """All its readings are whole ticks; the interval is as wide as one says."""
    tick = 20_000
    trial = trial_of(Lying(lambda now: now // tick * tick), monkeypatch)
    assert trial.clock.quantum == tick
    assert "quantised" in trial.doubts
    found = stats.of(trial).estimate
    narrowest = tick / trial.samples.launches[0] / math.sqrt(len(trial.samples))
    assert (found.high - found.low) / 2 >= narrowest * (1 - 1e-9)
    monkeypatch.setattr(one_case, "seen_tick", lambda _: 0.0)
    assert (
        "quantised"
        not in trial_of(Lying(lambda now: now // tick * tick), monkeypatch).doubts
    )


@given(
    time=st.integers(2_000, 50_000),
    tick=st.sampled_from([256, 1000, 1024]),
    seed=st.integers(0, 99),
)
def test_the_interval_of_a_coarse_clock_holds_the_time(time, tick, seed):
    """A launch always takes as long, and windows begin at any phase of a tick."""
    draw = random.Random(seed)
    starts = [draw.randrange(10**9) for _ in range(400)]
    ticks = [(s + time) // tick * tick - s // tick * tick for s in starts]
    found = stats.summarise(ticks, 1, max(1.0, seen_tick(ticks)))
    assert found.estimate.low - tick * 0.1 <= time <= found.estimate.high + tick * 0.1


@given(
    st.lists(st.integers(1, 10**6), min_size=READ, max_size=60), st.integers(1, 5000)
)
def test_the_tick_that_is_seen_divides_every_reading(readings, tick):
    """And is none where there are few, or all the same."""
    seen = seen_tick([tick * each for each in readings])
    if len(set(readings)) == 1:
        assert seen == 0
    else:
        assert seen % tick == 0
        assert all(tick * each % seen == 0 for each in readings)
    assert seen_tick([tick] * READ) == seen_tick([1, 2]) == 0


def test_a_clock_that_steps_back_within_a_window_is_an_error(monkeypatch):
    """By how much, and no number."""
    back = count()
    clock = Lying(lambda now: now - 50_000_000 * (next(back) // 41))
    trial = trial_of(clock, monkeypatch)
    assert "the clock stepped back by" in trial.error
    assert all(ticks >= 0 for ticks in trial.samples.ticks)
    monkeypatch.setattr(stream, "require_forward", lambda *_: None)
    back = count()
    fooled = trial_of(clock, monkeypatch)
    assert fooled.error is None
    assert min(fooled.samples.ticks) < 0


def test_a_clock_that_steps_back_between_windows_is_an_error(monkeypatch):
    """Each window for itself looks right."""
    back = count()
    clock = Lying(lambda now: now - 10**9 * (next(back) // 40))
    assert "the clock stepped back by" in trial_of(clock, monkeypatch).error


def test_a_clock_that_jumps_ahead_is_doubted_or_cut_off(monkeypatch):
    """An hour in one window: the median does not see it, the whole trial does."""
    reads = count()
    clock = Lying(lambda now: now + 3600 * 10**9 * (next(reads) > 60))
    trial = trial_of(clock, monkeypatch)
    assert "clocks-disagree" in trial.doubts
    assert stats.of(trial).estimate.value < 10**6


def test_a_clock_that_stands_still_is_an_error(monkeypatch):
    """Whether it knows it or says that it ticks in nanoseconds."""
    for honest in (True, False):
        clock = Lying(lambda _: 5, honest=honest)
        monkeypatch.setattr(stream, "STILL", 10)
        trial = trial_of(clock, monkeypatch)
        assert "the clock stands still" in trial.error
        assert not len(trial.samples)


def test_a_clock_that_stops_later_is_doubted(monkeypatch):
    """Its windows are nothing from then on, and the trial took longer than it says."""
    reads, last = count(), []

    def stops(now):
        if next(reads) < 60:
            last[:] = [now]
        return last[0]

    trial = trial_of(Lying(stops), monkeypatch)
    assert trial.error is not None or "clocks-disagree" in trial.doubts
