"""Where a GPU overtakes a CPU, by how many chains and how wide a network (jax#7024).

    steelyard run suites/loop_sizes.py -p units=1,12,64,256 -p chains=1,64,1024,4096 \
        --across chains --plot sizes.svg

The thread's program over many chains that know nothing of each other; with
``-p iterations=8000`` it is the thread's own length.
"""

from __future__ import annotations

import functools
from typing import Final

import numpy as np

from steelyard import Builder, axis, benchmark
from steelyard.declare.handles import Call
from steelyard_kernels import KernelFunction, kernel, random
from steelyard_kernels import array as xp
from steelyard_kernels.array import Array as Traced
from steelyard_kernels.library.noisy_mlp import ITERATIONS, iterated
from steelyard_kernels.vmap import vmap

from .common import Array
from .loops import WIDTH, evaluated, looped, parts, within

SIZES: Final = {
    "units": axis(12, others=[1, 64, 256]),
    "chains": axis(1, 1024, others=[64, 2048, 4096]),
    "iterations": axis(200, others=[ITERATIONS]),
    "dtype": axis("float32", others=["float64"]),
}
"""200 iterations are enough to tell, on a CPU too."""

SEEN: Final = 64
"""Iterations that a result is checked by, the last: what was before has faded by 1e-28."""


@benchmark(**SIZES)
def noisy_mlp_sizes(
    b: Builder, units: int, chains: int, iterations: int, dtype: str
) -> Call:
    """Iterate as many chains as are asked for, of as many units, on all cores."""
    return _sizes(b, units, chains, iterations, dtype)


@benchmark(**SIZES)
def gpu_noisy_mlp_sizes(
    b: Builder, units: int, chains: int, iterations: int, dtype: str
) -> Call:
    """Iterate the same chains on a GPU."""
    b.on("cuda")
    return _sizes(b, units, chains, iterations, dtype)


def _sizes(b: Builder, units: int, chains: int, iterations: int, dtype: str) -> Call:
    x, w1, w2 = parts(b, dtype, (chains, WIDTH), units)
    key = b.input(chains, "int64", name="key")
    b.mode("kernel/warm")
    b.count(items=chains * iterations)
    y = b.output((chains, WIDTH), dtype)
    oracle = functools.partial(faded, iterations, dtype)
    b.check(oracle, x, key, w1, w2, **within(dtype))
    return b.launch(many(iterations), x, key, w1, w2, out=y)


@functools.cache
def many(iterations: int) -> KernelFunction:
    """Return the kernel of many chains of so many iterations, sharing weights."""

    def chains(x: Traced, key: Traced, w1: Traced, w2: Traced) -> Traced:
        def one(x: Traced, key: Traced, w1: Traced, w2: Traced) -> Traced:
            return iterated(x, key, w1, w2, iterations)

        found: Traced = vmap(one, (0, 0, None, None))(x, key, w1, w2)
        return found

    return kernel(chains)


@functools.cache
def last_noise(iterations: int) -> KernelFunction:
    """Return the kernel of the noise of each chain's last iterations."""
    first = max(0, iterations - SEEN)

    def noise(x: Traced, key: Traced) -> Traced:
        def one(x: Traced, key: Traced) -> Traced:
            at = xp.arange(iterations - first) + first
            return random.normal(key, at, x.shape, x.dtype)

        found: Traced = vmap(one, (0, 0))(x, key)
        return found

    return kernel(noise)


def faded(iterations: int, dtype: str, x: Array, key: Array, *weights: Array) -> Array:
    """Return the chains' last x by their last iterations: begun anywhere, as here at x."""

    def noise(dtype: str, x: Array, key: Array) -> Array:
        return np.moveaxis(evaluated(last_noise(iterations), dtype, (x, key)), 0, 1)

    return looped(noise, dtype, x, key, *weights)
