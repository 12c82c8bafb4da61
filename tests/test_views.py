"""Views, reductions over any axes and sums of products, against NumPy by the oracle."""

import operator
from itertools import product

import numpy as np
import pytest
from gradients import check, evaluated
from hypothesis import given
from hypothesis import strategies as st

from steelyard_kernels import array as xp
from steelyard_kernels.expression.indices import Index, axis, part
from steelyard_kernels.function import kernel
from steelyard_kernels.reference import evaluate

X = np.random.default_rng(0).standard_normal((2, 4, 5))

FUNCTIONS = {  # of our namespace or NumPy's, and an array of (2, 4, 5)
    "permute": (
        lambda m, x: m.permute_dims(x, (2, 0, 1)),
        lambda m, x: m.transpose(x, (2, 0, 1)),
    ),
    "transpose": (lambda m, x: m.transpose(x), lambda m, x: m.swapaxes(x, 1, 2)),
    "free extent": lambda m, x: m.reshape(x, (2, -1, 2)),
    "one axis": lambda m, x: m.reshape(x, -1),
    "an axis in and out": lambda m, x: m.squeeze(m.expand_dims(x, -1)),
    "moveaxis": lambda m, x: m.moveaxis(x, 0, -1),
    "moveaxis of two": lambda m, x: m.moveaxis(x, (0, -1), (1, 0)),
    "slices, a new axis and an int": lambda m, x: x[1:, ::-2, None, 3],
    "ellipsis": lambda m, x: x[..., 1:4],
    "negative int": lambda m, x: x[:, -1],
    "no element": lambda m, x: x[5:],
    "flip": lambda m, x: m.flip(x),
    "flip of two": lambda m, x: m.flip(x, axis=(0, -1)),
    "roll": lambda m, x: m.roll(x, 2, axis=1),
    "roll of two": lambda m, x: m.roll(x, (1, -2), axis=(0, 2)),
    "roll of all": lambda m, x: m.roll(x, -7),
    "concat": (
        lambda m, x: m.concat([x, x * 2, x[:, :2]], axis=1),
        lambda m, x: m.concatenate([x, x * 2, x[:, :2]], axis=1),
    ),
    "concat flat": (
        lambda m, x: m.concat([x, x[1]], axis=None),
        lambda m, x: m.concatenate([x, x[1]], axis=None),
    ),
    "stack": lambda m, x: m.stack([x, x + 1], axis=-1),
    "unstack": (lambda m, x: m.unstack(x, axis=1)[2], lambda m, x: x[:, 2]),
    "tile": lambda m, x: m.tile(x, (2, 2, 1, 3)),
    "tile few": lambda m, x: m.tile(x, (3,)),
    "repeat": lambda m, x: m.repeat(x, 3, axis=1),
    "repeat flat": lambda m, x: m.repeat(x, 2),
    "broadcast": lambda m, x: m.broadcast_arrays(x, x[0, :, :1])[1] * x,
    "pad": lambda m, x: m.pad(x, ((1, 2), (0, 0), (0, 3))),
    "pad with seven": (
        lambda m, x: m.pad(x, ((1, 2), (0, 0), (0, 3)), value=7.0),
        lambda m, x: m.pad(x, ((1, 2), (0, 0), (0, 3)), constant_values=7),
    ),
    "pad with less": (
        lambda m, x: m.pad(x, ((-1, 2), (0, 0), (1, -2)), value=7.0),
        lambda m, x: m.pad(x[1:, :, :-2], ((0, 2), (0, 0), (1, 0)), constant_values=7),
    ),
    "pad, then cut": lambda m, x: m.pad(x, ((1, 1), (0, 0), (3, 3)))[:2, ::3, 1:],
    "sum over two": lambda m, x: m.sum(x, axis=(0, 2)),
    "mean of all": lambda m, x: m.mean(x),
    "max, kept": lambda m, x: m.max(x, axis=1, keepdims=True),
    "var": (
        lambda m, x: m.var(x, axis=(0, 1), correction=1),
        lambda m, x: m.var(x, axis=(0, 1), ddof=1),
    ),
    "einsum": lambda m, x: m.einsum("abc,dbc->ad", x, x),
    "einsum of one": lambda m, x: m.einsum("cab", x),
    "diagonals": lambda m, x: m.einsum("...ii->...i", x[:, :, :4]),
    "traces": lambda m, x: m.einsum("abb", x[:, :, :4]),
    "matmul": lambda m, x: m.matmul(x, m.moveaxis(x, -1, 1)),
    "matrix by vector": lambda m, x: m.matmul(x, x[0, 0]),
    "vector by matrix": lambda m, x: m.matmul(x[0, 0], m.moveaxis(x, -1, 1)),
    "broadcast product": lambda m, x: m.matmul(x[0], m.moveaxis(x, -1, 1)),
    "vecdot": (lambda m, x: m.vecdot(x, x[1]), lambda m, x: (x * x[1]).sum(-1)),
    "outer": lambda m, x: m.outer(x[0, 0], x[1, :, 2]),
    "diagonal": (
        lambda m, x: m.diagonal(x, offset=1),
        lambda m, x: m.diagonal(x, 1, 1, 2),
    ),
    "diagonal below": (
        lambda m, x: m.diagonal(x, offset=-2),
        lambda m, x: m.diagonal(x, -2, 1, 2),
    ),
    "trace": (lambda m, x: m.trace(x), lambda m, x: m.trace(x, 0, 1, 2)),
    "differences": lambda m, x: m.diff(x, axis=1),
    "second differences": lambda m, x: m.diff(x, n=2),
    "tensordot": lambda m, x: m.tensordot(x, x, axes=((0, 1), (0, 1))),
    "tensordot of two": (
        lambda m, x: m.tensordot(x, m.permute_dims(x, (1, 2, 0))),
        lambda m, x: m.tensordot(x, m.transpose(x, (1, 2, 0))),
    ),
    "reshape of a view": (
        lambda m, x: m.reshape(m.permute_dims(x, (2, 0, 1)), (8, 5))[1:3, ::3],
        lambda m, x: m.reshape(m.transpose(x, (2, 0, 1)), (8, 5))[1:3, ::3],
    ),
}


def both(name):
    """Return a function over our arrays, and what NumPy makes of X."""
    row = FUNCTIONS[name]
    ours, theirs = row if isinstance(row, tuple) else (row, row)
    return (lambda x: ours(xp, x)), theirs(np, X)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_gives_what_numpy_gives(name):
    """Values and shapes, unrounded."""
    function, expected = both(name)
    (seen,) = evaluated(function, X)
    assert seen.shape == np.shape(expected)
    np.testing.assert_allclose(seen, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_passes_its_gradient_back(name):
    """An element that is read twice gets both cotangents, one that is not gets none."""
    function, expected = both(name)
    weights = np.asarray(np.cos(np.arange(expected.size)).reshape(np.shape(expected)))
    check(lambda x, w: xp.sum(function(x) * w), X, weights)


def test_halves_are_multiplied_and_added_in_float32():
    """2048 + 1 is not representable in half precision; the sum is rounded once."""
    a, b = np.ones((1, 4096), np.float16), np.ones((4096, 1), np.float16)
    program = kernel(xp.matmul).program(a, b)
    assert evaluate(program, (a, b))["out"] == 4096


@pytest.mark.parametrize(
    ("left", "right", "dtype"),
    [
        ((3, 4), (4, 5), "float32"),
        ((3, 4), (4, 5), "uint8"),
        ((3, 4), (4,), "float64"),
        ((4,), (4, 5), "float32"),
        ((4,), (4,), "int32"),
        ((2, 3, 4), (4, 5), "float32"),
        ((2, 3, 4), (4, 5), "int64"),
        ((2, 1, 3, 4), (6, 4, 5), "float32"),
        ((3, 0), (0, 5), "float32"),
    ],
)
def test_the_operator_of_products_is_matmul(left, right, dtype):
    """Batches, vectors and integers too, as NumPy's."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 99, shape).astype(dtype) for shape in (left, right))
    for write in (lambda a, b: a @ b, xp.matmul):
        np.testing.assert_array_equal(kernel(write)(a, b), a @ b, strict=True)


def test_matmul_of_matrices_is_computed_in_loops():
    """As rows of registers by rows of memory, of which the view would not fit."""
    x = np.random.default_rng(0).standard_normal((17, 33)) / 6
    w = np.random.default_rng(1).standard_normal((33, 33)) / 6
    made = kernel(lambda x, w: xp.fori_loop(0, 3, lambda _, c: xp.matmul(c, w), x))
    np.testing.assert_allclose(made(x, w), x @ w @ w @ w, rtol=0, atol=1e-12)


OPERATIONS = {
    "add": operator.add,
    "mul": operator.mul,
    "div": operator.floordiv,
    "rem": operator.mod,
}


def at(index, places):
    """Evaluate an index expression at integers."""
    return index.evaluate(places, int, OPERATIONS.__getitem__) or 0


@st.composite
def indices(draw, extents, depth=2):
    """Draw an index expression of axes."""
    index = Index(draw(st.integers(-8, 8)))
    for _ in range(draw(st.integers(0, 3))):
        if depth and draw(st.booleans()):
            inner = draw(indices(extents, depth - 1))
            term = part(inner, *draw(parts()), extents)
        else:
            term = axis(draw(st.integers(0, len(extents) - 1)))
        index += term * draw(st.sampled_from([-3, -1, 1, 2, 4, 6, 12]))
    return index


def parts():
    """Draw a divisor and a modulus."""
    return st.tuples(
        st.sampled_from([1, 2, 3, 4, 6]), st.sampled_from([0, 1, 2, 3, 12])
    )


@given(st.lists(st.integers(1, 6), min_size=1, max_size=3), st.data())
def test_index_expressions_are_what_python_computes(extents, data):
    """A part that is simplified, its bounds, and another expression put in its place."""
    index = data.draw(indices(extents))
    divisor, modulus = data.draw(parts())
    found = part(index, divisor, modulus, extents)
    low, high = found.bounds(extents)
    for places in product(*map(range, extents)):
        expected = at(index, places) // divisor
        expected = expected % modulus if modulus else expected
        assert at(found, places) == expected
        assert low <= expected <= high
    inner = [Index(each - 1) + axis(0) * -1 for each in extents]
    least = min(extents)
    for place in range(least):
        swapped = [each - 1 - place for each in extents]
        assert at(found.at(inner, (least,)), (place,)) == at(found, swapped)


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ((6, 4), (8, 3), "((3*i0 + i1) // 4), ((3*i0 + i1) % 4)"),
        ((2, 12), (6, 4), "(i0 // 3), i1 + 4*(i0 % 3)"),
        ((24,), (2, 3, 4), "12*i0 + 4*i1 + i2"),
        ((2, 3, 4), (24,), "(i0 // 12), (i0 // 4 % 3), (i0 % 4)"),
    ],
)
def test_an_axis_that_stays_whole_has_no_quotient(before, after, text):
    """Places of one shape's elements in another, whose quotients are few.

    Together they are the place that they were made of.
    """
    flat, step = Index(), 1
    for place in reversed(range(len(after))):
        flat, step = flat + axis(place) * step, step * after[place]
    found, step = [], 1
    for extent in reversed(before):
        found.append(part(flat, step, extent, after))
        step *= extent
    assert ", ".join(map(str, reversed(found))) == text
    total, step = Index(), 1
    for each, extent in zip(found, reversed(before), strict=True):
        total, step = total + each * step, step * extent
    assert total == flat


@pytest.mark.parametrize(
    ("function", "shapes", "answer"),
    [
        (
            lambda a: xp.sum(a[:, None, :] * a[:, :, None], axis=(1, 2)),
            [(3, 0)],
            np.zeros(3),
        ),
        (
            lambda a, b: xp.sum(a[:, :, None] * b[None, :, :], axis=1),
            [(3, 0), (0, 31)],
            np.zeros((3, 31)),
        ),
        (lambda a, b: xp.prod(xp.matmul(a, b)), [(0, 5), (5, 0)], np.ones(())),
        (
            lambda a: xp.pad(xp.reshape(a * 2, (0, 4)), ((1, 2), (0, 0))),
            [(3, 0)],
            np.zeros((3, 4)),
        ),
        (
            lambda a: xp.sum(xp.reshape(a * 2, (0, 4, 1)), axis=(0, 2)),
            [(3, 0)],
            np.zeros(4),
        ),
    ],
)
def test_what_reads_no_element_is_constant(function, shapes, answer):
    """Sums over an extent of 0 are 0, and products 1; around nothing lies padding."""
    found = kernel(function)(*[np.ones(shape) for shape in shapes])
    np.testing.assert_array_equal(found, answer, strict=True)


@pytest.mark.parametrize(("axis", "cut"), [(1, (40, 2)), (0, (3, 16)), (1, (3, 2))])
def test_slices_of_sums_are_of_whole_lines(axis, cut):
    """A loop over a slice is none over the line that it was cut of."""

    @kernel
    def less(x):
        return (x - xp.sum(x, axis=axis, keepdims=True))[: cut[0], : cut[1]]

    x = np.arange(640.0).reshape(40, 16)
    expected = (x - x.sum(axis, keepdims=True))[: cut[0], : cut[1]]
    np.testing.assert_array_equal(less(x), expected)


def test_axes_are_anyones_integers():
    """NumPy's too, as JAX names axes by."""
    x, one = np.arange(12.0).reshape(3, 4), np.int64(1)
    made = kernel(lambda x: (xp.sum(x, axis=one), xp.roll(x, (3, -2), (one - 1, one))))
    for found, expected in zip(
        made(x), (x.sum(1), np.roll(x, (3, -2), (0, 1))), strict=True
    ):
        assert np.array_equal(found, expected)
