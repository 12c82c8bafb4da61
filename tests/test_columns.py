"""Reductions of columns that a CPU adds up row by row, on the stack of a thread."""

import numpy as np
import pytest

from steelyard_kernels import array as xp
from steelyard_kernels.artifact import Artifact
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.function import kernel
from steelyard_kernels.schedule import strategies
from steelyard_kernels.schedule.schedule import Cut, Place, Schedule
from steelyard_kernels.targets import machine

SHAPES = [(1, 5), (7, 3), (37, 75), (9, 64), (8, 4097), (203, 130), (2, 131, 33)]


def by_columns(made, *arrays):
    """Return the schedules of a program that add up rows on the stack."""
    every = strategies.candidates(simplify(made.program(*arrays)), machine())
    return [each for each in every if each.columns is not None]


@kernel
def of_squares(x, c):
    """Return two sums of columns, one of them of a function of columns."""
    return xp.sum(xp.square(x - c), axis=-2) + 2 * xp.mean(x, axis=-2)


@kernel
def extremes(x):
    """Return the range of each column, for each of the leading axes."""
    return xp.max(x, axis=-2) - xp.min(x, axis=-2)


def flags_of(x):
    """Return narrow results beside wide ones."""
    return tuple(of(x, axis=-2) for of in (xp.any, xp.all, xp.count_nonzero))


@pytest.mark.parametrize("shape", [(2, 2, 31), (5, 33), (3, 4, 7)], ids=str)
def test_nothing_is_written_behind_the_last_column(shape):
    """Vectors of 8 bytes are widened to 16, of which a mask may leave lanes open."""
    x = (np.random.default_rng(3).random(shape) < 0.5).astype("float32")
    made = kernel(flags_of)
    for schedule in strategies.candidates(simplify(made.program(x)), machine()):
        rooms = [np.full(1 << 12, 7, np.uint8) for _ in range(3)]
        kinds, size = ("bool", "bool", "int64"), x[..., 0, :].size
        sizes = [size * np.dtype(kind).itemsize for kind in kinds]
        outs = [
            room[:count].view(kind).reshape(x[..., 0, :].shape)
            for room, count, kind in zip(rooms, sizes, kinds, strict=True)
        ]
        made.bind(x, out=outs, schedule=schedule).launch()
        for room, count in zip(rooms, sizes, strict=True):
            assert (room[count:] == 7).all(), schedule.label
        exact = x.any(-2), x.all(-2), np.count_nonzero(x, axis=-2)
        assert all(map(np.array_equal, outs, exact)), schedule.label


def test_columns_are_summed_row_by_row():
    """A core has half of all columns, and reads four rows at a time."""
    made = kernel(lambda x: xp.sum(x, axis=0))
    chosen = strategies.heuristic(made.program(((4096, 4096), "float32")), machine())
    assert chosen.columns == 0
    assert chosen.cuts[1].at(Place.REGISTER) == 4
    assert chosen.threads == 0


def test_one_thread_takes_its_columns_by_parts():
    """Its stack has the totals of some, and there are 256 times as many."""
    made, x = kernel(lambda x: xp.sum(x, axis=0)), np.ones((3, 16 * 512), "float32")
    first, rows = down(2, stack=2).cuts
    one = Cut(first.axes, (*first.factors[:-1], (1, Place.SERIAL)))
    work = made.bind(x, schedule=Schedule((one, rows)))
    work.launch()
    (found,) = work.outputs.values()
    assert np.array_equal(found, np.full(x.shape[1], 3))


def of_deviations(x):
    """Return sums that wait for others."""
    return xp.sum(x - xp.mean(x, axis=0), axis=0)


def down(rows, *, stack=1, lanes=16):
    """Return a schedule of columns that takes so many rows at a time."""
    wide = (lanes, Place.VECTOR), (stack, Place.STACK), (1, Place.CORE)
    return Schedule(
        (Cut("i", wide), Cut("j", ((rows, Place.REGISTER), (1, Place.SERIAL))))
    )


@pytest.mark.parametrize(
    ("function", "schedule", "said"),
    [
        (lambda x: xp.sum(x, axis=0), down(4, stack=1 << 14), "on a thread's stack"),
        (
            lambda x: xp.var(x, axis=0),
            down(4),
            "this takes reductions of columns along",
        ),
        (of_deviations, down(4), "this takes reductions of columns along"),
    ],
)
def test_what_cannot_stay_on_the_stack_says_why(function, schedule, said):
    """And what to choose."""
    built = kernel(function).build(np.ones((40, 50), "float32"), schedule=schedule)
    assert not isinstance(built, Artifact)
    assert said in built.error
