"""Kernels that call kernels: each is the program that it is by itself, within another."""

import inspect
import pickle

import corpus_lines as lines
import corpus_loops as loops
import corpus_rows as rows
import corpus_views as views
import numpy as np
import pytest
from random_draws import generated

from steelyard_kernels import array as xp
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.printing import text
from steelyard_kernels.extents import Extent, runtime
from steelyard_kernels.function import kernel
from steelyard_kernels.grad import grad, value_and_grad
from steelyard_kernels.vmap import vmap

ROWS = [
    *(*rows.ELEMENTS, *rows.ROWS, *loops.SMALL, *loops.LOOPS, *loops.CHAINS),
    *(*loops.GRADIENTS, *loops.UPDATES, *views.VIEWS, *views.AXES, *views.PRODUCTS),
    *(*views.TAKEN, *lines.LINES),
]
X = np.arange(6.0)


@kernel
def scaled(x, *, s=2.0):
    """Return x * s."""
    return x * s


@kernel
def moved(x, by):
    """Update x, return how far it is from 0."""
    return {"x": x + by, "size": xp.sum(xp.abs(x))}


@kernel
def twice(x, by):
    """Call one kernel on what another gives, and update x by it."""
    return {"x": moved(moved(x, by)["x"], by)["x"], "last": scaled(x, s=3.0)}


@kernel
def squares(w, x, *, s: float):
    """Return one number."""
    return xp.sum(xp.square(w * x)) * s


@kernel
def shorter(x):
    """Update x with less."""
    return {"x": x[:2]}


N = Extent("n", 6)
some = runtime(squares, w=(N,), x=(N,))


def within(inner):
    """Return a kernel of a kernel's name and parameters that only calls it."""

    def outer(*arrays, **scalars):
        return inner(*arrays, **scalars)

    outer.__name__, outer.__signature__ = inner.name, inspect.signature(inner)
    return kernel(outer)


def same(inner, arrays):
    """Say whether a kernel within another is the program that it is by itself."""
    try:
        program = inner.program(*arrays)
    except KernelError as error:
        with pytest.raises(KernelError) as found:
            within(inner).program(*arrays)
        return str(found.value) == str(error)
    return text(within(inner).program(*arrays)) == text(program)


def test_every_program_of_the_corpus_is_the_same_within_a_kernel():
    """That has arrays; with its scalars, loops, chains and updates; what is refused too."""
    every = [case for row in ROWS for case in row.cases if case.arrays()]
    assert len(every) > 300
    assert [c.name for c in every if not same(c.made, c.arrays())] == []


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_are_the_same_within_a_kernel(seed):
    """Of the seeds that the corpus draws."""
    program = generated(seed)
    assert same(kernel(program.function()), program.arrays())


def test_what_is_updated_within_a_kernel_is_a_new_value():
    """Its caller updates its own parameter by returning it."""
    x = X.copy()
    done = twice(x, np.ones(6))
    assert done["x"] is x
    np.testing.assert_array_equal(x, X + 2)
    np.testing.assert_array_equal(done["last"], X * 3)
    kept = kernel(lambda x: (moved(x, x)["x"], x))
    np.testing.assert_array_equal(kept(X), (X * 2, X))


def test_kernels_of_kernels_are_pickled_by_name():
    """As others are."""
    again = pickle.loads(pickle.dumps(twice))
    assert again is twice


@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        (lambda w, q: 3, 3.0),
        (lambda w, q: np.float32(0.5), 0.5),
        (lambda w, q: np.asarray(4), 4.0),
        (lambda w, q: q, 7.0),
        (lambda w, q: q * 2 + 1, 15.0),
        (lambda w, q: xp.max(w), 5.0),
        (lambda w, q: xp.count_nonzero(w), 5.0),
        (lambda w, q: xp.max(w).astype("float16"), 5.0),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scalars_are_numbers_or_values_without_axes(scalar, value, dtype):
    """They take the dtype of what they meet, as at a launch."""

    def called(w, *, q: int = 7):
        return scaled(w, s=scalar(w, q))

    w = X.astype(dtype)
    seen, want = kernel(called)(w), scaled(w, s=value)
    assert seen.dtype == want.dtype == dtype
    np.testing.assert_array_equal(seen, want)


def test_numbers_and_arrays_of_numpy_are_constants():
    """Of NumPy's dtypes; called on these alone it runs at once."""
    made = kernel(
        lambda w: squares(w, np.ones(6, "float32"), s=scaled(np.float64(3), s=1))
    )
    assert made(X) == np.sum(X**2) * 3
    assert (
        kernel(lambda w: scaled(np.float64(1.5)) * w)(np.float32([1])).dtype
        == "float64"
    )
    assert kernel(lambda w: np.float32([2]) ** w - np.float16(1))(X).tolist() == [
        *(0.0, 1.0, 3.0, 7.0, 15.0, 31.0)
    ]


def test_functions_of_functions_take_kernels():
    """Gradients, chains, loops, and `kernel` itself."""
    w, x = X, X[::-1].copy()
    slope = 2 * w * x * x
    np.testing.assert_allclose(kernel(grad(squares))(w, x, s=1.0), slope)

    def both(w, x):
        value, slopes = value_and_grad(squares, (0, 1))(w, x, s=2.0)
        return value, *slopes

    wanted = np.sum((w * x) ** 2) * 2, slope * 2, 4 * w * w * x
    for seen, want in zip(kernel(both)(w, x), wanted, strict=True):
        np.testing.assert_allclose(seen, want)
    many = kernel(vmap(squares, (0, None)))(np.stack([w, w + 1]), x, s=1.0)
    np.testing.assert_allclose(many, [np.sum((w * x) ** 2), np.sum(((w + 1) * x) ** 2)])
    step = kernel(lambda c, row: (c + row, c * row))
    last, kept = kernel(lambda x: xp.scan(step, x[0], x))(x)
    assert last == x[0] + x.sum()
    assert kept[0] == x[0] * x[0]
    for again in (squares, some):
        assert kernel(again)(w, x, s=1.0) == squares(w, x, s=1.0)
    assert kernel(grad(squares)).name == "squares"


def test_a_kernel_may_call_itself_on_smaller_arrays():
    """Shapes are known when it is traced."""

    @kernel
    def total(x):
        half = x.shape[0] // 2
        return x if not half else total(x[:half]) + total(x[half:])

    assert total(X) == X.sum()


LEFT = []


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda w: squares(w, s=1.0), r"squares: got 1 arrays, expected 2 \(w, x\)"),
        (lambda w: squares(w, w), "squares: scalar s is missing and has no default"),
        (lambda w: squares(w, w, t=1), "squares: unknown scalar t, expected s"),
        (lambda w: scaled(w, s=w), r"scalar s is a value of float64 \(6,\)"),
        (lambda w: scaled(w, s=w[0] > 0), r"scalar s is a value of bool \(\)"),
        (lambda w: scaled(w, out=np.ones(6)), "results are values there: return them"),
        (lambda w: scaled([w]), "x is a list, expected a NumPy array"),
        (lambda w: squares(w, np.arange(0, 9, 0.1), s=1), "x: .* change 89 times"),
        (lambda w: moved.bind(w, w), r"x is a value of kernel .* call moved itself"),
        (lambda w: moved.build(w, w), r"x is a value of kernel .* call moved itself"),
        (lambda w: squares(w, LEFT[0], s=1), "x is a value of kernel .* expected"),
        (lambda w: {"x": shorter(w)["x"]}, r"x is updated in place with"),
        (lambda w: some(w[:2], w, s=1), "x has n 6, but w has 2; pass arrays of one n"),
        (lambda w: some(xp.tile(w, (2,)), w, s=1), "w has n 12, at most 6"),
    ],
)
def test_what_a_kernel_refuses_it_refuses_within_another(write, words):
    """In one sentence."""
    kernel(lambda w: [LEFT.append(w), w][1]).program(X)
    with pytest.raises(KernelError, match=words):
        kernel(write).program(X)
    with pytest.raises(
        KernelError, match=r"x is a value of kernel .* expected a NumPy"
    ):
        scaled(LEFT[0])
