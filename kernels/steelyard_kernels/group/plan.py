"""Which candidates are compiled together, and in which order: pure functions.

A program costs its compiler something before its first kernel, so small kernels share
one; a program of many heavy ones would keep a thread busy after the others are done.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import Final

LARGEST: Final = 64
"""Kernels of a program: more save little of its fixed cost, and lose more together."""

LONGEST: Final = 0.4
"""Seconds of a program: eight kernels of 50 ms, of which the fixed cost is 4 %."""

PER_THREAD: Final = 3
"""Programs of a thread where there is enough, so that the last one hangs over little."""

SHARE: Final = 0.1
"""The part of a program's time that its fixed cost may be for having `PER_THREAD`."""


def plan(
    weights: Sequence[float], threads: int, program: float, largest: int = LARGEST
) -> tuple[tuple[int, ...], ...]:
    """Put candidates into groups by their weights; the heaviest group comes first.

    Each candidate, the heaviest first, goes where the least is (Graham, "Bounds on
    Multiprocessing Timing Anomalies", 1969). `program` is what a group costs beside
    its candidates, in seconds as the weights.
    """
    count = _count(sum(weights), len(weights), threads, program, largest)
    groups: list[list[int]] = [[] for _ in range(count)]
    loads = [0.0] * count
    lightest = [(0.0, number) for number in range(count)]
    for candidate in sorted(range(len(weights)), key=lambda each: -weights[each]):
        _, number = heapq.heappop(lightest)
        groups[number].append(candidate)
        loads[number] += weights[candidate]
        if len(groups[number]) < largest:
            heapq.heappush(lightest, (loads[number], number))
    order = sorted(range(count), key=lambda number: -loads[number])
    return tuple(tuple(groups[number]) for number in order)


def _count(
    total: float, candidates: int, threads: int, program: float, largest: int
) -> int:
    """Return how many groups there are.

    As many as threads, or some times that if the fixed cost stays a small share; fewer
    if it would be half of a group's time; more if groups would get too large.
    """
    times = int(total / threads * SHARE / program) if program else PER_THREAD
    wanted = threads * min(max(times, 1), PER_THREAD)
    affordable = math.ceil(total / program) if program else candidates
    count = min(wanted, max(affordable, 1))
    least = max(math.ceil(candidates / largest), math.ceil(total / LONGEST))
    if least > count:  # then a whole number for each thread
        count = math.ceil(least / threads) * threads
    return min(count, candidates)


def split(group: Sequence[int], parts: int) -> tuple[tuple[int, ...], ...]:
    """Deal a group out in so many parts of alike weights, or one for each candidate."""
    count = min(parts, len(group))
    return tuple(tuple(group[number::count]) for number in range(count))
