"""Make the caches of this machine cold: how much to walk is measured, not assumed."""

from __future__ import annotations

import statistics
from pathlib import Path
from time import perf_counter_ns
from typing import Final

import numpy as np

from steelyard_device import cpu, memory

PROBE: Final = 768 * 1024
"""Bytes that the probe copies from and to: more than a private cache holds in part,
less than a shared one, so that both show."""

SETTLED: Final = 0.03
"""The walk is long enough when doubling it raises the probe's time by less."""

LARGEST: Final = 512 << 20
REPEATS: Final = 7
FALLBACK: Final = 32 << 20
"""Bytes of a last-level cache that the machine does not tell the size of."""


def last_level_cache() -> int:
    """Return the size in bytes of the largest cache the kernel lists for core 0."""
    sizes = [
        _bytes(file.read_text())
        for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    ]
    return max(sizes, default=FALLBACK)


def calibrated() -> cpu.Flush:
    """Return the shortest flush after which a longer one no longer slows a probe."""
    nbytes = last_level_cache()
    flush = cpu.Flush(nbytes)
    seen = _probe(flush)
    while 2 * nbytes <= LARGEST:
        longer = cpu.Flush(2 * nbytes)
        then = _probe(longer)
        if then <= seen * (1 + SETTLED):
            return flush
        nbytes, flush, seen = 2 * nbytes, longer, then
    return flush


def _probe(flush: cpu.Flush) -> float:
    """Return the median nanoseconds of a copy behind ``flush``."""
    source = np.ones(PROBE, np.uint8)
    target = memory.empty((PROBE,), np.uint8, offset=memory.LINE)
    times = []
    for _ in range(REPEATS):
        np.copyto(target, source)
        flush()
        start = perf_counter_ns()
        np.copyto(target, source)
        times.append(perf_counter_ns() - start)
    return statistics.median(times)


def _bytes(text: str) -> int:
    number, unit = text.strip()[:-1], text.strip()[-1]
    return int(number) << {"K": 10, "M": 20, "G": 30}[unit]
