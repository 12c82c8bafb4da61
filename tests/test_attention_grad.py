"""Gradients of attention against their formulas in float64."""

import numpy as np
import pytest
from attention_programs import softmax

from steelyard_kernels import array as xp
from steelyard_kernels.function import kernel
from steelyard_kernels.grad import vjp

SCALE = 0.125


def pulled(fill):
    """Return a kernel of the cotangents of queries, keys and values."""

    def attend(q, k, v):
        s = xp.matmul(q, k.mT) * SCALE
        if fill is not None:
            s = xp.where(
                xp.arange(s.shape[-2])[:, None] >= xp.arange(s.shape[-1]), s, fill
            )
        return xp.matmul(softmax(s), v)

    @kernel
    def back(q, k, v, g):
        return vjp(attend, q, k, v)[1](g)

    return back


def expected(q, k, v, g, fill):
    """Return those cotangents in float64."""
    q, k, v, g = (x.astype("float64") for x in (q, k, v, g))
    s = q @ k.swapaxes(-1, -2) * SCALE
    seen = np.tri(*s.shape[-2:], dtype=bool) | (fill is None)
    s = np.where(seen, s, fill or 0.0)
    e = np.exp(s - s.max(-1, keepdims=True))
    w = e / e.sum(-1, keepdims=True)
    d = g @ v.swapaxes(-1, -2)
    d = np.where(seen, w * (d - (w * d).sum(-1, keepdims=True)), 0) * SCALE
    return d @ k, d.swapaxes(-1, -2) @ q, w.swapaxes(-1, -2) @ g


@pytest.mark.parametrize(
    ("shape", "fill"),
    [
        ((2, 3, 64, 64, 64, 64), None),
        ((1, 2, 40, 75, 24, 40), -np.inf),
        ((1, 2, 40, 75, 24, 40), -1e30),
        ((1, 1, 130, 130, 64, 64), None),
    ],
)
def test_gradients_are_five_products_and_agree_with_float64(shape, fill):
    """None of their sums of products is walked as rows are, or computed again."""
    rng = np.random.default_rng(sum(shape))
    batch, heads, m, n, depth, columns = shape
    q, k, v, g = (
        rng.standard_normal((batch, heads, *each)).astype("float32")
        for each in ((m, depth), (n, depth), (n, columns), (m, columns))
    )
    made = pulled(fill)
    plan = made.build(q, k, v, g).plan
    assert [each.reason.split()[0] for each in plan.launches].count("product") == 5
    assert len(plan.launches) == 6
    for found, exact in zip(made(q, k, v, g), expected(q, k, v, g, fill), strict=True):
        np.testing.assert_allclose(found, exact, rtol=0, atol=4e-6)
