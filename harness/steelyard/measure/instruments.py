"""Per-process instruments: clocks and cache flushes."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

import numpy as np

from steelyard.analyse.trial import UNKNOWN
from steelyard.clocks import Clock
from steelyard.clocks.host import HostClock, NativeClock
from steelyard.declare.mode import Mode
from steelyard.machine import facts
from steelyard.measure import ledger
from steelyard.prepare import work
from steelyard_device import cpu, memory

if TYPE_CHECKING:
    from steelyard.measure.gpu_instruments import GpuInstruments
    from steelyard_device import cuda


class Instruments:
    """The host's half, and a `GpuInstruments` for each GPU that is asked for."""

    def __init__(self, flush_bytes: int | None = None) -> None:
        self.host = HostClock()
        self._flush_bytes = flush_bytes
        self._devices: dict[int, GpuInstruments] = {}

    def on(self, context: cuda.Context) -> GpuInstruments:
        """Return what measures work in a GPU's context."""
        from steelyard.measure.gpu_instruments import GpuInstruments

        if context.handle not in self._devices:
            self._devices[context.handle] = GpuInstruments(context)
        return self._devices[context.handle]

    @functools.cached_property
    def flush(self) -> cpu.Flush:
        """A flush of the size that is known, or calibrated on first use."""
        if self._flush_bytes is not None:
            return cpu.Flush(self._flush_bytes)
        return calibrated()

    @functools.cached_property
    def last_level_cache(self) -> int:
        """Bytes of the largest cache."""
        return last_level_cache()

    @functools.cached_property
    def empty_call(self) -> float:
        """Median nanoseconds of calling an empty Python function once."""
        return ledger.per_call(work.CallableWork(lambda: None).launch)

    def clock(self, bound: work.Work, mode: Mode) -> Clock:
        """Return the host's clock nearest to what the mode asks about."""
        if mode.quantity == "kernel" and isinstance(bound, work.NativeWork):
            return NativeClock(bound)
        return self.host


PROBE: Final = 768 * 1024
"""Bytes that the probe copies from and to: more than a private cache holds in part,
less than a shared one, so that both show."""

SETTLED: Final = 0.05
"""A walk is long enough when the probe is within this of its time behind the longest."""

SHORTEST: Final = 2
"""Times the last-level cache; once leaves a tenth of what a probe finds (EPYC 9004)."""

LARGEST: Final = 512 << 20
ROUNDS: Final = 9
FALLBACK: Final = 32 << 20
"""Bytes of a last-level cache that the machine does not tell the size of."""


def last_level_cache() -> int:
    """Return the size in bytes of the largest cache the kernel lists for core 0."""
    known = (one for one in facts.caches().values() if isinstance(one, dict))
    sizes = (one["bytes"] for one in known if one["bytes"] != UNKNOWN)
    return max(sizes, default=FALLBACK)


def calibrated() -> cpu.Flush:
    """Return the shortest flush behind which a probe is as slow as behind the longest.

    The lengths take turns, so that a disturbed moment is everybody's.
    """
    lengths = [SHORTEST * last_level_cache()]
    while 2 * lengths[-1] <= LARGEST:
        lengths.append(2 * lengths[-1])
    flushes = [cpu.Flush(length) for length in lengths]
    probe = Probe()
    rounds = [[probe(flush) for flush in flushes] for _ in range(ROUNDS)]
    times = [statistics.median(one) for one in zip(*rounds, strict=True)]
    long_enough = (1 - SETTLED) * times[-1]
    return next(f for f, t in zip(flushes, times, strict=True) if t >= long_enough)


class Probe:
    """A copy whose time shows how cold the caches are."""

    def __init__(self) -> None:
        self._source = np.ones(PROBE, np.uint8)
        self._target = memory.empty((PROBE,), np.uint8, offset=memory.LINE)

    def __call__(self, flush: Callable[[], None]) -> int:
        """Return the nanoseconds of a copy behind ``flush`` of what was in cache."""
        np.copyto(self._target, self._source)
        flush()
        start = perf_counter_ns()
        np.copyto(self._target, self._source)
        return perf_counter_ns() - start
