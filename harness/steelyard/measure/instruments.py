"""Per-process instruments: clocks and cache flushes."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from steelyard.clocks import Clock
from steelyard.clocks.host import HostClock
from steelyard.clocks.native import NativeClock
from steelyard.declare.mode import Mode
from steelyard.measure import cold, ledger
from steelyard.prepare import work
from steelyard_device import cpu

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
        return cold.calibrated()

    @functools.cached_property
    def last_level_cache(self) -> int:
        """Bytes of the largest cache."""
        return cold.last_level_cache()

    @functools.cached_property
    def empty_call(self) -> float:
        """Median nanoseconds of calling an empty Python function once."""
        return ledger.per_call(work.CallableWork(lambda: None).launch)

    def clock(self, bound: work.Work, mode: Mode) -> Clock:
        """Return the host's clock nearest to what the mode asks about."""
        if mode.quantity == "kernel" and isinstance(bound, work.NativeWork):
            return NativeClock(bound)
        return self.host
