"""What this machine's memory gives: copy, triad, and three streams scaled in place.

Sizes are among those of the other suites, which bring the yardsticks of the rest:
100 and 4,194,304 elements (adam), 1024 rows of 768, 4096 and 5140 (bias_layernorm). NumPy, on one thread and in several
passes, is no yardstick for cold memory and is weighed warm, here as everywhere.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from steelyard import Builder, benchmark
from steelyard.declare.handles import Call
from steelyard_kernels import library

from .common import Array, Peer, available, modes_of, on_all_cores

IMPLS = ["numpy", *available("numba"), "ours"]


@benchmark(n=[100, 1024 * 768, 1024 * 4096, 1024 * 5140], impl=IMPLS)
def copy(b: Builder, n: int, impl: str) -> Call:
    """Copy n float32 elements."""
    x = b.input(n)
    y = b.output(n)
    b.check(lambda x: x, x, rtol=0.0, atol=0.0)
    if impl == "numpy":
        b.mode("kernel/warm")
        return b.launch(np.copyto, y, x)
    b.mode(*modes_of(n))
    if impl == "numba":
        return b.launch(Peer(functools.partial(_numba, "copy", n)), x, y)
    return b.launch(library.copy, x, out=y)


@benchmark(n=[100, 1024 * 4096], impl=IMPLS)
def triad(b: Builder, n: int, impl: str) -> Call:
    """Add a scaled array to another."""
    x, y = b.input(n, name="x"), b.input(n, name="y")
    z = b.output(n)
    b.check(lambda x, y: x + 3.0 * y, x, y)
    if impl == "numpy":
        b.mode("kernel/warm")
        return b.launch(_numpy_triad, x, y, out=z)
    b.mode(*modes_of(n))
    if impl == "numba":
        return b.launch(Peer(functools.partial(_numba, "triad", n)), x, y, z)
    return b.launch(library.triad, x, y, out=z, s=3.0)


@benchmark(n=[100, 1024 * 4096], impl=IMPLS)
def scale(b: Builder, n: int, impl: str) -> Call:
    """Scale three arrays in place: an update pays no write-allocate, as a copy does.

    The factor is -1 at run time, so that no number of launches makes data collapse.
    """
    x, y, z = (b.inout(n, name=name) for name in ("x", "y", "z"))
    b.check(lambda *streams: [-one for one in streams], x, y, z, rtol=0.0, atol=0.0)
    if impl == "numpy":
        b.mode("kernel/warm")
        return b.launch(_numpy_scale, x, y, z)
    b.mode(*modes_of(n))
    if impl == "numba":
        return b.launch(Peer(functools.partial(_numba, "scale", n)), x, y, z, -1.0)
    return b.launch(library.scale, x, y, z, s=-1.0)


def _numpy_triad(x: Array, y: Array, out: Array) -> None:
    np.multiply(y, np.float32(3.0), out=out)
    np.add(x, out, out=out)


def _numpy_scale(*streams: Array) -> None:
    for one in streams:
        np.multiply(one, np.float32(-1.0), out=one)


@functools.cache
def _numba(name: str, n: int) -> Callable[..., Any]:
    import numba

    def copy(x: Array, y: Array) -> None:
        for i in numba.prange(x.size):
            y[i] = x[i]

    def triad(x: Array, y: Array, z: Array) -> None:
        s = np.float32(3.0)
        for i in numba.prange(x.size):
            z[i] = x[i] + s * y[i]

    def scale(x: Array, y: Array, z: Array, factor: float) -> None:
        s = np.float32(factor)
        for i in numba.prange(x.size):
            x[i] *= s
            y[i] *= s
            z[i] *= s

    chosen = {"copy": copy, "triad": triad, "scale": scale}[name]
    compiled: Callable[..., Any] = numba.njit(parallel=on_all_cores(n))(chosen)
    return compiled
