"""JAX's totals, orders, windows, and elements at computed places, against JAX."""

import numpy as np
import pytest
from test_from_jax import agrees, close

from steelyard_kernels import Unsupported
from steelyard_kernels.array import lines
from steelyard_kernels.from_jax import from_jax

jax = pytest.importorskip("jax", reason="needs jax: pip install 'steelyard[jax]'")
jnp, lax = jax.numpy, jax.lax

RNG = np.random.default_rng(5)
X = RNG.normal(size=(5, 7)).astype("float32")
N = RNG.integers(-5, 5, (5, 7)).astype("int32")
V = RNG.normal(size=11).astype("float32")
ODD = np.array([0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 1.0, -1.0], "float32")
INDEX = np.array([3, 0, 4, -1, 9, -7, 2], "int32")  # inside and outside
J = RNG.integers(0, 7, (5, 3)).astype("int32")


def pairs(x):
    """Return two arrays that have each pair of elements."""
    return jnp.broadcast_to(x[:, None], (x.size, x.size)), jnp.tile(x, (x.size, 1))


FUNCTIONS = {
    "totals": (lambda x: jnp.cumsum(x, 1), X),
    "totals from the end": (lambda x: lax.cumsum(x, axis=0, reverse=True), X),
    "totals of integers": (lambda x: jnp.cumsum(x, 1), N),
    "products": (lambda x: jnp.cumprod(x, 0), X),
    "extremes so far": (
        lambda x: (lax.cummax(x, axis=1), lax.cummin(x, axis=0, reverse=True)),
        X,
    ),
    "extremes of integers so far": (lambda x: lax.cummax(x, axis=1), N),
    "sums of powers so far": (lambda x: lax.cumlogsumexp(50 * x, axis=1), X),
    "gradients of totals": (jax.grad(lambda x: (jnp.cumsum(x) ** 2).sum()), V),
    "gradients of products": (jax.grad(lambda x: jnp.cumprod(x).sum()), V),
    "orders": (lambda x: (jnp.sort(x, axis=0), jnp.argsort(x, axis=1)), N),
    "orders of booleans": (lambda x: jnp.sort(x > 0, axis=1), X),
    "orders by two keys": (
        lambda x: lax.sort((x % 3, x, -x), num_keys=2, dimension=1),
        N,
    ),
    "gradients of orders": (
        jax.grad(lambda x: (jnp.sort(x) * jnp.arange(11.0)).sum()),
        V,
    ),
    "the largest": (lambda x: lax.top_k(x, 3), X),
    "places of extremes": (lambda x: (jnp.argmax(x, axis=0), jnp.argmin(x)), X),
    "the first true": (lambda x: jnp.argmax(x > 0, axis=1), X),
    "the first NaN": (lambda x: (jnp.argmax(x), jnp.argmin(x)), ODD),
    "quantiles": (lambda x: (jnp.median(x), jnp.quantile(x, 0.3)), V),
    "bisection": (lambda x: jnp.searchsorted(jnp.sort(x), x), V),
    "interpolation": (lambda x: jnp.interp(x, jnp.sort(x), x), V),
    "less in the total order": (lambda x: lax.lt_to_p.bind(*pairs(x)), ODD),
    "no more in the total order": (lambda x: lax.le_to_p.bind(*pairs(x)), ODD),
    "rows": (lambda x, i: jnp.take(x, i, axis=0), X, INDEX),
    "rows of integers": (lambda x, i: x.at[i].get(mode="fill"), N, INDEX),
    "rows held inside": (lambda x, i: jnp.take(x, i, axis=0, mode="clip"), X, INDEX),
    "rows that wrap": (lambda x, i: jnp.take(x, i, axis=0, mode="wrap"), X, INDEX),
    "columns": (lambda x, i: x[:, i], X, INDEX),
    "pairs": (lambda x, i: x[i % 5, i % 7], X, INDEX),
    "elements along an axis": (lambda x, j: jnp.take_along_axis(x, j, axis=1), X, J),
    "slices": (
        lambda x, i: jax.vmap(lambda k: lax.dynamic_slice(x, (k, k), (2, 3)))(i),
        X,
        INDEX,
    ),
    "gradients of rows": (jax.grad(lambda x, i: (x[i] ** 2).sum()), X, INDEX % 5),
    "sums by number": (lambda x, i: jax.ops.segment_sum(x, i % 3, 3), V[:7], INDEX),
    "counts": (lambda i: jnp.bincount(i % 4, length=4), INDEX),
    "largest by number": (lambda x, i: x.at[i % 5].max(2.0 * x[0]), X, INDEX[:4]),
    "least by number": (lambda x, i: x.at[:, i % 7].min(0.5), X, INDEX),
    "products by number": (lambda x, i: x.at[i % 5].mul(3), N, INDEX),
    "new elements": (lambda x, i: x.at[i].set(7.0), X, INDEX[:4]),
    "new elements held inside": (
        lambda x, i: x.at[i].set(7.0, mode="clip"),
        X,
        INDEX[:4],
    ),
    "numbers between": (
        lambda x: lax.pad(x, jnp.float32(2), [(1, 2, 1), (0, -2, 3)]),
        X,
    ),
    "less around": (
        lambda x: lax.pad(x, jnp.float32(2), [(-1, 2, 0), (-3, -2, 0)]),
        X,
    ),
    "largest of windows": (
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 3), (1, 2), "SAME"),
        X,
    ),
    "least of windows apart": (
        lambda x: lax.reduce_window(
            x, jnp.inf, lax.min, (2, 2), (1, 1), "VALID", window_dilation=(2, 3)
        ),
        X,
    ),
    "sums of windows": (
        lambda x: lax.reduce_window(x, 0, lax.add, (2, 2), (2, 2), "VALID"),
        N,
    ),
    "sums of large windows": (
        lambda x: lax.reduce_window(x, 0.0, lax.add, (5, 13), (1, 1), "SAME"),
        X,
    ),
    **{
        f"{exponent} and {mantissa} bits": (
            lambda x, e=exponent, m=mantissa: lax.reduce_precision(x, e, m),
            np.concatenate([ODD, *(V * 10.0**k for k in range(-12, 13))], dtype="f"),
        )
        for exponent, mantissa in ((5, 10), (8, 7), (8, 23), (4, 3), (5, 2), (8, 10))
    },
    "gradients of the largest": (
        jax.grad(
            lambda x: (
                lax.reduce_window(x, -jnp.inf, lax.max, (3, 2), (2, 1), "SAME") ** 2
            ).sum()
        ),
        X,
    ),
    "gradients of the smallest": (
        jax.grad(
            lambda x: lax.reduce_window(
                x, jnp.inf, lax.min, (2, 3), (2, 4), "VALID"
            ).sum()
        ),
        X,
    ),
    "shifts of naturals": (
        lambda x: lax.shift_right_arithmetic(x, jnp.flip(x)),
        np.arange(0, 256, 3, "uint8"),
    ),
    "differences": (lambda x, i: x.at[i].subtract(x[i % 5] * 2), X, INDEX),
    "differences of rows": (lambda x: x.at[1].subtract(x[0]), X),
    "products of integers": (lambda x: (x @ x.T, jnp.dot(x[0], x[1])), N),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_agrees_with_jax(name):
    """Integers exactly."""
    function, *args = FUNCTIONS[name]
    agrees(function, *args, tolerance=4e-6)


ADDED = {
    "rows": lambda x, i: x.at[i].add(2.0 * x[i % 5], mode="drop"),
    "columns": lambda x, i: x.at[:, i].add(x[:, i % 7]),
    "pairs": lambda x, i: x.at[i % 5, i % 7].add(3.0),
    "slices": lambda x, i: x.at[i, 1:4].add(1.5, mode="clip"),
    "gradients of rows": jax.grad(lambda x, i: (x[i] ** 2).sum()),
}


@pytest.mark.parametrize("name", ADDED)
def test_many_updates_are_added_up_by_segments(name, monkeypatch):
    """Of whole rows, and of elements."""
    monkeypatch.setattr(lines, "COMPARED", 0)
    agrees(ADDED[name], X, INDEX, tolerance=4e-6)


@pytest.mark.parametrize("shape", [(0, 3), (1, 3), (4, 0)])
def test_arrays_without_elements_are_searched_and_added_up(shape):
    """Those from which nothing is taken, and into which nothing is written."""
    x, i = np.zeros(shape, "float32"), np.zeros((0,), "int32")
    agrees(lambda x, i: (jnp.cumsum(x, 0), x.at[i].add(1.0)), x, i)
    if shape[0]:
        agrees(lambda x, i: x[i], x, i)


def test_the_last_of_equal_places_is_kept():
    """JAX leaves open which one it is; here it is the same in every run."""
    i, v = np.array([1, 0, 1, 1], "int32"), np.arange(4, dtype="float32")
    found = from_jax(lambda x: x.at[i].set(v))(np.zeros(3, "float32"))
    close(found, np.array([1, 3, 0], "float32"))


def test_dilated_arrays_and_functions_of_elements_are_refused():
    """With the line."""
    apart = from_jax(
        lambda x: lax.reduce_window(
            x, 0.0, lax.add, (2, 2), (1, 1), "SAME", base_dilation=(2, 1)
        )
    )
    with pytest.raises(Unsupported, match=r"reduce_window_sum.* of a dilated array"):
        apart(X)
    with pytest.raises(Unsupported, match="of a function of what is there"):
        from_jax(lambda x: x.at[0].apply(jnp.sin))(X)
