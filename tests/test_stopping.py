import random

import pytest
from fakes import FakeClock, latencies
from hypothesis import given
from hypothesis import strategies as st

from steelyard.analyse import stats
from steelyard.measure.sampler import MAXIMUM, Stopping

LONG = 10**12


def taken(samples, precision=0.005, budget=LONG, step=0, **how):
    """Return how many samples were asked for, and whether they settled."""
    stopping = Stopping(precision, budget, FakeClock(step=step), **how)
    for count, sample in enumerate(samples, 1):
        if stopping.finished(sample):
            return count, stopping.settled
    raise AssertionError("it never stopped")


def test_equal_samples_stop_at_the_first_look():
    """Six would do; the interval is looked at every eighth."""
    assert taken([100.0] * 50) == (8, True)


def test_wide_samples_go_on_until_the_interval_is_narrow():
    """A narrower one takes more of them."""
    few, settled = taken(latencies(1, MAXIMUM), 0.02)
    many, _ = taken(latencies(1, MAXIMUM), 0.005)
    assert settled
    assert 8 <= few < many < MAXIMUM


@pytest.mark.parametrize(
    ("sample", "launches", "count"),
    [(9e8, 1, 3), (1e9, 1, 1), (6e8, 2, 1), (1.0, 1, 3)],
)
def test_one_window_of_a_second_is_enough_for_a_block(sample, launches, count):
    """Once the budget is spent; it is no reason to end before."""
    samples = [sample, 0.99 * sample] * 9
    assert taken(samples, 0.0, 0, launches=launches) == (count, False)
    assert taken(samples, 0.0, 9, step=1, launches=launches)[0] == 9


def test_samples_that_never_settle_end_at_a_maximum():
    """Two groups that are half and half."""
    random_ = random.Random(0)
    samples = (random_.choice([100.0, 200.0]) for _ in range(2 * MAXIMUM))
    assert taken(samples, 1e-9) == (MAXIMUM, False)


@pytest.mark.parametrize(("budget", "count"), [(0, 3), (2, 3), (10, 10), (17, 17)])
def test_the_budget_ends_a_trial_after_three_samples_at_least(budget, count):
    """A clock that ticks once a sample; nothing is settled."""
    assert taken(latencies(2, 99, tail=0.5), 1e-9, budget, step=1) == (count, False)


@pytest.mark.parametrize(
    ("ticks", "overdue"), [(0, False), (3, False), (19, False), (20, True), (99, True)]
)
def test_a_trial_is_overdue_after_two_budgets(ticks, overdue):
    """One window of a build of seconds is enough for a block."""
    clock = FakeClock()
    stopping = Stopping(0.005, 10, clock)
    clock.time += ticks
    assert stopping.overdue is overdue


def test_at_the_end_of_the_budget_the_interval_is_looked_at_once_more():
    """Seven equal samples are settled, though not at an eighth."""
    assert taken([100.0] * 9, budget=7, step=1) == (7, True)
    assert taken([100.0] * 9, budget=4, step=1) == (4, False)


def test_a_machine_that_pulses_is_read_at_least_thirty_times():
    """Few windows may lie in one phase of it."""
    assert 30 <= taken([100.0] * 99, 0.01, pulsed=True)[0] < 40


def test_a_quantised_clock_takes_at_least_thirty():
    """Equal ticks say nothing of where between two ticks the time lies."""
    assert taken([3200.0] * 5000, 0.5, quantum=32.0)[0] == 32
    count, settled = taken([3200.0] * 5000, 0.005, quantum=32.0)
    assert settled
    assert 32 / count**0.5 / 3200 <= 0.005
    assert taken([3200.0] * 5000, quantum=32.0, launches=100)[0] == 8


def test_readings_of_zero_end_with_the_budget():
    """And are never settled."""
    assert taken([0.0] * 99, budget=40, step=1, quantum=1.0) == (40, False)


@given(st.lists(st.floats(0, 1e12), min_size=3, max_size=40), st.integers(0, 30))
def test_any_samples_stop_by_the_end_of_the_budget(samples, budget):
    """Zeros and leaps among them."""
    count, _ = taken(samples + [1.0] * 40, budget=budget, step=1)
    assert count <= max(3, budget)


@pytest.mark.parametrize("precision", [0.01, 0.005])
def test_the_interval_at_which_a_trial_stops_still_holds_the_median(precision):
    """Looking again and again costs coverage; of 95 % at least 90 % must be left."""
    held, trials = 0, 60
    for seed in range(trials):
        samples = latencies(seed, MAXIMUM, tail=0)
        count, _ = taken(samples, precision)
        estimate = stats.summarise(samples[:count]).estimate
        held += estimate.low <= 1000 <= estimate.high
    assert held / trials >= 0.90
