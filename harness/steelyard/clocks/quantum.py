"""How finely a clock ticks."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Final

FLOOR_SAMPLES: Final = 101
"""Odd, so that the median is a reading; enough for a stable one, 10 us in all."""

READINGS: Final = 2000


def smallest_step(read: Callable[[], int]) -> float:
    """Return the tick of a clock: the greatest common divisor of its steps.

    A clock that ticks in 10 ns shows steps of 30 and 40 when reading takes longer than
    a tick; their divisor is the tick itself.
    """
    readings = [read() for _ in range(READINGS)]
    steps = {b - a for a, b in pairwise(readings)} - {0}
    return float(math.gcd(*steps)) if steps else math.inf
