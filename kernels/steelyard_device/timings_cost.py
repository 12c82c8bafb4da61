"""What a span costs on this machine, off and on.

python -c "from steelyard_device.timings_cost import cost; print(cost())"
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import NamedTuple

from steelyard_device.timings import span, timings


class Cost(NamedTuple):
    """Nanoseconds a span: none open, timings open, and with allocations counted."""

    off: float
    on: float
    counting: float


def cost(rounds: int = 30, count: int = 10_000) -> Cost:
    """Time loops of `count` spans, each beside an empty loop; the least of `rounds`.

    Call it while no timings are open.
    """
    seen = []
    for _ in range(rounds):
        off = _loop(_spans, count)
        with timings():
            on = _loop(_spans, count)
        with timings(allocations=True):
            counting = _loop(_spans, count // 10)
        seen.append((off, on, counting))
    return Cost(*map(min, zip(*seen, strict=True)))


def _loop(body: Callable[[int], None], count: int) -> float:
    start = perf_counter_ns()
    _nothing(count)
    between = perf_counter_ns()
    body(count)
    return (perf_counter_ns() - between - (between - start)) / count


def _nothing(count: int) -> None:
    for _ in range(count):
        pass


def _spans(count: int) -> None:
    for _ in range(count):
        with span("x"):
            pass
