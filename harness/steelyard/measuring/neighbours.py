"""How much of the machine others use while something is weighed."""

from __future__ import annotations

import os
from time import perf_counter_ns
from typing import Final

import psutil

TICKS: Final = 10_000_000 * (os.cpu_count() or 1)
"""Nanoseconds that the kernel's accounts, kept in ticks of 10 ms a core, may be off."""


class Neighbours:
    """How much of the machine others used meanwhile."""

    def __init__(self) -> None:
        self._began = perf_counter_ns(), _own_ns(), _busy_ns()

    def busy(self) -> float:
        """Return processors' worth of work that was not this process's or a child's."""
        wall, own, all_ = self._began
        elapsed = max(1, perf_counter_ns() - wall)
        others = (_busy_ns() - all_) - (_own_ns() - own) - TICKS
        return max(0.0, others / elapsed)


def _own_ns() -> int:
    """Return the processor time of this process and of its children that ended."""
    times = os.times()
    return int((sum(times[:4])) * 1e9)


def _busy_ns() -> int:
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    return int((sum(times) - idle) * 1e9)
