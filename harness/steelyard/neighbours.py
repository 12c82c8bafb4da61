"""How much of the machine others use while something is weighed."""

from __future__ import annotations

from time import perf_counter_ns, process_time_ns

import psutil


class Neighbours:
    """How much of the machine others used meanwhile."""

    def __init__(self) -> None:
        self._began = perf_counter_ns(), process_time_ns(), _busy_ns()

    def busy(self) -> float:
        """Return processors' worth of work that was not this process's."""
        wall, own, all_ = self._began
        elapsed = max(1, perf_counter_ns() - wall)
        others = (_busy_ns() - all_) - (process_time_ns() - own)
        return max(0.0, others / elapsed)


def _busy_ns() -> int:
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    return int((sum(times) - idle) * 1e9)
