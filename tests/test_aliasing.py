"""Outputs that overwrite inputs: right on every schedule, or refused on every target."""

import numpy as np
import pytest

from steelyard_device import memory
from steelyard_kernels import array as xp
from steelyard_kernels.artifact import Artifact
from steelyard_kernels.function import kernel
from steelyard_kernels.vmap import vmap

SQUARE, WIDE, LONG = (8, 8), (3, 8), (8,)


def power_iteration(m, v):
    """Write rows where later rows read a column."""
    return {"v": xp.sum(m * v, -1)}


def mean_beside(m, v):
    """Do so where another output reads the column."""
    return {"v": xp.mean(m, -1), "o": m * v}


def crossed(m, v, w):
    """Write each of two parameters where the other's rows are read."""
    return {"v": xp.sum(m * w, -1), "w": xp.max(m + v, -1)}


def batched(t, m):
    """Write one value for each row of a batch: a plane of it."""
    return {"m": xp.sum(t * m, -1)}


def product_of_chains(x, w):
    """Overwrite a row of a matrix that all other chains multiply by."""
    return {"w": vmap(lambda r, w: r @ w, (0, None))(x, w)}


def scan_of_chains(x, w):
    """Do so in a loop over its rows."""

    def chain(r, w):
        return xp.scan(lambda c, q: (c + q * r, None), r, w)[0]

    return {"w": vmap(chain, (0, None))(x, w)}


def turned_around(xs):
    """Read rows that other iterations have written."""

    def step(x, i):
        return x, xs[7 - i] + x

    return {"xs": xp.scan(step, xs[0], xp.arange(8))[1]}


def read_afterwards(x, w):
    """Read what a loop has overwritten behind it, transposed."""
    _, rows = xp.scan(lambda c, r: (c + r, c + r), x[0], x)
    return {"w": rows, "o": w.T + 1}


def row_afterwards(x, w):
    """Read a row of what a loop has overwritten behind it."""
    _, rows = xp.scan(lambda c, r: (c + r, c + r), x[0], x)
    return {"w": rows, "o": w[2] + 1}


def read_by_the_next_loop(x, w):
    """Read what a loop has overwritten in another."""
    _, rows = xp.scan(lambda c, r: (c + r, c + r), x[0], x)
    return {"w": rows, "o": xp.scan(lambda c, r: (c + r, None), x[0], w)[0]}


REFUSED = [
    (power_iteration, SQUARE, LONG),
    (mean_beside, SQUARE, LONG),
    (crossed, SQUARE, LONG, LONG),
    (batched, (8, 8, 8), SQUARE),
    (product_of_chains, SQUARE, SQUARE),
    (scan_of_chains, SQUARE, SQUARE),
    (turned_around, SQUARE),
    (read_afterwards, SQUARE, SQUARE),
    (row_afterwards, SQUARE, SQUARE),
    (read_by_the_next_loop, SQUARE, SQUARE),
]


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a", "nvptx:sm_90a"])
@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case[0].__name__)
def test_what_others_still_read_is_not_overwritten(case, target):
    """One sentence, with the parameter and what to do; and no candidate is offered."""
    function, *shapes = case
    made = kernel(function)
    specs = [(shape, "float32") for shape in shapes]
    failed = made.build(*specs, target=target)
    assert not isinstance(failed, Artifact)
    assert "is overwritten" in failed.error
    assert "return it under another name" in failed.error
    with pytest.raises(type(failed.cause)):
        made.candidates(*specs, target=target)


def running_sum(xs):
    """Stack rows where they were read."""
    return {"xs": xp.scan(lambda c, r: (c + r, c + r), xp.zeros_like(xs[0]), xs)[1]}


def running_sum_back(xs):
    """Do so from the last row on, and read a part of each row twice."""

    def step(c, r):
        return c + r, c + r * r[1]

    return {"xs": xp.scan(step, xp.zeros_like(xs[0]), xs, reverse=True)[1]}


def before_and_after(xs):
    """Read the array before the loop, and its results behind it."""
    first = xs.T + 1
    init = xp.zeros_like(xs[0])
    rows = xp.scan(lambda c, r: (c + r, c + r), init, xs)[1]
    return {"xs": rows, "first": first, "last": rows.T}


def running_chains(xs):
    """Let each chain overwrite its own rows."""
    return {"xs": vmap(lambda x: running_sum(x)["xs"])(xs)}


def whole_rows(x, w):
    """Overwrite rows by themselves, normalised; one value a row too."""
    s = xp.sum(x * x, -1, keepdims=True)
    return {"x": x / s + w, "w": w + s}


def one_row(x, v):
    """Overwrite, by the only row, what it is multiplied by."""
    return {"v": xp.sum(x * v, -1, keepdims=True)}


def elements(x, y):
    """Let two parameters change places."""
    return {"x": y + 1, "y": x * y}


def step_of_a_chain(x, v):
    """Let a chain read its own part in full, then overwrite it."""

    def chain(x, v):
        return {"x": x @ x, "v": v @ x}

    return vmap(chain)(x, v)


def cumulated(x):
    """Return the sums of rows up to each."""
    return np.cumsum(x, 0)


def cumulated_back(x):
    """Return what `running_sum_back` is to give."""
    carry, out = np.zeros_like(x[0]), np.empty_like(x)
    for i in reversed(range(len(x))):
        out[i] = carry + x[i] * x[i, 1]
        carry = carry + x[i]
    return out


RIGHT = [
    (running_sum, lambda x: {"xs": cumulated(x)}, SQUARE),
    (running_sum_back, lambda x: {"xs": cumulated_back(x)}, WIDE),
    (
        before_and_after,
        lambda x: {"xs": cumulated(x), "first": x.T + 1, "last": cumulated(x).T},
        WIDE,
    ),
    (running_chains, lambda x: {"xs": np.cumsum(x, 1)}, (37, 5, 3)),
    (
        whole_rows,
        lambda x, w: {
            "x": x / (x * x).sum(-1, keepdims=True) + w,
            "w": w + (x * x).sum(-1, keepdims=True),
        },
        (5, 33),
        (5, 1),
    ),
    (one_row, lambda x, v: {"v": (x * v).sum(-1, keepdims=True)}, (1, 9), (1, 1)),
    (elements, lambda x, y: {"x": y + 1, "y": x * y}, (7, 33), (7, 33)),
    (
        step_of_a_chain,
        lambda x, v: {"x": x @ x, "v": (v[:, None] @ x)[:, 0]},
        (19, 3, 3),
        (19, 3),
    ),
]


@pytest.mark.parametrize("case", RIGHT, ids=lambda case: case[0].__name__)
def test_what_an_item_alone_reads_may_be_overwritten(case):
    """By every candidate, and the result is that of a copy."""
    function, oracle, *shapes = case
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(shape) for shape in shapes]
    made = kernel(function)
    every = made.candidates(*arrays)
    for schedule in every[:: len(every) // 12 + 1]:
        given = [memory.empty(array.shape, array.dtype) for array in arrays]
        for copy, array in zip(given, arrays, strict=True):
            copy[...] = array
        work = made.bind(*given, schedule=schedule)
        work.launch()
        for name, expected in oracle(*arrays).items():
            np.testing.assert_allclose(work.outputs[name], expected, rtol=1e-9)


def test_a_column_is_not_taken_for_one_value_a_row():
    """Of a square it has the right shape, and was written far behind its memory."""
    made = kernel(lambda x, v: {"a": v * 2, "o": xp.sum(x, -1)})
    failed = made.build((SQUARE, "float32"), (LONG, "float32"))
    assert "output a has shape (8,)" in failed.error
