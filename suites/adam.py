"""Adam's update as three fused broadcasts (GPUCompiler.jl#65), in place.

Its yardstick is ``scale``: the same three streams read and written, one multiplication
each. ``three`` is the same work as three kernels, one after another.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from steelyard import Builder, benchmark
from steelyard.declare.handles import Call
from steelyard_kernels import library

from .common import (
    Array,
    InTurn,
    Peer,
    available,
    inductor,
    modes_of,
    on_all_cores,
    scaled,
)

BETA1: Final = 0.9
BETA2: Final = 0.999
EPSILON: Final = 1e-8
RATE: Final = 1e-3
"""The defaults of `steelyard_kernels.library.adam`."""

THREE: Final = InTurn(
    (
        (library.adam_m, (1, 0)),
        (library.adam_v, (2, 0)),
        (library.adam_update, (0, 1, 2)),
    )
)


@benchmark(
    n=[100, 1024 * 4096],
    impl=["numpy", *available("numba", "inductor"), "three", "ours", "scale"],
)
def adam(b: Builder, n: int, impl: str) -> Call:
    """Update both moments and turn the gradient into the step."""
    gradient, m = b.inout(n, name="gradient"), b.inout(n, name="m")
    v = b.inout(n, name="v", dist="uniform", low=0.01)
    b.mode(*modes_of(n if impl != "numpy" else 0))
    if impl == "scale":
        return scaled(b, gradient, m, v)
    b.check(reference, gradient, m, v)
    if impl == "numpy":
        return b.launch(_numpy, gradient, m, v)
    if impl == "numba":
        peer = Peer(functools.partial(_numba, on_all_cores(n)))
        return b.launch(peer, gradient, m, v)
    if impl == "inductor":
        return b.launch(inductor(_tensors), gradient, m, v, as_="torch")
    return b.launch(THREE if impl == "three" else library.adam, gradient, m, v)


def reference(gradient: Array, m: Array, v: Array) -> tuple[Array, Array, Array]:
    """Return the step and both new moments, of the thread's formulas."""
    m = BETA1 * m + (1 - BETA1) * gradient
    v = BETA1 * v + (1 - BETA2) * gradient**2
    return m / (1 - BETA1) / (np.sqrt(v / (1 - BETA2)) + EPSILON) * RATE, m, v


def _numpy(gradient: Array, m: Array, v: Array) -> None:
    m *= BETA1
    m += (1 - BETA1) * gradient
    v *= BETA1
    v += (1 - BETA2) * np.square(gradient)
    np.divide(v, 1 - BETA2, out=gradient)
    np.sqrt(gradient, out=gradient)
    gradient += EPSILON
    np.divide(m, gradient, out=gradient)
    gradient *= RATE / (1 - BETA1)


def _tensors(gradient: Any, m: Any, v: Any) -> None:
    new_m = BETA1 * m + (1 - BETA1) * gradient
    new_v = BETA1 * v + (1 - BETA2) * gradient * gradient
    step = new_m / (1 - BETA1) / ((new_v / (1 - BETA2)).sqrt() + EPSILON) * RATE
    m.copy_(new_m)
    v.copy_(new_v)
    gradient.copy_(step)


@functools.cache
def _numba(parallel: bool) -> Callable[..., Any]:
    import numba

    # Rounded once each: 1 - beta2 in float32 would lose five digits.
    beta1, keep1 = np.float32(BETA1), np.float32(1 - BETA1)
    keep2, rate = np.float32(1 - BETA2), np.float32(RATE)
    epsilon = np.float32(EPSILON)

    def update(gradient: Array, m: Array, v: Array) -> None:
        for i in numba.prange(gradient.size):
            g = gradient[i]
            m[i] = beta1 * m[i] + keep1 * g
            v[i] = beta1 * v[i] + keep2 * g * g
            gradient[i] = m[i] / keep1 / (np.sqrt(v[i] / keep2) + epsilon) * rate

    compiled: Callable[..., Any] = numba.njit(parallel=parallel)(update)
    return compiled
