"""Gradients are JAX's, in float64, where JAX is installed."""

import numpy as np
import pytest
from gradients import gradients

from steelyard_kernels import array as xp
from steelyard_kernels.grad import grad

jax = pytest.importorskip("jax")


class _Numpy:
    """The names of our array namespace over JAX's."""

    sigmoid = staticmethod(jax.nn.sigmoid)
    softplus = staticmethod(jax.nn.softplus)
    scan = staticmethod(jax.lax.scan)
    grad = staticmethod(jax.grad)

    def __getattr__(self, name):
        return getattr(jax.numpy, name)


class _Ours:
    """Our array namespace, with grad."""

    grad = staticmethod(grad)

    def __getattr__(self, name):
        return getattr(xp, name)


OURS, JAX = _Ours(), _Numpy()


def normal(*shape, seed=1):
    """Return normal float64 numbers."""
    return np.random.default_rng(seed).standard_normal(shape)


def perceptron(np_):
    """Return the noisy perceptron, its noise given."""

    def value(x, w1, w2, noise):
        def step(x, n):
            hidden = np_.sigmoid(x @ np_.softplus(w1))
            return np_.sigmoid(hidden @ np_.softplus(w2)) + n, None

        return np_.sum(np_.scan(step, x, noise)[0])

    return value


def nested(np_):
    """Return a scan within a scan; both stack, one goes in reverse."""

    def value(xs, w):
        def outer(c, rows):
            def inner(d, x):
                d = np_.tanh(d * w + x)
                return d, d * c

            return np_.scan(inner, c, rows, reverse=True)

        c, every = np_.scan(outer, np_.zeros_like(w), xs)
        return np_.sum(c) + np_.sum(np_.reshape(every, (-1,)))

    return value


def attention(np_):
    """Return a softmax, extrema and their ties, products."""

    def value(q, k):
        scores = q @ k.T
        e = np_.exp(scores - np_.max(scores, axis=-1, keepdims=True))
        shares = e / np_.sum(e, axis=-1, keepdims=True)
        most = np_.maximum(np_.abs(shares @ k), np_.reshape(k[0] * k[0], (1, -1)))
        ties = np_.min(np_.minimum(q, 0.0), axis=-1)
        return np_.sum(np_.var(most, axis=-1)) + np_.sum(ties)

    return value


def third(np_):
    """Return the gradient of a gradient of a scan; another is asked of it."""

    def last(xs, w):
        def step(c, x):
            return np_.sigmoid(c * w + x), None

        return np_.sum(np_.scan(step, w, xs)[0])

    def first(xs, w):
        return np_.sum(np_.grad(last, 1)(xs, w) * w)

    def value(xs, w):
        return np_.sum(np_.grad(first, 1)(xs, w) * w)

    return value


@pytest.mark.parametrize("options", [{}, {"memory": 0}])
@pytest.mark.parametrize(
    ("program", "shapes"),
    [
        (perceptron, [(1,), (1, 12), (12, 1), (100, 1)]),
        (nested, [(6, 4, 3), (3,)]),
        (attention, [(4, 3), (5, 3)]),
        (third, [(6, 3), (3,)]),
    ],
)
def test_gradients_are_those_of_jax(program, shapes, options):
    """Of every array, the value too."""
    arrays = [normal(*shape, seed=place) for place, shape in enumerate(shapes)]
    value, found = gradients(program(OURS), *arrays, **options)
    with jax.enable_x64(True):
        places = tuple(range(len(arrays)))
        expected = jax.value_and_grad(program(JAX), places)(*arrays)
    np.testing.assert_allclose(value, expected[0], rtol=1e-13)
    for ours, theirs in zip(found, expected[1], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-14)
