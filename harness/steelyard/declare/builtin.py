"""The built-in suite: what this machine does in plain NumPy, wherever it is run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steelyard.declare.benchmark import benchmark
from steelyard.declare.handles import Builder, Call


@benchmark(n=[1_000, 1_000_000])
def copy(b: Builder, n: int) -> Call:
    """Copy one float32 array into another."""
    x = b.input(n)
    y = b.output(n)
    b.check(lambda x: x, x, rtol=0.0)
    return b.launch(np.copyto, y, x)


@benchmark(n=[1_000, 1_000_000])
def add(b: Builder, n: int) -> Call:
    """Add two float32 arrays."""
    x, y = b.input(n, name="x"), b.input(n, name="y")
    z = b.output(n)
    b.check(np.add, x, y)
    return b.launch(np.add, x, y, out=z)


@benchmark(n=[1_000, 1_000_000])
def softmax(b: Builder, n: int) -> Call:
    """Exponentiate and normalise one float32 row, step by step as NumPy users do."""
    x = b.input(n)
    y = b.output(n)

    def steps(x: NDArray[np.float32], out: NDArray[np.float32]) -> None:
        np.subtract(x, x.max(), out=out)
        np.exp(out, out=out)
        np.divide(out, out.sum(), out=out)

    b.check(lambda x: np.exp(x - x.max()) / np.exp(x - x.max()).sum(), x)
    return b.launch(steps, x, out=y)
