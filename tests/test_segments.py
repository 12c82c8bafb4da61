"""Gradients of elements that were taken: sums of segments, in one order, of any size."""

import numpy as np
import pytest
from test_orders import ran

from steelyard_kernels import array as xp
from steelyard_kernels import cost
from steelyard_kernels.array import lines
from steelyard_kernels.artifact import Artifact
from steelyard_kernels.expression.expr import Segments
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.function import kernel
from steelyard_kernels.grad import grad
from steelyard_kernels.plan import partition
from steelyard_kernels.reference import evaluate
from steelyard_kernels.targets import device, parse
from steelyard_kernels.vmap import vmap


def along(axis):
    """Return a function that takes elements along an axis, each of its own line."""
    return lambda x, i: xp.take_along_axis(x, i, axis=axis)


def rows(axis):
    """Return a function that takes elements along an axis, the same of all lines."""
    return lambda x, i: xp.take(x, i, axis=axis)


def twice(x, i):
    """Return rows that were taken of rows that were taken."""
    return xp.take(xp.take(x, i, axis=0) * x[0], i, axis=0)


FORMS = {  # a function, the shapes of an array and of places in 13 elements, a dtype
    "rows": (rows(0), (13, 5), (29,), "float32"),
    "elements": (rows(0), (13,), (70,), "float32"),
    "columns": (rows(1), (3, 13, 4), (29,), "float64"),
    "places of two axes": (rows(1), (3, 13, 5), (7, 6), "float32"),
    "lines of their own": (along(1), (2, 13, 3), (2, 29, 3), "float32"),
    "lines' places broadcast": (along(0), (13, 4), (29, 1), "float32"),
    "lines broadcast": (along(1), (1, 13), (6, 29), "float32"),
    "halves": (rows(0), (13, 5), (29,), "float16"),
    "a slice": (lambda x, i: rows(0)(x[4:17], i), (19, 5), (29,), "float32"),
    "columns backwards": (
        lambda x, i: rows(0)(xp.flip(x.T, axis=1)[:, ::2], i),
        *((9, 13), (29,), "float32"),
    ),
    "differences": (
        lambda x, i: rows(0)(xp.diff(x, axis=0), i),
        (14, 5),
        (29,),
        "float32",
    ),
    "several indices": (
        lambda x, i: rows(0)(xp.reshape(x, (-1,)), i * 5 + i % 5),
        *((13, 5), (29,), "float32"),
    ),
    "rows of rows": (twice, (13, 5), (29,), "float32"),
}


@pytest.fixture(params=FORMS)
def form(request):
    """Give a loss, and arrays: small integers, whose sums are exact, and places beside."""
    function, shape, places, dtype = FORMS[request.param]
    rng = np.random.default_rng(1)

    def loss(x, i):
        found = function(x, i)
        weights = xp.arange(int(np.prod(found.shape)), dtype="int32") % 7
        weights = xp.reshape(weights, found.shape).astype(x.dtype)
        return xp.sum(xp.square(found) * weights)

    x = rng.integers(-2, 3, shape).astype(dtype)
    return loss, x, rng.integers(-2, 15, places).astype(np.int32)


def in_segments(program):
    """Say whether a program sums segments."""
    return any(isinstance(node, Segments) for node in program.nodes)


def test_segments_sum_what_comparisons_do(form, monkeypatch):
    """By every form of taking elements, places out of range too; on both targets."""
    loss, *arrays = form
    compared = kernel(grad(loss)).program(*arrays)
    want = evaluate(compared, arrays)["out"]
    assert not in_segments(compared)
    monkeypatch.setattr(lines, "COMPARED", 0)
    made = kernel(grad(loss))
    program = made.program(*arrays)
    assert in_segments(program)
    np.testing.assert_array_equal(evaluate(program, arrays)["out"], want)
    np.testing.assert_array_equal(made(*arrays), want)
    if partition.partition(simplify(program), device(parse("cuda:sm_90a"))):
        (found,) = ran(simplify(program), arrays)
        np.testing.assert_array_equal(found, want)


def test_segments_have_gradients(form, monkeypatch):
    """What they sum takes the cotangent of its segment."""
    loss, *arrays = form

    def again(x, i):
        return xp.sum(xp.square(grad(loss)(x, i)))

    want = evaluate(kernel(grad(again)).program(*arrays), arrays)["out"]
    monkeypatch.setattr(lines, "COMPARED", 0)
    np.testing.assert_allclose(kernel(grad(again))(*arrays), want, 2e-3)


def embedded(x, i, g):
    """Return the gradient of a table whose rows were taken."""
    return grad(lambda x: xp.sum(xp.take(x, i, axis=0) * g))(x)


@pytest.mark.parametrize("axes", [None, (0, 0), (0, None), (None, 0)])
@pytest.mark.parametrize("loops", [0, 3])
def test_segments_are_summed_in_loops_and_of_many_chains(loops, axes):
    """The places are those of each turn, and of each chain."""
    slope = grad(lambda x: xp.sum(xp.cumulative_max(x) * x))

    def function(x, y):
        if not loops:
            return slope(x * y[0])
        return xp.scan(lambda x, row: (slope(x * row), None), x, y)[0]

    def expected(x, y):
        for row in y:
            x = x * row
            highest = np.maximum.accumulate(x)
            last = np.maximum.accumulate(np.where(x == highest, np.arange(5), 0))
            x = highest + np.bincount(last, x, 5)
        return x

    rng = np.random.default_rng(5)
    x, y = rng.standard_normal((4, 5)), rng.standard_normal((4, max(1, loops), 5))
    if axes is None:
        np.testing.assert_allclose(kernel(function)(x[0], y[0]), expected(x[0], y[0]))
        return
    x, y = (z if axis == 0 else z[0] for z, axis in zip((x, y), axes, strict=True))
    every = [
        expected(x if axes[0] is None else x[k], y if axes[1] is None else y[k])
        for k in range(4)
    ]
    np.testing.assert_allclose(kernel(vmap(function, axes))(x, y), every)


@pytest.mark.parametrize("count", [0, 1, 4096, 20_000])
def test_operations_grow_with_the_places_alone(count):
    """And the result is the same in every run, whatever the places are."""
    rng = np.random.default_rng(2)
    x = np.zeros((3000, 8), np.float32)
    i = rng.integers(0, rng.choice([2, 3000]), count).astype(np.int32)
    g = rng.standard_normal((count, 8)).astype(np.float32)
    made, want = kernel(embedded), np.zeros((3000, 8))
    np.add.at(want, i, g.astype(np.float64))
    found = made(x, i, g)
    np.testing.assert_allclose(found, want, 1e-4, 1e-3)
    assert found.tobytes() == made(x, i, g).tobytes()
    assert cost.operations(made.program(x, i, g)) < 1000 * (3000 + 8 * count)


def test_a_language_models_table_has_a_gradient_on_a_gpu():
    """30,522 rows, of which 4096 were taken: an order, where each begins, and sums."""
    specs = ((30522, 768), "float16"), ((4096,), "int32"), ((4096, 768), "float16")
    built = kernel(embedded).build(*specs, target="cuda:sm_90a")
    assert isinstance(built, Artifact)
    assert len(built.parts) == 3


def test_the_gradient_of_what_a_search_found_is_traced():
    """The places are a long expression, each part of which is read several times."""

    def loss(x, y):
        return xp.sum(xp.square(xp.take(x, xp.searchsorted(xp.sort(x), y))))

    specs = ((60_000,), "float32"), ((60_000,), "float32")
    assert in_segments(kernel(grad(loss)).program(*specs))
