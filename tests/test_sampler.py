import functools
import gc
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import BenchmarkError
from steelyard.measure import interleave, sampler, stream
from steelyard.measure.sampler import OCTAVE, Record, Stopping, no_collection
from steelyard.measure.stream import HostStream, launches_for


class Enough(Stopping):
    """Ends after so many samples, which it keeps."""

    def __init__(self, samples):
        super().__init__(0.005, 10**12, lambda: 0)
        self.samples, self.fed = samples, []

    def finished(self, sample):
        """Take one more."""
        self.fed.append(sample)
        return len(self.fed) >= self.samples


def sample(windows, record, seed, samples=12):
    """Sample to the end; return what stopping was fed."""
    stopping = Enough(samples)
    interleave.alone(sampler.sample(windows, record, seed, stopping))
    return stopping.fed


def spoken(log, count=2, unit=3, **changes):
    """Return windows that write what happens into a log; each takes 60."""
    taken = []

    def window(n):
        log.append(f"window {n}")
        taken.append(1000 * len(taken))
        return taken[-1], taken[-1] + 60

    found = HostStream(
        restore=lambda: log.append("restore"),
        warm_caches=lambda: log.append("warm"),
        flush_caches=lambda: log.append("flush"),
        window=window,
        count=count,
        unit=unit,
        poison=lambda: log.append("poison"),
        checks=lambda launches: log.append(f"check {launches}"),
    )
    return replace(found, **changes)


def test_a_window_has_its_steps_around_it_in_order():
    """The poison lies over what the warming launch wrote, and under the flush."""
    log = []
    sample(spoken(log), Record(), seed=0, samples=1)
    assert log == ["restore", "warm", "poison", "flush", "window 2", "check 6"]


@given(st.integers(0, 1000))
def test_the_first_window_is_checked_and_one_drawn_from_each_octave(seed):
    """No others: a work that knew which could cheat in the rest."""
    log = []
    sample(spoken(log), Record(), seed, samples=70)
    windows = " ".join(log).split("restore")[1:]
    checked = [k for k, steps in enumerate(windows) if "check" in steps]
    assert checked[0] == 0
    assert 1 <= checked[1] < OCTAVE
    assert all(OCTAVE <= k < OCTAVE**2 for k in checked[2:3])
    assert len(checked) in {3, 4}
    assert [k for k, steps in enumerate(windows) if "poison" in steps] == checked


def test_the_drawn_window_depends_on_the_seed():
    """Every one of the first octave comes up."""
    drawn = set()
    for seed in range(100):
        log = []
        sample(spoken(log), Record(), seed, samples=10)
        order = [step for step in log if step.startswith(("window", "check"))]
        drawn.add(order.index("check 6", 2))
    assert len(drawn) == OCTAVE - 1


def test_a_window_has_the_callers_time_however_long_the_pool_idled(monkeypatch):
    """What the process had is known late: less what its threads idled, it may be nothing."""
    used = iter(range(0, 10**12, 10**10))
    monkeypatch.setattr(stream, "pool_used", lambda: (1, next(used)))
    own = iter(range(0, 10**3, 10))
    monkeypatch.setattr(stream, "thread_time_ns", lambda: next(own))
    record = Record()
    sample(spoken([]), record, seed=0, samples=4)
    assert record.samples().cpu == (10, 10, 10, 10)


def test_an_empty_record_is_empty_samples():
    """Of a case that failed before its first window."""
    assert len(Record().samples()) == 0


def test_stopping_is_fed_nanoseconds_per_launch():
    """Of windows of count times unit launches."""
    windows = spoken([], count=5, unit=4)
    assert sample(windows, Record(), seed=0, samples=2) == [3.0, 3.0]


def test_no_garbage_is_collected_inside():
    """And afterwards collection is as it was, whatever happened."""
    for was_on in (True, False):
        (gc.enable if was_on else gc.disable)()
        callbacks = list(gc.callbacks)
        try:
            with pytest.raises(ZeroDivisionError), no_collection():
                _assert_off()
            assert gc.isenabled() is was_on
            assert gc.callbacks == callbacks
        finally:
            gc.enable()


def _assert_off():
    assert not gc.isenabled()
    raise ZeroDivisionError


def test_a_collection_the_work_asks_for_is_told_apart():
    """Its nanoseconds are reported beside the samples."""
    with no_collection() as collected:
        assert collected() == 0
        gc.collect()
        assert collected() > 0


@given(
    st.floats(0.3, 1e7),
    st.sampled_from([1.0, 10.0, 32.0, 1000.0]),
    st.sampled_from([0.0, 20.0, 200.0]),
)
def test_windows_are_long_enough_for_their_clock(launch, quantum, floor):
    """The tick and what is read around nothing are 0.5 % of them, and little more."""
    now = [0.0]

    def window(count):
        start = now[0]
        now[0] += floor + count * launch
        return int(start), int(now[0])

    count = launches_for(window, quantum, floor)
    length = floor + count * launch
    wanted = 200 * max(quantum, floor)
    assert length >= wanted - 2
    assert count == 1 or length <= 160 * wanted


@pytest.mark.parametrize("quantum", [0.0, 1.0])
def test_a_clock_that_never_ticks_ends_the_search(quantum):
    """At sixteen million launches, with an error and not with an overflow."""
    calls = []

    def window(count):
        calls.append(count)
        return 0, 0

    if quantum == 0:
        assert launches_for(window, quantum, 0.0) == 1
    else:
        with pytest.raises(BenchmarkError, match="does not launch as often"):
            launches_for(window, quantum, 0.0)
        assert calls[-1] >= 1 << 24
    assert len(calls) < 60


def test_a_clock_without_a_tick_is_refused():
    """No window of it is long enough, and nothing is launched to find out."""
    with pytest.raises(BenchmarkError, match="the clock stands still"):
        launches_for(lambda _: pytest.fail("launched"), math.inf, 0.0)


@pytest.mark.parametrize("place", range(12))
def test_one_pause_is_no_clock_that_stands_still(monkeypatch, place):
    """Of 0.15 s in any window, or between its last reading and the other clock's."""
    now, calls, pause = [0], [0], 150_000_000
    monkeypatch.setattr(stream, "other_clock", lambda: now[0])

    def window(launches, *, within):
        paused = pause * (calls[0] == place)
        calls[0] += 1
        start = now[0]
        now[0] += 50 * launches + paused * within
        stop = now[0]
        now[0] += paused * (not within)
        return start, stop

    for within in (True, False):
        calls[0] = 0
        found = launches_for(functools.partial(window, within=within), 1.0, 40.0)
        assert 160 <= found < 1000
