"""Arrays that a CPU reads along another axis than it writes: squares in registers."""

import numpy as np
import pytest

from steelyard_kernels import array as xp
from steelyard_kernels.artifact import Artifact
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.function import kernel
from steelyard_kernels.schedule import strategies
from steelyard_kernels.schedule.model import LINE
from steelyard_kernels.schedule.schedule import Cut, Place, Schedule
from steelyard_kernels.targets import machine

SHAPES = [
    (64, 32),
    (33, 65),
    (1, 7),
    (2, 3),
    (16, 129),
    (300, 17),
    (3, 40, 37),
    (17, 2, 48),
]


def of_squares(made, *arrays, aligned=True):
    """Return the schedules of a program that transpose in registers."""
    program = simplify(made.program(*arrays))
    every = strategies.candidates(program, machine(), aligned=aligned)
    return [each for each in every if each.keep is Place.REGISTER]


def run(made, arrays, schedule):
    """Build and launch; return the output."""
    work = made.bind(*arrays, schedule=schedule)
    work.launch()
    (found,) = work.outputs.values()
    return found


def permuted(axes):
    """Return the kernel that permutes an array's axes."""
    return kernel(lambda x: xp.permute_dims(x, axes))


@kernel
def mixed(x, y, c, *, scale):
    """Add what lies otherwise, in another dtype, and along either axis alone."""
    return (x.T * scale + y).astype("float32") + c[:, None] * 2


@pytest.mark.parametrize("shape", [(48, 80), (37, 75)], ids=str)
def test_what_is_computed_of_squares_is_computed_along_the_last_axis(shape):
    """Beside arrays that lie in order already."""
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal(shape), rng.standard_normal(shape[::-1])
    c = rng.standard_normal(shape[1]).astype("float32")
    schedules = of_squares(mixed, x, y, c)
    assert schedules
    for schedule in schedules:
        work = mixed.bind(x, y, c, schedule=schedule, scale=0.5)
        work.launch()
        (found,) = work.outputs.values()
        exact = (x.T * 0.5 + y).astype("float32") + c[:, None] * 2
        np.testing.assert_allclose(found, exact, rtol=2.0**-22, atol=2.0**-22)


@pytest.mark.parametrize("n", [2, 5, 16, 33])
def test_what_lies_in_order_along_neither_axis_of_a_square_is_read_alone(n):
    """As one factor of the products of all pairs of columns does."""

    @kernel
    def pairs(x):
        return xp.expand_dims(x.T, axis=1) * x.T

    @kernel
    def turned(x, y):
        return x.T + y[:, ::-1]

    x = np.random.default_rng(4).standard_normal((n, n + 1))
    assert not of_squares(pairs, x)
    assert np.array_equal(pairs(x), x.T[:, None] * x.T)
    y = np.random.default_rng(5).standard_normal((n + 1, n))
    assert np.array_equal(turned(x, y), x.T + y[:, ::-1])


@kernel
def added(x, y):
    """Add what lies otherwise to an array in place."""
    return {"y": y + x.T}


@pytest.mark.parametrize("shape", [(48, 80), (37, 75)], ids=str)
def test_what_is_updated_is_computed_once(shape):
    """Squares at an edge are not shifted over their neighbours then."""
    x = np.arange(np.prod(shape), dtype="float32").reshape(shape)
    schedules = of_squares(added, x, x.T.copy(), aligned=False)
    assert schedules
    for schedule in schedules:
        y = np.ones(shape[::-1], "float32")
        added.bind(x, y, schedule=schedule).launch()
        assert np.array_equal(y, 1 + x.T), schedule.label


@pytest.mark.parametrize(
    ("shape", "dtype", "stored"),
    [
        ((16, 6, 70), "float16", True),
        ((20, 12, 33), "float32", True),
        ((5, 7, 64), "float32", False),
        ((3, 50, 40), "int8", False),
    ],
    ids=str,
)
def test_a_short_last_axis_is_one_loop_with_the_axis_before_it(shape, dtype, stored):
    """So that whole lines are stored, where rows of both are whole lines."""
    made, x = permuted((2, 1, 0)), np.arange(np.prod(shape)).reshape(shape)
    x = x.astype(dtype)
    schedules = of_squares(made, x)
    for schedule in schedules:
        assert schedule.cuts[-1].axes == "jk"
        assert np.array_equal(run(made, [x], schedule), x.transpose(2, 1, 0))
    whole = machine().vector_bytes == LINE
    assert any(each.streaming for each in schedules) is (stored and whole)


def test_transposes_are_of_squares_unasked():
    """Eight side by side, with stores that go round the caches, by both cores."""
    made = kernel(lambda x: x.T)
    program = simplify(made.program(np.empty((4096, 4096), "float32")))
    chosen = strategies.heuristic(program, machine())
    assert chosen.keep is Place.REGISTER
    assert chosen.streaming
    assert chosen.threads == 0
    assert chosen.cuts[-1].at(Place.REGISTER) == 8
    assert chosen.cuts[-1].at(Place.VECTOR) * 4 == LINE  # by two vectors of AVX2
    unaligned = of_squares(made, np.empty((64, 64), "float32"), aligned=False)
    assert unaligned
    assert not any(each.streaming for each in unaligned)


def test_narrow_squares_ask_for_nothing_ahead():
    """Their arrays' few rows are read in order anyway."""
    made = kernel(lambda x: x.T)
    thin, wide = (of_squares(made, np.empty((n, 500), "float32")) for n in (3, 64))
    assert {each.prefetch for each in thin} == {0}
    assert {each.prefetch for each in wide} == {512}


def test_tiles_of_short_columns_are_worth_handing_to_a_core():
    """Both take many rows at a time; a row for each would be one claim in 18 elements."""
    made = kernel(lambda x: x.T)
    chosen = strategies.heuristic(made.program(((1000000, 3), "float32")), machine())
    assert chosen.threads == 0
    assert chosen.cuts[-1].size >= 1000


def squares(lanes, *, axes=("i", "j"), wide=None):
    """Return a schedule of squares."""
    cuts = [Cut(axis, ((1, Place.CORE),)) for axis in axes]
    cuts[0] = Cut(axes[0], ((lanes, Place.VECTOR), (1, Place.CORE)))
    cuts[-1] = Cut(axes[-1], ((wide or lanes, Place.VECTOR), (1, Place.CORE)))
    return Schedule(tuple(cuts), keep=Place.REGISTER)


@pytest.mark.parametrize(
    ("function", "schedule", "said"),
    [
        (
            lambda x: x + 1,
            squares(16, axes=("i",), wide=16),
            "every array lies in order",
        ),
        (lambda x: x.T, squares(16, wide=8), "squares of 8 x 16 lanes; choose a power"),
        (lambda x: x.T, squares(3), "squares of 3 lanes; choose a power of two"),
        (
            lambda x: x.T,
            squares(4, axes=("ij",)),
            "cuts ij as no squares; cut i and j ",
        ),
    ],
)
def test_squares_that_do_not_fit_say_why(function, schedule, said):
    """And what to choose."""
    built = kernel(function).build(np.ones((40, 50), "float32"), schedule=schedule)
    assert not isinstance(built, Artifact)
    assert said in built.error
