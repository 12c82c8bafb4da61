"""What the thread of the noisy network (jax#7024) says costs something, a row each.

``noisy_mlp_claims`` changes one thing of the program at a time; what a claim comes to is
the time of one row over that of another.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final

from steelyard import Builder, benchmark
from steelyard.declare.handles import Call, Handle
from steelyard_kernels import KernelFunction, dtypes, kernel, library, reference
from steelyard_kernels import array as xp
from steelyard_kernels.array import Array as Traced
from steelyard_kernels.library.noisy_mlp import ITERATIONS, iterated, noise_of

from .common import Array
from .loops import UNITS, WIDTH, parts, within

CLAIMS: Final[Mapping[str, str]] = {
    "program": "what the others are compared with",
    "no softplus": '"calling softplus costs 32 %": left out',
    "softplus within": "the same: prepared again in each iteration",
    "no sigmoid": '"sigmoid costs 10 %": left out',
    "dtype not passed": '"passing dtype costs 23 %": weights of float32 whatever x is',
    "count given": '"passing maximum_iterations non-statically costs 43 %"',
    "unroll 2": '"I set unroll to 2 to get the time down 20 %"',
    "unroll 4": "the same, further",
    "no noise": "random numbers, which he draws ahead",
}
"""What the thread says of its listing's parts; its 64 bits, which cost 50 %, are the
axis dtype."""

NARROW: Final = "dtype not passed"


@benchmark(claim=list(CLAIMS), dtype=["float32", "float64"])
def noisy_mlp_claims(b: Builder, claim: str, dtype: str) -> Call:
    """Change one thing of the program that is said to cost something."""
    return _changed(b, claim, dtype)


@benchmark(claim=list(CLAIMS), dtype=["float32", "float64"])
def gpu_noisy_mlp_claims(b: Builder, claim: str, dtype: str) -> Call:
    """Change the same on a GPU."""
    b.on("cuda")
    return _changed(b, claim, dtype)


def _changed(b: Builder, claim: str, dtype: str) -> Call:
    b.count(items=ITERATIONS)
    of_weights = "float32" if claim == NARROW else dtype
    x, w1, w2 = parts(b, dtype, (WIDTH,), UNITS, of_weights)
    key: Handle = b.input((), "int64", name="key")
    y = b.output(WIDTH, dtype)
    b.mode("kernel/warm")
    oracle = functools.partial(_evaluated, claim, (dtype, "int64", *[of_weights] * 2))
    b.check(oracle, x, key, w1, w2, **within(of_weights))
    return b.launch(claimed(claim), x, key, w1, w2, out=y)


def _evaluated(claim: str, names: tuple[str, ...], *arrays: Array) -> Array:
    """Return what the oracle makes of a claim's program over arrays of these dtypes."""
    specs = [(a.shape, dtypes.of(n)) for a, n in zip(arrays, names, strict=True)]
    program = claimed(claim).program(*specs)
    return reference.evaluate(program, arrays, {"iterations": ITERATIONS})["out"]


@functools.cache
def claimed(claim: str) -> KernelFunction:
    """Return the program with that one thing changed."""

    def program(x: Traced, key: Traced, w1: Traced, w2: Traced) -> Traced:
        if claim.startswith("unroll"):
            unroll = int(claim.split()[1])
            return iterated(x, key, w1, w2, ITERATIONS, unroll)

        def step(i: Traced, state: Any) -> Any:
            x, w1, w2 = state
            after = network_without(claim, x, w1, w2)
            if claim != "no noise":
                after = after + noise_of(x, key, i)
            return after, w1, w2

        def outside(i: Traced, x: Traced) -> Traced:
            after: Traced = step(i, (x, w1, w2))[0]
            return after

        last: Traced
        if claim == "softplus within":  # a carry that does not change is not moved out
            last, _, _ = xp.fori_loop(0, ITERATIONS, step, (x, w1, w2))
        else:
            last = xp.fori_loop(0, ITERATIONS, outside, x)
        return last

    if claim == "count given":
        return library.noisy_mlp_given
    return library.noisy_mlp if claim == "program" else kernel(program)


def network_without(claim: str, x: Traced, w1: Traced, w2: Traced) -> Traced:
    """Return the network's output without what a claim leaves out."""
    for w in (w1, w2):
        prepared = w if claim == "no softplus" else xp.softplus(w)
        x = x @ prepared.astype(x.dtype)
        x = x if claim == "no sigmoid" else xp.sigmoid(x)
    return x
