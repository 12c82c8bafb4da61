"""A row of a computed array, beside NumPy's; and in what shapes values come."""

import numpy as np
import pytest

from steelyard_kernels import array as xp
from steelyard_kernels import reference
from steelyard_kernels.expression.expr import Chain, Row
from steelyard_kernels.function import kernel

A = np.random.default_rng(3).standard_normal((4, 3))
B = np.random.default_rng(4).standard_normal((3, 5))

# Each of NumPy and of ours, since the names are the same.
COMPUTED = {
    "elementwise": lambda np, a, b: a * 2.0 + 1.0,
    "broadcast below": lambda np, a, b: a + b[0][:1] if np is not xp else a + b[0][0],
    "one row for all": lambda np, a, b: np.broadcast_to(np.reshape(a[1], (1, 3)), (4, 3)) * a,
    "cast": lambda np, a, b: a.astype("float32").astype("float64"),
    "reduced": lambda np, a, b: np.sum(a * a, axis=-1),
    "reduced, kept": lambda np, a, b: a - np.max(a, axis=-1, keepdims=True),
    "product": lambda np, a, b: a @ b,
    "counted": lambda np, a, b: np.arange(4) * 3,
    "counted in columns": lambda np, a, b: np.reshape(np.arange(24) * 3, (4, 2, 3)),
    "one number, split": lambda np, a, b: np.reshape(
        np.broadcast_to(b[0][1], (12,)) + np.arange(12).astype("float64"), (4, 3)
    ).astype("float32"),
    "axes joined": lambda np, a, b: np.reshape(
        np.reshape(np.arange(4).astype("float64"), (2, 2, 1)) * b[0], (4, 5)
    ),
    "new axis": lambda np, a, b: np.expand_dims(a, 1) * 2.0,
    "matrices turned": lambda np, a, b: np.swapaxes(np.reshape(a, (4, 3, 1)), 1, 2)
    if np is not xp
    else np.transpose(np.reshape(a, (4, 3, 1))),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPUTED)
@pytest.mark.parametrize("index", [0, 3, -2])
def test_a_known_row_of_what_is_computed_is_numpys(name, index):
    """From either end."""
    compute = COMPUTED[name]
    made = kernel(lambda a, b: compute(xp, a, b)[index] * 1).program(A, B)
    seen = reference.evaluate(made, [A, B])["out"]
    np.testing.assert_allclose(seen, compute(np, A, B)[index])


@pytest.mark.parametrize("index", [0, 2])
def test_a_column_is_a_row_of_what_is_turned(index):
    """It lies in memory, with a step."""
    i = np.asarray(index)
    made = kernel(lambda a, i: a.T[i] * 1)
    seen = reference.evaluate(made.program(A, i), [A, i])["out"]
    np.testing.assert_array_equal(seen, A.T[index])
    np.testing.assert_array_equal(made(A, i), A.T[index])


def test_a_row_of_a_row_lies_in_memory():
    """One index after another, known or not."""
    made = kernel(lambda a, i: a[i][1][i]).program(
        ((2, 3, 2), "float64"), ((), "int64")
    )
    a = np.arange(12.0).reshape(2, 3, 2)
    assert reference.evaluate(made, [a, np.asarray(1)])["out"] == a[1][1][1]


@pytest.mark.parametrize("index", [0, 1, 3])
def test_a_row_of_what_was_repeated_is_the_one_there_is(index):
    """An operand of one row is the same in every row, at any index of launch."""

    def repeated(a, one, i):
        return (a * one)[i], xp.broadcast_to(one, (4, 3))[i]

    one, i = np.full((1, 3), 2.0), np.asarray(index)
    program = kernel(repeated).program(A, one, i)
    product, row = reference.evaluate(program, [A, one, i]).values()
    np.testing.assert_array_equal(product, A[index] * 2.0)
    np.testing.assert_array_equal(row, one[0])


def test_a_chain_is_memory_too():
    """A row of this chain's part of an input."""
    from steelyard_kernels.vmap import vmap

    made = kernel(vmap(lambda a, i: a[i])).program(((4, 3), "float64"), ((4,), "int64"))
    (row,) = [node for node in made.nodes if isinstance(node, Row)]
    assert isinstance(row.arg, Chain)
    i = np.array([2, 0, 5, -1])
    seen = reference.evaluate(made, [A, i])["out"]
    np.testing.assert_array_equal(seen, A[np.arange(4), np.minimum(i, 2)])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_places_in_slices_are_wider_than_the_index(dtype):
    """Its steps and its start may lie beyond what the index's dtype holds."""
    x = np.random.default_rng(5).standard_normal((600, 2))
    index = np.asarray(100, dtype)

    @kernel
    def parts(x, index):
        y = x * 2.0
        return y[::3][index], y[::-1][index], y[400:][index]

    y = x * 2.0
    for found, expected in zip(parts(x, index), (y[300], y[499], y[500]), strict=True):
        assert np.array_equal(found, expected)


def test_a_row_of_one_number_shown_many_times_is_that_number():
    """As a row of an outer product's row is."""
    made = kernel(lambda a: xp.einsum("a,b->ab", xp.diff(a[0]), a[1])[0][-2])
    assert np.isclose(made(A), (A[0, 1] - A[0, 0]) * A[1, -2])
