"""What the time of one call goes to, and how much of it is the kernel (iree#17012).

One addition, called from Python as users call it: once, in batches, with its output
allocated inside the timing and outside. ``steelyard show`` of a latency has its ledger:
allocate, first touch, pack, submit, kernel, synchronise.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from steelyard import Builder, benchmark
from steelyard.handles import Call
from steelyard_kernels import kernel
from steelyard_kernels.array import Array

SMALL: Final = 1_000
"""Elements whose addition takes less than calling it."""

ALWAYS: Final = (
    "latency/warm",
    "latency/warm/64",
    "latency/warm/allocated",
    "latency/warm/allocated/64",
    "per_launch/warm/64",
)
WHERE_CALLS_COUNT: Final = (
    "latency/warm/8",
    "latency/warm/allocated/8",
    "per_launch/warm/8",
)
"""Batches of 8 tell a fixed cost of a call from one of a launch, where either shows."""


@kernel
def add(x: Array, y: Array) -> Array:
    """Return x + y."""
    return x + y


@benchmark(n=[SMALL, 1_000_000], impl=["numpy", "ours"])
def dispatch(b: Builder, n: int, impl: str) -> Call:
    """Add two float32 arrays."""
    x, y = b.input(n, name="x"), b.input(n, name="y")
    z = b.output(n)
    b.check(np.add, x, y)
    b.mode(*ALWAYS, *(WHERE_CALLS_COUNT if n <= SMALL else ()))
    return b.launch(np.add if impl == "numpy" else add, x, y, out=z)
