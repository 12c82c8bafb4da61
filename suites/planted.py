"""Kernels of 10 us to 1 ms for a gate to prove itself on: `steelyard selftest`.

``extra`` multiply-adds, each waiting for the one before, stand behind every launch: work
of known length, which the kernel's own does not hide. ``-p extra=0,1000`` plants some.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from steelyard import Builder, benchmark
from steelyard.declare.handles import Call
from steelyard.measure.inject import delayed
from steelyard.prepare.work import BoundOnCall, Work
from steelyard_kernels import KernelFunction, library

from .common import Array
from .softmax import reference

COLS: Final = 512


@benchmark(rows=[128, 512, 1024, 4096], dtype=["float32", "float16"], extra=[0])
def planted_softmax(b: Builder, rows: int, dtype: str, extra: int) -> Call:
    """Exponentiate and normalise rows of 512: the units of a core are busy."""
    x = b.input((rows, COLS), dtype)
    y = b.output((rows, COLS), dtype)
    b.check(reference, x)
    b.mode("kernel/warm")
    return b.launch(WithExtra(library.softmax, extra), x, out=y)


@benchmark(n=[1 << k for k in (18, 19, 20, 21)], extra=[0])
def planted_triad(b: Builder, n: int, extra: int) -> Call:
    """Add a scaled array to another: caches and memory are busy."""
    x, y = b.input(n, name="x"), b.input(n, name="y")
    z = b.output(n)
    b.check(lambda x, y: x + 3.0 * y, x, y)
    b.mode("kernel/warm")
    return b.launch(WithExtra(library.triad, extra), x, y, out=z, s=3.0)


@dataclass(frozen=True, slots=True)
class WithExtra(BoundOnCall):
    """A kernel with multiply-adds behind each launch, as it is without any."""

    kernel: KernelFunction
    extra: int

    def bind(self, *arrays: Array, **keywords: Any) -> Work:
        """Bind the kernel, and put the delay behind it."""
        bound = self.kernel.bind(*arrays, **keywords)
        return delayed(bound, self.extra) if self.extra else bound
