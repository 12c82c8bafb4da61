"""Statistics of one trial: pure functions of its samples."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from steelyard.analyse.distributions import CONFIDENCE, NORMAL, student
from steelyard.analyse.trial import Trial

MINIMUM = 6
"""The fewest samples whose extremes hold the median with 95 % (2 / 2**6 = 3.1 %)."""

QUANTISED_SHARE = 0.005
"""A tick above this share of the window is visible in the median, which can then
only take the values of ticks: the mean within `FENCES` stands for it."""

FENCES = (3.0, 2.0)
"""Interquartile ranges, and ticks, beyond the quartiles within which readings of a
quantised clock count. Ticks alone spread a time that never varies over two values, of
which the rarer may be any share: Tukey's fences without the two ticks cut it off and are
wrong by up to an eighth of a tick, the mean of the middle half by a quarter."""

PULSE = 0.05
"""Share of a time beyond the quartiles that is within the `FENCES` of a pulsed clock too:
a heap of less than a quarter of the readings would be cut off."""

QUANTISED_SAMPLES = 30
"""Fewest samples of a quantised clock: the mean over ticks needs many to dither."""

BARS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Estimate:
    """One number with its interval, in the unit of what was estimated."""

    value: float
    low: float
    high: float
    systematic: float = 0.0
    """Of half the interval, what is the same in every sample and every block: more of
    them do not make it less."""

    @property
    def known(self) -> bool:
        """Whether the interval ends: that of a single pair of blocks does not."""
        return math.isfinite(self.high)

    @property
    def half_width(self) -> float:
        """Half the interval as a fraction of the value."""
        return (self.high - self.low) / 2 / self.value if self.value else math.inf

    @property
    def sampled(self) -> float:
        """What more samples or blocks would narrow of it, as a fraction too."""
        if not self.value:
            return math.inf
        return self.half_width - self.systematic / self.value


@dataclass(frozen=True, slots=True)
class Summary:
    """Everything a row says of a trial's samples, in nanoseconds per launch."""

    estimate: Estimate
    quantised: bool
    samples: int
    minimum: float
    maximum: float
    mean: float
    midmean: float
    deviation: float
    quantiles: tuple[float, float, float, float]
    """5, 25, 75 and 95 %."""

    @property
    def variation(self) -> float:
        """The coefficient of variation: deviation over mean."""
        return self.deviation / self.mean if self.mean else math.nan


def corrected(trial: Trial) -> tuple[float, ...]:
    """Return each window's nanoseconds per launch without the clock's offset."""
    samples, offset = trial.samples, trial.clock.offset
    if not offset:
        return samples.per_launch()
    pairs = zip(samples.ticks, samples.launches, strict=True)
    return tuple((ticks - offset) / launches for ticks, launches in pairs)


def of(trial: Trial) -> Summary:
    """Summarise a trial; its clock's offset is taken off and its errors are added.

    One of another tool that kept no samples has the estimate that is ``stated``.

    Raises:
        ValueError: it has no sample.
    """
    clock = trial.clock
    launches = trial.samples.launches[0] if len(trial.samples) else 1
    readings = corrected(trial)
    found = summarise(readings, launches, clock.quantum, pulsed=clock.pulsed)
    if "stated" in trial.extra:
        return replace(found, estimate=Estimate(**trial.extra["stated"]))
    systematic = clock.uncertainty / launches + clock.drift * abs(found.estimate.value)
    return replace(found, estimate=widened(found.estimate, systematic))


def budget(trial: Trial) -> dict[str, float]:
    """Return the parts of half a trial's interval, nanoseconds per launch each.

    ``sampling`` is what more samples would narrow, ``quantum`` the clock's tick,
    ``offset`` what is not known of the clock's offset, ``drift`` its rate. They add up
    to half of the interval of `of`.
    """
    if "stated" in trial.extra:
        found = of(trial).estimate
        half = (found.high - found.low) / 2
        return {"sampling": half, "quantum": 0.0, "offset": 0.0, "drift": 0.0}
    clock, launches = trial.clock, trial.samples.launches[0]
    ordered = sorted(corrected(trial))
    step = clock.quantum / launches
    pulsed = clock.pulsed
    whole = estimate(ordered, step, pulsed=pulsed)
    half = (whole.high - whole.low) / 2
    if pulsed or is_quantised(ordered, step):
        sampling = min(half, _fenced(ordered, step, pulsed=pulsed)[1])
    else:
        sampling = half - step / 2
    return {
        "sampling": sampling,
        "quantum": half - sampling,
        "offset": clock.uncertainty / launches,
        "drift": clock.drift * abs(whole.value),
    }


def widened(found: Estimate, systematic: float) -> Estimate:
    """Add an error that all samples share to both ends of an interval."""
    return Estimate(
        found.value,
        found.low - systematic,
        found.high + systematic,
        found.systematic + systematic,
    )


def summarise(
    per_launch: Sequence[float],
    launches: int = 1,
    quantum: float = 0.0,
    *,
    pulsed: bool = False,
) -> Summary:
    """Summarise samples of ``launches`` launches each, read in steps of ``quantum``.

    ``pulsed`` says that what ran them pulses, as a GPU does.

    Raises:
        ValueError: there is no sample.
    """
    if not per_launch:
        raise ValueError("no samples to summarise")
    ordered = sorted(per_launch)
    step = quantum / launches
    return Summary(
        estimate=estimate(ordered, step, pulsed=pulsed),
        quantised=is_quantised(ordered, step),
        samples=len(ordered),
        minimum=ordered[0],
        maximum=ordered[-1],
        mean=math.fsum(ordered) / len(ordered),
        midmean=midmean(ordered),
        deviation=statistics.stdev(ordered) if len(ordered) > 1 else 0.0,
        quantiles=tuple(quantile(ordered, q) for q in (0.05, 0.25, 0.75, 0.95)),  # type: ignore[arg-type] # four of four
    )


def is_quantised(ordered: Sequence[float], step: float) -> bool:
    """Tell whether a tick is a visible part of sorted samples."""
    return step > QUANTISED_SHARE * statistics.median(ordered)


def estimate(
    ordered: Sequence[float], step: float, *, pulsed: bool = False
) -> Estimate:
    """Estimate sorted samples read in ticks of ``step``: by mean or by median."""
    if pulsed or is_quantised(ordered, step):
        return _fenced_estimate(ordered, step, pulsed=pulsed)
    return median(ordered, step)


def median(ordered: Sequence[float], step: float = 0.0) -> Estimate:
    """Return the median of sorted samples with its distribution-free interval.

    Read in ticks of ``step``, it may be off by half of one however many there are.

    The interval is a pair of order statistics that holds the median of any
    continuous distribution with at least `CONFIDENCE` (David and Nagaraja, Order
    Statistics, 3rd ed., section 7.1); with fewer than `MINIMUM` samples none
    does, and the interval is their range.
    """
    rank = median_rank(len(ordered))
    low, high = ordered[rank] - step / 2, ordered[-1 - rank] + step / 2
    return Estimate(statistics.median(ordered), low, high)


def median_rank(count: int) -> int:
    """Return k such that the (k+1)-th smallest and largest bound the median.

    P(fewer than k+1 of ``count`` lie below the median) must not exceed 2.5 %; 0 where
    even the extremes do not reach that (``count`` < 6).
    """
    if count > 1000:  # normal approximation; off by at most one rank here
        return max(0, math.floor((count - 1 - NORMAL * math.sqrt(count)) / 2))
    rank, term = -1, 0.5**count
    tail = term
    while tail <= (1 - CONFIDENCE) / 2:
        rank += 1
        term *= (count - rank) / (rank + 1)
        tail += term
    return max(0, rank)


def midmean(ordered: Sequence[float]) -> float:
    """Return the mean of the middle half of sorted samples."""
    cut = len(ordered) // 4
    middle = ordered[cut : len(ordered) - cut]
    return math.fsum(middle) / len(middle)


def _fenced_estimate(
    ordered: Sequence[float], step: float, *, pulsed: bool
) -> Estimate:
    value, error = _fenced(ordered, step, pulsed=pulsed)
    half = max(error, step / math.sqrt(len(ordered)))
    return Estimate(value, value - half, value + half)


def _fenced(
    ordered: Sequence[float], step: float, *, pulsed: bool
) -> tuple[float, float]:
    """Return the mean of sorted samples within `FENCES`, and Student's half interval.

    A window that starts at any phase of a tick reads the tick below its time or the one
    above, in such shares that the mean is the time itself.
    """
    lower, upper = quantile(ordered, 0.25), quantile(ordered, 0.75)
    ranges, ticks = FENCES
    reach = ranges * (upper - lower) + ticks * step + pulsed * PULSE * abs(upper)
    kept = [x for x in ordered if lower - reach <= x <= upper + reach]
    mean = math.fsum(kept) / len(kept)
    if len(kept) == 1:
        return mean, 0.0
    error = statistics.stdev(kept, mean) / math.sqrt(len(kept))
    return mean, student(len(kept)) * error


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of sorted samples by linear interpolation."""
    at = share * (len(ordered) - 1)
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (at - below) * (ordered[above] - ordered[below])


def histogram(per_launch: Sequence[float], width: int = 12) -> str:
    """Draw samples from the minimum to the 95 % quantile in one line of bars."""
    ordered = sorted(per_launch)
    low, high = ordered[0], quantile(ordered, 0.95)
    if high <= low:
        return BARS[-1] + BARS[0] * (width - 1)
    counts = [0] * width
    for x in ordered:
        if x <= high:
            counts[min(width - 1, int((x - low) / (high - low) * width))] += 1
    top = max(counts)
    return "".join(BARS[math.ceil(c / top * (len(BARS) - 1))] for c in counts)


def combine(blocks: Sequence[Estimate]) -> Estimate:
    """Combine the estimates of several blocks of one case into one.

    The unit of replication is the block, which has a process of its own: the interval
    is Student's t over the blocks' logarithms, and beyond it what is systematic in the
    worst of them. One block keeps its own interval. A block that read 0 or less has no
    logarithm, and the result is NaN.
    """
    if len(blocks) == 1:
        return blocks[0]
    if not all(b.value > 0 for b in blocks):
        return Estimate(math.nan, math.nan, math.nan)
    logs = [math.log(b.value) for b in blocks]
    centre = math.fsum(logs) / len(logs)
    half = student(len(logs)) * statistics.stdev(logs) / math.sqrt(len(logs))
    value = math.exp(centre)
    between = Estimate(value, value * math.exp(-half), value * math.exp(half))
    return widened(between, max(b.systematic for b in blocks))


def ratio(new: Sequence[Estimate], base: Sequence[Estimate]) -> Estimate:
    """Return new / base from blocks paired in order (see `combine`).

    A clock's error is the same nanoseconds on both sides, and cancels as far as they
    are as long.
    """
    return combine([_paired(n, b) for n, b in zip(new, base, strict=True)])


def _paired(new: Estimate, base: Estimate) -> Estimate:
    if not (new.value > 0 and base.value > 0):
        return Estimate(math.nan, math.nan, math.nan)
    value = new.value / base.value
    half = math.hypot(new.sampled, base.sampled)
    shared = abs(new.systematic / new.value - base.systematic / base.value)
    between = Estimate(value, value * math.exp(-half), value * math.exp(half))
    return widened(between, value * shared)
