import random

import pytest
import trials
from fakes import latencies
from hypothesis import given
from hypothesis import strategies as st

from steelyard.analyse import doubts
from steelyard.analyse.doubts import raise_doubts
from steelyard.analyse.doubts.samples import drifts, two_groups
from steelyard.analyse.trial import ClockFacts, Samples
from steelyard.measure import sampler

CACHE = 32 << 20


def doubted(ticks=tuple(range(10_000, 10_040)), **changes):
    """Return the doubts of a trial of these ticks; by default it has none."""
    return set(raise_doubts(trials.trial(ticks=ticks, **changes), CACHE, 0.005))


def ticks(times):
    """Return times as whole ticks."""
    return tuple(round(1000 * t) for t in times)


def test_a_quiet_trial_raises_no_doubt():
    """Forty checked samples far above the floor, in no order."""
    quiet = [t % 37 + 10_000 for t in range(0, 4000, 100)]
    assert doubted(quiet) == set()


@pytest.mark.parametrize("doubt", doubts.known().values(), ids=str)
def test_each_doubt_has_a_hint_and_a_reason(doubt):
    """A hint is a clause that tells what to do or what is the matter."""
    assert doubt.hint == doubt.hint.strip()
    assert min(len(doubt.hint) - 20, len(doubt.reason)) > 20


@pytest.mark.parametrize("doubt", ["few-samples", "unsettled"])
def test_a_hint_of_more_time_says_how_much_there_is_without_asking(doubt):
    """A budget of less than the run took would be less time, not more."""
    assert f"{sampler.TRIAL_BUDGET} s each without it" in doubts.known()[doubt].hint
    assert "more seconds than the run took" in doubts.known()[doubt].hint


def state(**facts):
    """Return what a trial keeps of a GPU that was in this state at its end."""
    return {"gpu": {"before": {}, "after": facts}}


def read(nanoseconds):
    """Return what another clock read, as a trial keeps it."""
    errors = {"quantum": 1.0, "offset": 500.0, "uncertainty": 5.0, "drift": 0.0}
    return {"ticks": [nanoseconds + 500] * 40, **errors}


def warmed(share):
    """Return what a trial keeps of how much of its data lay in a cache."""
    return {"audit": {"kept_warm": share}}


def windows(lost=0, mhz=1980):
    """Return a hundred windows, so many interrupted, and one at another clock."""
    same, lost = (1000,) * 100, (1,) * lost + (0,) * (100 - lost)
    return {
        "samples": Samples(same, same, (1,) * 100, same, lost, (1980,) * 99 + (mhz,))
    }


ONCE_QUICK = [[210, 100]] * 6 + [[190, 100]]
EVENTS = trials.clock("events", offset=2400.0, uncertainty=150.0)
GRAPH = trials.clock("graph", offset=1500.0, uncertainty=150.0)
CUPTI = trials.clock("cupti")
TINY = [3100] * 40  # a kernel of 700 ns, of which 150 are not sure


@pytest.mark.parametrize(
    ("doubt", "changes"),
    [
        ("busy-machine", {"extra": {"neighbours": 0.3}}),
        ("logged-in", {"extra": {"terminals": 1}}),
        ("cache-sized", {"extra": {"working_set": CACHE}}),
        ("cache-sized", {"extra": {"working_set": 1.4 * CACHE}}),
        ("collapsed-input", {"extra": {"collapsed": True}}),
        ("unchecked", {"extra": {"checked": False}}),
        ("not-launched", {"extra": {"checked": False, "launched": False}}),
        ("quantised", {"clock": trials.clock("cupti", 64.0)}),
        ("under-floor", {"floors": {"empty": 2100.0}}),
        ("few-samples", {"ticks": [10_000] * 5}),
        ("unsettled", {"ticks": [10_000, 11_500] * 10}),
        ("throttled", {"extra": {"gpu": {"capped": {"power": 0, "board": 9}}}}),
        ("throttled", windows(mhz=1930)),
        ("preempted", windows(lost=30)),
        ("gaps", {"clock": EVENTS, "facts": {"kernels": 2}}),
        ("gaps", {"clock": GRAPH, "facts": {"kernels": 3}}),
        ("disturbed-gpu", {"extra": state(others=[{"pid": 8, "bytes": 1}])}),
        ("wrong-cache", {"extra": {"coldness": "contradicted"}}),
        ("wrong-cache", {"extra": {"wrong_cache": "4 bytes are set aside"}}),
        ("wrong-cache", {"extra": warmed(0.9), "mode": "kernel/cold"}),
        ("remembers", {"extra": {"audit": {"again": [[210, 100]] * 3}}}),
        ("allocates", {"extra": {"audit": {"peak_bytes": 128 << 10}}}),
        ("leaks", {"extra": {"audit": {"kept_bytes": 256}}}),
        ("clocks-disagree", {"extra": {"spans": [10**9, 10**9 + 6_000_000]}}),
        ("clocks-disagree", {"extra": {"clocks": {"events": read(11_000)}}}),
        ("under-floor", {"clock": EVENTS, "ticks": TINY, "extra": state()}),
        ("under-floor", {"clock": CUPTI, "ticks": [128] * 40, "extra": state()}),
    ],
)
def test_what_was_seen_is_doubted(doubt, changes):
    """Each doubt on its own evidence."""
    assert doubt in doubted(**changes)


@pytest.mark.parametrize(
    ("doubt", "changes"),
    [
        ("busy-machine", {"extra": {"neighbours": 0.2}}),
        ("cache-sized", {"extra": {"working_set": CACHE / 2}}),
        ("cache-sized", {"extra": {"working_set": CACHE}, "mode": "kernel/cold"}),
        ("cache-sized", {"extra": {"working_set": 2 * CACHE}}),
        ("quantised", {"clock": CUPTI}),
        ("under-floor", {"floors": {"empty": 1900.0}}),
        ("few-samples", {"ticks": [10_000] * 6}),
        ("throttled", {"extra": state(throttle=["gpu_idle", "sw_power_cap"])}),
        ("throttled", {"extra": {"gpu": {"capped": {"power": 0}}}}),
        ("throttled", {"extra": {"gpu": {"capped": {"power": "unknown"}}}}),
        ("throttled", windows(mhz=1979)),
        ("preempted", windows(lost=20)),
        ("gaps", {"clock": EVENTS, "facts": {"kernels": 1}}),
        ("gaps", {"clock": EVENTS, "facts": {}}),
        ("gaps", {"clock": CUPTI, "facts": {"kernels": 2}}),
        ("disturbed-gpu", {"extra": state(others=[])}),
        ("disturbed-gpu", {"extra": state(others="unknown")}),
        ("wrong-cache", {"extra": {"coldness": "unknown"}}),
        ("wrong-cache", {"extra": warmed(0.9)}),
        ("wrong-cache", {"extra": warmed(0.3), "mode": "kernel/cold"}),
        ("wrong-cache", {"extra": warmed("unknown"), "mode": "kernel/cold"}),
        ("remembers", {"extra": {"audit": {"again": [[210, 100]] * 2}}}),
        ("remembers", {"extra": {"audit": {"again": ONCE_QUICK}}}),
        ("allocates", {"extra": {"audit": {"peak_bytes": 127 << 10}}}),
        ("leaks", {"extra": {"audit": {"kept_bytes": 255}}}),
        ("clocks-disagree", {"extra": {"spans": [10**9, 10**9 + 4_000_000]}}),
        ("clocks-disagree", {"extra": {"spans": [1000, 90_000]}}),
        ("clocks-disagree", {"extra": {"clocks": {"events": read(10_020)}}}),
        ("under-floor", {"clock": EVENTS, "extra": state()}),
        ("under-floor", {"clock": CUPTI, "ticks": [192] * 40, "extra": state()}),
        ("bimodal", {"clock": CUPTI, "ticks": [544, 576] * 20}),
    ],
)
def test_what_was_not_seen_is_not_doubted(doubt, changes):
    """Just this side of each limit."""
    assert doubt not in doubted(**changes)


def test_a_trial_that_failed_before_its_first_sample_has_no_doubts():
    """Its error says enough."""
    assert doubted([], floors={}, error="it raised") == set()


@pytest.mark.parametrize("count", [0, 1, 5, 17, 18, 100])
def test_times_that_stay_do_not_drift(count):
    """Noise of 2 % in any order, as seen in 20 seeds."""
    for seed in range(20):
        assert not drifts(latencies(seed, count))


@pytest.mark.parametrize("slope", [0.1, -0.1])
def test_times_that_rise_or_fall_drift(slope):
    """By 10 % over the trial, through noise of 2 %."""
    for seed in range(20):
        times = latencies(seed, 120, tail=0.05)
        risen = [t * (1 + slope * k / 120) for k, t in enumerate(times)]
        assert drifts(risen)


def test_a_drift_too_small_to_matter_is_none():
    """1 % of exact times, which any interval would tell apart."""
    assert not drifts([1000.0] * 30 + [1010.0] * 60)
    assert drifts([1000.0] * 30 + [1030.0] * 60)


@pytest.mark.parametrize(
    "draw",
    [
        lambda r: r.gauss(1000, 50),
        lambda r: r.lognormvariate(7, 0.3),
        lambda r: r.uniform(900, 1100),
        lambda _: 1000.0,
        lambda r: 1000 + 32 * r.randrange(3),
        lambda r: 1000 if r.random() < 0.95 else 2000,
        lambda r: 1000 * r.paretovariate(5),
    ],
    ids=["normal", "skewed", "uniform", "constant", "ticks", "outliers", "tail"],
)
def test_one_group_is_not_two(draw):
    """Whatever its shape; in no more than 1 of 50 seeds."""
    found = 0
    for seed in range(50):
        random_ = random.Random(seed)
        found += two_groups([draw(random_) for _ in range(200)])
    assert found <= 1


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7])
@pytest.mark.parametrize("ratio", [1.3, 2.0])
def test_two_groups_are_two(share, ratio):
    """72 or 130 us for the same copy: in nine of ten seeds."""
    found = 0
    for seed in range(50):
        random_ = random.Random(seed)
        found += two_groups(
            [
                random_.gauss(1000, 20) * (ratio if random_.random() < share else 1)
                for _ in range(200)
            ]
        )
    assert found >= 45


@given(
    st.lists(st.sampled_from([0, 0, 1, 2, 1000]) | st.integers(0, 10**12), max_size=80),
    st.sampled_from([0.0, 1.0, 32.0]),
)
def test_any_samples_can_be_doubted(times, quantum):
    """Zeros once divided by zero."""
    clock = ClockFacts("made up", 1, quantum, (0,))
    assert doubted(times, clock=clock) <= doubts.known().keys()


@pytest.mark.parametrize(
    ("cpu", "changes", "holds"),
    [
        ([100] * 40, {}, True),
        ([100] * 19 + [9_000] + [100] * 20, {}, False),
        ([9_000] * 20 + [100] * 20, {}, False),
        ([100] * 40, {"extra": state()}, False),
        ([100] * 40, {"mode": "build/cold"}, False),
    ],
)
def test_windows_without_processor_time_are_doubted(cpu, changes, holds):
    """Unless a quicker one has it, or the time is a GPU's or a build's."""
    read = tuple(range(10_000, 10_040))
    samples = Samples(read, read, (1,) * 40, tuple(cpu), (0,) * 40)
    found = doubted(**({"samples": samples} | changes))
    assert ("idle" in found) is holds
