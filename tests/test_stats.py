import math
import random
import statistics

import pytest
import trials
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from steelyard.analyse import stats
from steelyard.analyse.stats import Estimate
from steelyard.analyse.trial import ClockFacts

TIMES = st.lists(st.floats(1.0, 1e9), min_size=1, max_size=60)


def coverage(draw, truth, count, trials=3000, seed=1, **how):
    """Return the share of trials whose interval holds the truth."""
    random_ = random.Random(seed)
    held = 0
    for _ in range(trials):
        estimate = stats.summarise(
            [draw(random_) for _ in range(count)], **how
        ).estimate
        held += estimate.low <= truth <= estimate.high
    return held / trials


@pytest.mark.parametrize("count", [*range(1, 60), 100, 999, 1000, 1001, 5000])
def test_the_rank_is_that_of_the_binomial_distribution(count):
    """The largest k with P(at most k of n lie below the median) of 2.5 % at most."""
    rank = stats.median_rank(count)
    tail = scipy_stats.binom(count, 0.5).cdf
    if count < stats.MINIMUM:
        assert rank == 0
        assert tail(0) > 0.025
    elif count <= 1000:
        assert tail(rank) <= 0.025 < tail(rank + 1)
    else:
        assert tail(rank - 1) <= 0.025 < tail(rank + 2)


@pytest.mark.parametrize("count", [6, 20, 200])
@pytest.mark.parametrize(
    ("draw", "truth"),
    [
        (lambda r: r.paretovariate(1.2), 2 ** (1 / 1.2)),
        (lambda r: r.uniform(0, 1) if r.random() < 0.6 else 9.0, 5 / 6),
    ],
    ids=["heavy tail", "two groups"],
)
def test_the_interval_holds_the_median_of_any_distribution(draw, truth, count):
    """At least 95 % of the time, by simulation; less three standard errors of the simulation."""
    trials = 1500 if count < 100 else 500
    assert coverage(draw, truth, count, trials) >= 0.95 - 3 * math.sqrt(0.0475 / trials)


def quantised(mean, spread):
    """Draw readings in ticks of 32 of a time that starts at any phase of a tick."""
    return lambda r: 32 * math.floor(r.gauss(mean, 32 * spread) / 32 + r.random())


@pytest.mark.parametrize(
    ("spread", "phase"),
    [
        *((0.0, 0.05), (0.0, 0.5), (0.1, 0.0), (0.1, 0.25), (0.3, 0.2), (0.3, 0.5)),
        *((0.5, 0.4), (1.0, 0.05), (2.0, 0.25), (3.0, 0.0)),
    ],
)
def test_a_quantised_clocks_interval_holds_the_time(phase, spread):
    """However little the time varies, at any phase of a tick, from 30 samples on.

    At least 95 % of the time, by simulation; less three standard errors of it.
    """
    mean, trials = 32 * (100 + phase), 1000
    held = coverage(quantised(mean, spread), mean, 30, trials, quantum=32.0)
    assert held >= 0.95 - 3 * math.sqrt(0.0475 / trials)


@pytest.mark.parametrize("phase", [0.0, 0.1, 0.25, 0.5, 0.75])
@pytest.mark.parametrize("spread", [0.0, 0.1, 0.5, 1.0])
def test_a_quantised_clocks_estimate_nears_the_time_with_more_samples(phase, spread):
    """The mean of the middle half would stay wrong by a quarter of a tick."""
    mean = 32 * (100 + phase)
    draw, random_ = quantised(mean, spread), random.Random(2)
    found = stats.summarise([draw(random_) for _ in range(4000)], 1, 32.0).estimate
    assert abs(found.value - mean) <= 3 * 32 * math.hypot(spread, 0.5) / math.sqrt(4000)


@pytest.mark.parametrize(
    ("share", "mean"),
    [(0.3, 2_000.0), (0.45, 250_000.0), (0.5, 50_000.0), (0.7, 50_000.0)],
)
def test_times_on_a_machine_that_pulses_are_averaged(share, mean):
    """In two heaps 3 % apart, of whatever shares: between them a median would jump."""

    def draw(r):
        slow = 0.03 * mean * ((r.random() < share) - share)
        return r.gauss(mean + slow, 0.002 * mean)

    how = {"quantum": 32.0, "pulsed": True}
    assert coverage(draw, mean, 40, 500, **how) >= 0.95 - 3 * math.sqrt(0.0475 / 500)
    random_ = random.Random(3)
    found = [
        stats.summarise([draw(random_) for _ in range(300)], 1, **how).estimate.value
        for _ in range(30)
    ]
    assert max(found) - min(found) <= 0.006 * mean


@pytest.mark.parametrize("clock", ["cupti", "events", "graph", "globaltimer"])
def test_what_clocks_of_a_gpu_read_is_averaged(clock):
    """However long it is; what others read has a median."""
    times = [50_000] * 20 + [51_000] * 19
    native = ClockFacts("native", 1, 1.0, ())
    mean = 50_000 + 1000 * 19 / 39
    for facts, value in ((trials.clock(clock, 1.0), mean), (native, 50_000)):
        trial = trials.trial(samples=trials.samples(times), clock=facts)
        assert stats.of(trial).estimate.value == pytest.approx(value)
        half = (stats.of(trial).estimate.high - stats.of(trial).estimate.low) / 2
        assert math.fsum(stats.budget(trial).values()) == pytest.approx(half)


def test_a_window_that_was_disturbed_does_not_move_a_quantised_estimate():
    """One of forty that took a hundred times as long is far out."""
    times = [3200.0, 3232.0] * 20
    assert stats.summarise([*times, 320_000.0], 1, 32.0).estimate.value == 3216.0


def test_many_equal_ticks_do_not_make_an_interval_of_no_width():
    """400 samples, most of them equal: the interval is at least tick / sqrt(n)."""
    times = [3200.0] * 380 + [3232.0] * 20
    summary = stats.summarise(times, 1, 32.0)
    assert summary.quantised
    assert summary.estimate.high - summary.estimate.low == pytest.approx(3.2)
    fine = stats.summarise(times, 1000, 32.0)
    assert not fine.quantised
    half = pytest.approx(0.016)  # of a tick a launch: a median is a tick, never between
    assert (fine.estimate.value, fine.estimate.high - 3200.0) == (3200.0, half)


@given(TIMES)
def test_a_summary_lies_within_its_samples(times):
    """Every number of it, and the numbers agree with the standard library's."""
    summary = stats.summarise(times)
    low, high = min(times), max(times)
    inside = (
        *(summary.minimum, summary.maximum, summary.mean, summary.midmean),
        *(summary.estimate.value, summary.estimate.low, summary.estimate.high),
        *summary.quantiles,
    )
    slack = 1e-9 * high
    assert all(low - slack <= value <= high + slack for value in inside)
    assert summary.estimate.low <= summary.estimate.value <= summary.estimate.high
    assert summary.estimate.value == statistics.median(times)
    assert summary.samples == len(times)
    assert list(summary.quantiles) == sorted(summary.quantiles)
    if len(times) > 1:
        assert summary.deviation == statistics.stdev(times)


@given(TIMES, st.floats(0.0, 100.0), st.integers(1, 100), st.randoms())
def test_the_order_of_samples_does_not_matter_to_a_summary(times, tick, n, random_):
    """It is a set of numbers; drift is a doubt's affair."""
    shuffled = times.copy()
    random_.shuffle(shuffled)
    one, other = stats.summarise(times, n, tick), stats.summarise(shuffled, n, tick)
    assert one.estimate == other.estimate
    assert one.quantiles == other.quantiles


@given(TIMES, st.sampled_from([0.5, 2.0, 1024.0]))
def test_a_summary_scales_with_its_samples(times, factor):
    """Twice as slow is twice the number."""
    one = stats.summarise(times, 1, 1.0)
    other = stats.summarise([factor * t for t in times], 1, factor)
    assert other.estimate.value == pytest.approx(factor * one.estimate.value)
    assert other.midmean == pytest.approx(factor * one.midmean)


def test_one_sample_is_its_own_interval():
    """Nothing is known of its spread, and nothing divides by zero."""
    summary = stats.summarise([7.0])
    assert summary.estimate == Estimate(7.0, 7.0, 7.0)
    assert (summary.deviation, summary.variation) == (0.0, 0.0)
    assert summary.quantiles == (7.0, 7.0, 7.0, 7.0)


def test_no_samples_have_no_summary():
    """Rather than NaN that passes for a number."""
    with pytest.raises(ValueError, match="no samples"):
        stats.summarise([])


def test_readings_of_zero_are_quantised_and_infinitely_uncertain():
    """A clock too coarse for its window."""
    summary = stats.summarise([0.0] * 40, 1, 10.0)
    assert summary.quantised
    assert summary.estimate.half_width == math.inf
    assert math.isnan(summary.variation)


@pytest.mark.parametrize(
    ("samples", "middle"),
    [
        ([5], 5),
        ([1, 3], 2),
        ([1, 2, 9], 4),
        ([0, 1, 3, 99], 2),
        ([0, 0, 4, 4, 9, 9], 4.25),
    ],
)
def test_the_midmean_is_the_mean_of_the_middle_half(samples, middle):
    """A quarter is cut at each end, rounded down."""
    assert stats.midmean(samples) == middle


@given(TIMES, st.integers(1, 20))
def test_a_histogram_is_one_line_of_its_width(times, width):
    """Its tallest bar is full."""
    drawn = stats.histogram(times, width)
    assert len(drawn) == width
    assert stats.BARS[-1] in drawn
    assert set(drawn) <= set(stats.BARS)


@pytest.mark.parametrize(
    ("times", "drawn"),
    [
        ([1.0], "█   "),
        ([1.0, 1.0, 1.0], "█   "),
        ([1.0, 2.0, 3.0, 4.0], "███ "),
        ([1.0] * 10 + [2.0] * 10, "█  █"),
        ([1.0] * 99 + [1000.0], "█   "),
    ],
)
def test_a_histogram_shows_groups_and_leaves_out_the_tail(times, drawn):
    """From the minimum to the 95 % quantile."""
    assert stats.histogram(times, 4) == drawn


# Blocks.


def block(value, half=0.001):
    """Return a block's estimate of a relative half-width."""
    return Estimate(value, value * (1 - half), value * (1 + half))


@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_the_interval_of_blocks_is_students(count):
    """SciPy's t interval of the logarithms."""
    values = [100 * 1.01 ** (k * k) for k in range(count)]
    combined = stats.combine([block(v) for v in values])
    logs = [math.log(v) for v in values]
    low, high = scipy_stats.t.interval(
        0.95, count - 1, statistics.mean(logs), scipy_stats.sem(logs)
    )
    wanted = pytest.approx((high - low) / 2, rel=2e-3)  # the table has four figures
    assert math.log(combined.high / combined.value) == wanted
    assert math.log(combined.value / combined.low) == wanted


@pytest.mark.parametrize("count", [2, 4, 10])
def test_the_interval_of_blocks_holds_the_truth(count):
    """95 % of the time when processes differ by 3 %, whatever each says of itself."""
    random_ = random.Random(3)
    held = 0
    for _ in range(2000):
        blocks = [block(100 * random_.lognormvariate(0, 0.03)) for _ in range(count)]
        combined = stats.combine(blocks)
        held += combined.low <= 100 <= combined.high
    assert 0.935 <= held / 2000 <= 0.965


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
def test_a_block_of_nothing_makes_the_whole_unknown(value):
    """NaN, which never passes; its logarithm once ended `show`."""
    bad = Estimate(value, value, value)
    for found in (
        stats.combine([block(1.0), bad]),
        stats.ratio([bad], [block(1.0)]),
        stats.ratio([block(1.0)], [bad]),
        stats.ratio([block(1.0), block(1.0)], [block(1.0), bad]),
    ):
        assert math.isnan(found.value)


def test_a_ratio_pairs_blocks_in_order():
    """A machine that slows down between blocks slows both sides, and cancels."""
    base = [block(100.0), block(150.0), block(300.0)]
    new = [block(110.0), block(165.0), block(330.0)]
    found = stats.ratio(new, base)
    assert found.value == pytest.approx(1.1)
    assert found.high - found.low < 1e-9
    with pytest.raises(ValueError, match="shorter"):
        stats.ratio(new, base[:2])


@given(
    st.lists(st.tuples(st.floats(1, 1e6), st.floats(1, 1e6)), min_size=2, max_size=6)
)
def test_the_ratio_of_the_other_way_round_is_the_inverse(pairs):
    """Which side is called base is no matter."""
    new, base = [block(n) for n, _ in pairs], [block(b) for _, b in pairs]
    one, other = stats.ratio(new, base), stats.ratio(base, new)
    assert one.value == pytest.approx(1 / other.value)
    assert one.low == pytest.approx(1 / other.high)


def test_no_ratio_of_times_is_below_zero():
    """One block a side, each hardly known: its interval is wide, and of a ratio."""
    vague = Estimate(100.0, -900.0, 1100.0)
    found = stats.ratio([vague], [vague])
    assert 0 < found.low < 0.01
    assert found.low == pytest.approx(1 / found.high)


# What a clock reads beside the kernel.


def read(ticks, launches=1, **clock):
    """Return a trial of windows read by a clock of these facts."""
    return trials.trial(
        samples=trials.samples(ticks, launches), clock=trials.clock("events", **clock)
    )


def test_a_clocks_offset_is_taken_off_the_estimate_and_not_off_the_samples():
    """Of a window, however many launches it has."""
    trial = read([10_000] * 40, launches=4, offset=2000.0)
    assert trial.samples.per_launch() == (2500.0,) * 40
    assert set(stats.corrected(trial)) == {2000.0}
    assert stats.of(trial).estimate.value == 2000.0
    assert stats.of(trial).maximum == 2000.0


def test_what_is_not_known_of_a_clock_widens_the_interval_whatever_the_samples():
    """By the offset's uncertainty over the launches, and the rate's share."""
    exact = stats.of(read([10_000] * 4000, 4, offset=2000.0)).estimate
    clock = {"offset": 2000.0, "uncertainty": 160.0, "drift": 1e-3}
    vague = stats.of(read([10_000] * 4000, 4, **clock)).estimate
    assert vague.value == exact.value
    assert vague.systematic == pytest.approx(40.0 + 2.0)
    assert vague.high - exact.high == pytest.approx(42.0)
    assert exact.low - vague.low == pytest.approx(42.0)
    assert vague.sampled == pytest.approx(exact.half_width)


CLOCKED = st.builds(
    read,
    st.lists(st.integers(1, 10**6), min_size=1, max_size=60),
    st.integers(1, 50),
    quantum=st.floats(0.0, 100.0),
    offset=st.floats(-500.0, 5000.0),
    uncertainty=st.floats(0.0, 300.0),
    drift=st.floats(0.0, 0.01),
)


@given(CLOCKED)
def test_the_parts_of_an_error_bar_add_up_to_half_of_it(trial):
    """None is less than nothing."""
    found, parts = stats.of(trial).estimate, stats.budget(trial)
    half = (found.high - found.low) / 2
    assert list(parts) == ["sampling", "quantum", "offset", "drift"]
    assert sum(parts.values()) == pytest.approx(half, abs=1e-6)
    assert min(parts.values()) >= -1e-6


@given(CLOCKED)
def test_an_estimate_without_offset_is_that_of_the_samples(trial):
    """As for every clock of the CPU."""
    clock = ClockFacts("host", 1, trial.clock.quantum, ())
    plain = trials.trial(samples=trial.samples, clock=clock)
    times = trial.samples.per_launch()
    step = trial.samples.launches[0], trial.clock.quantum
    assert stats.of(plain) == stats.summarise(times, *step)


@pytest.mark.parametrize("count", [2, 10, 100])
def test_blocks_do_not_average_away_what_they_share(count):
    """The interval of a hundred blocks that agree is the clock's error."""
    one = Estimate(1000.0, 890.0, 1110.0, 100.0)
    found = stats.combine([one] * count)
    assert found.value == pytest.approx(1000.0)
    assert found.low == pytest.approx(900.0)
    assert found.high == pytest.approx(1100.0)
    assert found.systematic == 100.0


def test_a_clocks_error_cancels_in_a_ratio_of_like_times():
    """And is what it is of both where one is long."""
    short, long = (Estimate(v, v - 100, v + 100, 100.0) for v in (1000.0, 100_000.0))
    same = stats.ratio([short], [short])
    assert (same.low, same.high) == (1.0, 1.0)
    assert stats.ratio([long], [short]).systematic == pytest.approx(9.9)
