"""Two bias additions with a cast between them, then LayerNorm (Fuser#383's kernel).

1024 rows. The yardstick is a copy of x to y on all cores: ``copy`` through the caches,
``copy_streaming`` round them, which only pays where data comes from memory; the faster
of the two in a mode is what this memory gives.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from steelyard import Builder, benchmark
from steelyard.declare.handles import Call
from steelyard_kernels import library

from .common import Array, Peer, WithStores, available, copied, inductor, rounded

ROWS: Final = 1024
EPSILON: Final = 1e-5
TOLERANCE: Final = {
    "float32": 32 * 2.0**-23,
    "float16": 8 * 2.0**-10,
    "bfloat16": 8 * 2.0**-7,
}
"""In epsilons of the dtype. A mean and a variance of thousands of float32 values carry
more of them than one rounding does; in halves the last rounding hides that."""


@benchmark(
    hidden=[768, 1600, 4096, 5140],
    dtype=["float32", "float16"],
    impl=[
        "numpy",
        *available("numba", "inductor"),
        "ours",
        "copy",
        "copy_streaming",
    ],
)
def bias_layernorm(b: Builder, hidden: int, dtype: str, impl: str) -> Call:
    """Normalise the rows of x + bias1 + bias2; bytes are x, y and four vectors."""
    if impl in {"copy", "copy_streaming"}:
        streaming = impl == "copy_streaming"
        b.mode("kernel/cold", *([] if streaming else ["kernel/warm"]))
        return copied(b, (ROWS, hidden), dtype, WithStores(library.copy, streaming))
    x = b.input((ROWS, hidden), dtype)
    bias1 = b.input(hidden, dtype)
    bias2 = b.input(hidden, dtype)
    weight = b.input(hidden, dtype, dist="uniform", low=0.5, high=1.5)
    bias = b.input(hidden, dtype)
    y = b.output((ROWS, hidden), dtype)
    bound = TOLERANCE[dtype]
    b.check(
        functools.partial(reference, dtype),
        *(x, bias1, bias2, weight, bias),
        rtol=bound,
        atol=bound,
    )
    arguments = (x, bias1, bias2, weight, bias)
    if impl == "numpy":
        b.mode("kernel/warm")  # up to 0.1 s a launch, which no cache shortens
        return b.launch(_numpy, *arguments, out=y)
    if impl == "numba":
        return b.launch(Peer(_numba), *arguments, out=y)
    if impl == "inductor":
        return b.launch(inductor(_tensors), *arguments, out=y, as_="torch")
    return b.launch(library.bias_layernorm, *arguments, out=y, epsilon=EPSILON)


def reference(dtype: str, x: Array, *vectors: Array) -> Array:
    """Return the result in float64, the first sum rounded to x's dtype."""
    bias1, bias2, weight, bias = vectors
    t = rounded(x + bias1, dtype)
    t += bias2
    t -= t.mean(-1, keepdims=True)
    t *= 1.0 / np.sqrt(np.square(t).mean(-1, keepdims=True) + EPSILON)
    t *= weight
    t += bias
    return t


def _numpy(x: Array, *vectors: Array, out: Array) -> None:
    bias1, bias2, weight, bias = vectors
    t = x.astype(np.float32) + bias1
    if x.dtype != np.float32:
        t = t.astype(x.dtype).astype(np.float32)
    t += bias2
    t -= t.mean(-1, keepdims=True)
    t *= 1.0 / np.sqrt(np.square(t).mean(-1, keepdims=True) + np.float32(EPSILON))
    t *= weight
    np.add(t, bias, out=out, casting="same_kind")


def _tensors(x: Any, *vectors: Any, out: Any) -> None:
    bias1, bias2, weight, bias = vectors
    first = (x.float() + bias1.float()).to(x.dtype)
    t = first.float() + bias2.float()
    mean = t.mean(-1, keepdim=True)
    scale = (t.var(-1, keepdim=True, correction=0) + EPSILON).rsqrt()
    out.copy_((t - mean) * scale * weight.float() + bias.float())


@functools.cache
def _numba() -> Callable[..., Any]:
    import numba

    inverse = np.float32(1)
    epsilon = np.float32(EPSILON)

    def rows(t: Array, bias2: Array, weight: Array, bias: Array, out: Array) -> None:
        for r in numba.prange(t.shape[0]):
            total = np.float32(0)
            for c in range(t.shape[1]):
                t[r, c] += bias2[c]
                total += t[r, c]
            mean = total / np.float32(t.shape[1])
            total = np.float32(0)
            for c in range(t.shape[1]):
                total += (t[r, c] - mean) ** 2
            scale = inverse / np.sqrt(total / np.float32(t.shape[1]) + epsilon)
            for c in range(t.shape[1]):
                out[r, c] = (t[r, c] - mean) * scale * weight[c] + bias[c]

    compiled = numba.njit(parallel=True, fastmath={"reassoc", "contract"})(rows)

    def normalise(x: Array, *vectors: Array, out: Array) -> None:
        bias1, bias2, weight, bias = vectors
        # Numba has no float16 on the CPU: NumPy widens and narrows for it.
        t = x.astype(np.float32) + bias1
        if x.dtype == np.float32:
            compiled(t, bias2, weight, bias, out)
            return
        t = t.astype(x.dtype).astype(np.float32)
        wide = [one.astype(np.float32) for one in (bias2, weight, bias)]
        compiled(t, *wide, t)
        np.copyto(out, t, casting="same_kind")

    return normalise
