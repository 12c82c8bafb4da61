"""Gradients by reverse mode and by finite differences, both evaluated by the oracle."""

from __future__ import annotations

from functools import wraps

import numpy as np
from hypothesis import strategies as st

from steelyard_kernels import array as xp
from steelyard_kernels import reference
from steelyard_kernels.function import kernel
from steelyard_kernels.grad import value_and_grad

STEP = 1e-5  # of differences: they err by its square and by 1e-16 over it


def normal(*shape, seed=1):
    """Return normal float64 numbers."""
    return np.random.default_rng(seed).standard_normal(shape)


def evaluated(function, *arrays):
    """Return what a function over arrays gives, in order, by the oracle."""
    found = reference.evaluate(kernel(function).program(*arrays), arrays)
    return list(found.values())


def gradients(function, *arrays, **options):
    """Return a function's value and its gradients by all of its arrays."""

    @wraps(function)
    def both(*args):
        places = tuple(range(len(args)))
        value, found = value_and_grad(function, places, **options)(*args)
        return value, *found

    value, *found = evaluated(both, *arrays)
    return value, found


def slope(function, arrays, directions):
    """Return by how much a function's value grows along directions."""
    program = kernel(function).program(*arrays)

    def at(step):
        moved = [a + step * d for a, d in zip(arrays, directions, strict=True)]
        return reference.evaluate(program, moved)["out"].sum()

    return (at(STEP) - at(-STEP)) / (2 * STEP)


def check(function, *arrays, seed=0, **options):
    """Hold gradients against differences along a direction of every array at once."""
    rng = np.random.default_rng(seed)
    value, found = gradients(function, *arrays, **options)
    assert np.isfinite(value).all()
    directions = [rng.standard_normal(a.shape) for a in arrays]
    assert [g.shape for g in found] == [a.shape for a in arrays]
    pairs = zip(found, directions, strict=True)
    seen = sum(float((g * d).sum()) for g, d in pairs)
    scale = 1 + sum(np.abs(g).sum() for g in found)
    np.testing.assert_allclose(
        seen, slope(function, arrays, directions), rtol=0, atol=1e-7 * scale
    )


SMOOTH = ("tanh", "sigmoid", "softplus", "negative", "sinpi", "expm1")
JOINS = ("add", "subtract", "multiply", "maximum", "minimum")


def lines():
    """Draw the lines of a program: what each computes, of which two before it."""
    place = st.integers(0, 99)
    line = st.tuples(st.integers(0, 5), place, place, place)
    return st.lists(line, min_size=1, max_size=8)


def computed(drawn, values, w):
    """Return what the last of the lines gives; all broadcasts with w, (3, 3)."""
    values = list(values)
    for kind, which, i, j in drawn:
        a, b = values[i % len(values)], values[j % len(values)]
        values.append(_line(kind, which, a, b, xp.tanh(w)))
    return values[-1]


def _line(kind, which, a, b, w):
    if kind == 0:
        return getattr(xp, SMOOTH[which % len(SMOOTH)])(xp.tanh(a))
    if kind == 1:
        return getattr(xp, JOINS[which % len(JOINS)])(a, b)
    if kind == 2:
        return a @ w if a.shape[-1] == 3 else a * w
    if kind == 3:
        return a - xp.mean(b, axis=-1, keepdims=True)
    if kind == 4:
        return xp.reshape(a + w, -1)[which % 9] * b
    return xp.var(a, axis=-1, keepdims=True) + w.T[which % 3]
