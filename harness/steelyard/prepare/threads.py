"""Work on arrays in parts, on all processors: NumPy lets other threads run meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

Part = TypeVar("Part")
Result = TypeVar("Result")

FEWEST: Final = 2
"""Parts for which a thread is worth its start; they take about a millisecond each."""


def each(function: Callable[[Part], Result], parts: Sequence[Part]) -> list[Result]:
    """Return what ``function`` gives for each part; the threads end before it does."""
    workers = min(len(parts) // FEWEST, len(os.sched_getaffinity(0)))
    if workers < 2:
        return list(map(function, parts))
    from concurrent.futures import ThreadPoolExecutor  # not for small arrays

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(function, parts))
