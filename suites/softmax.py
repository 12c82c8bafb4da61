"""Softmax over the rows of 1024 x cols, in float32 whatever the data."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from steelyard import Builder, axis, benchmark
from steelyard.declare.handles import Call
from steelyard_kernels import library

from .common import Array, Peer, WithStores, available, copied

ROWS: Final = 1024


@benchmark(
    cols=[768, 4096],
    dtype=["float32", "float16"],
    impl=axis("numpy", *available("numba"), "ours", others=["copy", "copy_streaming"]),
)
def softmax(b: Builder, cols: int, dtype: str, impl: str) -> Call:
    """Exponentiate and normalise every row, or copy as many bytes."""
    if impl.startswith("copy"):
        made = WithStores(library.copy, streaming=impl == "copy_streaming")
        return copied(b, (ROWS, cols), dtype, made)
    x = b.input((ROWS, cols), dtype)
    y = b.output((ROWS, cols), dtype)
    b.check(reference, x)
    if impl == "numpy":
        b.mode("kernel/warm")  # tens of milliseconds, which no cache shortens
        return b.launch(_numpy, x, out=y)
    if impl == "numba":
        return b.launch(Peer(_numba), x, out=y)
    return b.launch(library.softmax, x, out=y)


def reference(x: Array) -> Array:
    """Return softmax in float64."""
    e: Array = np.exp(x - x.max(-1, keepdims=True))
    e /= e.sum(-1, keepdims=True)
    return e


def _numpy(x: Array, out: Array) -> None:
    t = x.astype(np.float32)
    t -= t.max(-1, keepdims=True)
    np.exp(t, out=t)
    np.divide(t, t.sum(-1, keepdims=True), out=out, casting="same_kind")


@functools.cache
def _numba() -> Callable[..., Any]:
    import numba

    def rows(x: Array, out: Array) -> None:
        for r in numba.prange(x.shape[0]):
            top = x[r].max()
            total = np.float32(0)
            for c in range(x.shape[1]):
                out[r, c] = np.exp(x[r, c] - top)
                total += out[r, c]
            for c in range(x.shape[1]):
                out[r, c] /= total

    compiled: Callable[..., Any] = numba.njit(
        parallel=True, fastmath={"reassoc", "contract"}
    )(rows)

    def normalise(x: Array, out: Array) -> None:
        if x.dtype == np.float32:
            compiled(x, out)
            return
        # Numba has no float16 on the CPU: NumPy widens and narrows for it.
        t = x.astype(np.float32)
        compiled(t, t)
        np.copyto(out, t, casting="same_kind")

    return normalise
