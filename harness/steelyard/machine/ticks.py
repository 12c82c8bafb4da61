"""How finely a clock ticks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from time import perf_counter_ns
from typing import Final

FLOOR_SAMPLES: Final = 101
"""Odd, so that the median is a reading; enough for a stable one, 10 us in all."""

READINGS: Final = 2000

READ: Final = 12
"""Readings that do not all share a divisor by accident: of random ones all are even in
one case in 4096."""

COARSEST: Final = 2048
"""Nanoseconds of the longest tick looked for: GPUs that step in microseconds have one
of 1024."""


def smallest_step(read: Callable[[], int]) -> float:
    """Return the tick of a clock: the greatest common divisor of its steps.

    A clock that ticks in 10 ns shows steps of 30 and 40 when reading takes longer than
    a tick; their divisor is the tick itself.
    """
    readings = [read() for _ in range(READINGS)]
    steps = {b - a for a, b in pairwise(readings)} - {0}
    return float(math.gcd(*steps)) if steps else math.inf


def empty_window() -> int:
    """Return what the host's clock reads around nothing."""
    start = perf_counter_ns()
    return perf_counter_ns() - start


def seen_tick(times: Sequence[int]) -> float:
    """Return what all differing readings are multiples of; 0 where too few are there.

    Windows of a clock that ticks in 1 ns differ by anything, whatever they time.
    """
    if len(times) < READ or len(set(times)) == 1:
        return 0.0
    return float(math.gcd(*times))


def common_tick(times: Iterable[float], slack: int = 1) -> float:
    """Return the longest tick that all times are multiples of, give or take ``slack``.

    CUPTI converts both ends of an interval to another scale: its durations are whole
    ticks but for a nanosecond. 1 where nothing longer fits.
    """
    seen = {round(time) for time in times}
    for tick in range(COARSEST, 4 * slack, -1):
        if all(abs(time - tick * round(time / tick)) <= slack for time in seen):
            return float(tick)
    return 1.0
