"""When a trial has enough samples: fed one at a time, asked after each."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Final

from steelyard.analyse import stats
from steelyard.analyse.trial import ClockFacts
from steelyard.declare.settings import Settings

TRIAL_BUDGET: Final = 0.08
"""Seconds of sampling in one trial unless the run has a budget: four blocks of it give a
median of 100 us kernels to a few per mille, and a suite of 100 rows in a minute."""

MAXIMUM: Final = 5000
"""Beyond this the interval of one block says nothing more: blocks differ by more."""

PATIENCE: Final = 2
"""Budgets after which a trial in turn ends with what it has: of windows that long, such as
builds of seconds, another block tells more than a second window."""

LONG: Final = 1e9
"""Nanoseconds of a window of which one is enough once the budget is spent, as above."""

ASK_EVERY: Final = 8
"""Samples between two looks at the interval once there are many; looking takes
microseconds, and looking at each sample stops too early too often."""


@dataclass(slots=True)
class Stopping:
    """Stops when the interval is narrow enough, or the budget is spent.

    ``precision`` is the half-width asked for, as a fraction; ``budget`` and ``now`` are
    in nanoseconds; a sample is nanoseconds per launch of windows of ``launches``, and
    ``pulsed`` what `stats.summarise` says.
    """

    precision: float
    budget: int
    now: Callable[[], int]
    launches: int = 1
    quantum: float = 0.0
    pulsed: bool = False
    settled: bool = False
    """Whether the interval was reached."""
    _ordered: list[float] = field(default_factory=list)
    _deadline: int = 0

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Count the budget from now on."""
        self._deadline = self.now() + self.budget

    def finished(self, sample: float) -> bool:
        """Take one more sample and say whether it was the last."""
        insort(self._ordered, sample)
        count = len(self._ordered)
        spent = self.now() >= self._deadline
        if count >= self._minimum() and (count % ASK_EVERY == 0 or spent):
            self.settled = self._half_width() <= self.precision
        if count >= MAXIMUM or self.settled:
            return True
        # Past the budget a slow case still gets three samples, for a spread at all.
        return spent and (count >= 3 or sample * self.launches >= LONG)

    @property
    def overdue(self) -> bool:
        """Whether the budget is spent several times over."""
        return self.now() >= self._deadline + (PATIENCE - 1) * self.budget

    def _minimum(self) -> int:
        step = self.quantum / self.launches
        averaged = self.pulsed or stats.is_quantised(self._ordered, step)
        return stats.QUANTISED_SAMPLES if averaged else stats.MINIMUM

    def _half_width(self) -> float:
        step = self.quantum / self.launches
        return stats.estimate(self._ordered, step, pulsed=self.pulsed).half_width


def stopping_of(settings: Settings, launches: int, clock: ClockFacts) -> Stopping:
    """Return what ends a trial whose windows have so many launches, read by a clock."""
    return Stopping(
        settings.precision,
        int((settings.budget or TRIAL_BUDGET) * 1e9),
        perf_counter_ns,
        launches,
        clock.quantum,
        pulsed=clock.pulsed,
    )
