"""A small network fed with its own output and noise, thousands of times (jax#7024).

    x[i + 1] = sigmoid(sigmoid(x[i] @ softplus(w1)) @ softplus(w2)) + normal(i)

The thread's program as one kernel, with its number of iterations known or given, its
noise drawn in the loop or ahead of it, its gradient, one iteration as a kernel of its
own, and the fixed point that its author is after:

    x[i + 1] = x[i] + rate * f_bwd(z - f(x[i]))

Shapes: x (width,), w1 (width, units), w2 (units, width), all of one floating dtype;
key () int64. The thread's are width 1 and units 12, and zeros throughout.
"""

from typing import Final

from steelyard_kernels import array as xp
from steelyard_kernels.array import Array
from steelyard_kernels.function import kernel

ITERATIONS: Final = 8000  # the thread's


def layer(x: Array, w: Array) -> Array:
    """Return one layer of the network."""
    return xp.sigmoid(x @ xp.softplus(w))


def force(x: Array, w1: Array, w2: Array) -> Array:
    """Return the network's output, of x's shape."""
    return layer(layer(x, w1), w2)


def noise_of(x: Array, key: Array, index: Array | int) -> Array:
    """Return the noise of one iteration, or of each in an array of them."""
    from steelyard_kernels import random  # not before it is needed

    return random.normal(key, index, x.shape, x.dtype)


def iterated(  # noqa: PLR0917 - most of them arrays
    x: Array, key: Array, w1: Array, w2: Array, count: Array | int, unroll: int = 0
) -> Array:
    """Return x after `count` iterations, noise drawn within the loop."""

    def step(i: Array, x: Array) -> Array:
        return force(x, w1, w2) + noise_of(x, key, i)

    last: Array = xp.fori_loop(0, count, step, x, unroll=unroll)
    return last


@kernel
def noisy_mlp(x: Array, key: Array, w1: Array, w2: Array) -> Array:
    """Return x after 8000 iterations."""
    return iterated(x, key, w1, w2, ITERATIONS)


@kernel
def noisy_mlp_given(
    x: Array, key: Array, w1: Array, w2: Array, *, iterations: int = ITERATIONS
) -> Array:
    """Return x after as many iterations as are given at launch."""
    return iterated(x, key, w1, w2, iterations)


@kernel
def noisy_mlp_noise(x: Array, key: Array) -> Array:
    """Return the noise of 8000 iterations, (8000, width); x says width and dtype."""
    return noise_of(x, key, xp.arange(ITERATIONS))


@kernel
def noisy_mlp_ahead(x: Array, noise: Array, w1: Array, w2: Array) -> Array:
    """Return x after an iteration for each row of noise, drawn ahead."""
    last: Array
    last, _ = xp.scan(lambda x, n: (force(x, w1, w2) + n, None), x, noise)
    return last


@kernel
def noisy_mlp_step(
    x: Array, index: Array, key: Array, w1: Array, w2: Array
) -> dict[str, Array]:
    """Replace x by what iteration `index` makes of it, and count: one of many launches.

    index is () int64, in memory: every launch is the same.
    """
    return {"x": force(x, w1, w2) + noise_of(x, key, index), "index": index + 1}


@kernel
def noisy_mlp_backward(x: Array, key: Array, w1: Array, w2: Array) -> dict[str, Array]:
    """Return the sum of x after 8000 iterations, and its gradients by both weights."""
    from steelyard_kernels.grad import value_and_grad  # not before it is needed

    def total(x: Array, key: Array, w1: Array, w2: Array) -> Array:
        return xp.sum(iterated(x, key, w1, w2, ITERATIONS))

    value, (by_w1, by_w2) = value_and_grad(total, (2, 3))(x, key, w1, w2)
    return {"value": value, "by_w1": by_w1, "by_w2": by_w2}


@kernel
def noisy_mlp_fixed_point(
    x: Array, key: Array, z: Array, w1: Array, w2: Array, *, rate: float = 0.1
) -> Array:
    """Return x after 8000 steps towards f(x) = z: along the backward pass of f.

    f is the network with noise of its own in each step.
    """
    from steelyard_kernels.grad import vjp  # not before it is needed

    def step(i: Array, x: Array) -> Array:
        noise = noise_of(x, key, i)
        value, backward = vjp(lambda x: force(x, w1, w2) + noise, x)
        (along,) = backward(z - value)
        last: Array = x + rate * along
        return last

    last: Array = xp.fori_loop(0, ITERATIONS, step, x)
    return last
