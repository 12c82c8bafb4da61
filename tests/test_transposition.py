"""Tiles of arrays that are read along another axis than they are written.

That what the recipe offers is right is `test_corpus`'s to say.
"""

import numpy as np
import pytest
import simt
from labels import schedule_of

from steelyard_kernels import array as xp
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.function import kernel
from steelyard_kernels.ir.verify import verify
from steelyard_kernels.schedule import strategies
from steelyard_kernels.schedule.gpu import GPUS
from steelyard_kernels.schedule.schedule import Place

H200 = GPUS["sm_90a"]
SQUARE = "i:v4.thread16.grid j:v4.thread16.grid keep-shared"


@kernel
def turned(x, y):
    """Transpose one of two arrays."""
    return x.T * 2 + y


def lowered(program, label):
    """Return a program's kernel under the schedule of a label."""
    made = strategies.lower(program, schedule_of(label), H200)
    verify(made.kernel, "cuda")
    return made


@pytest.mark.parametrize("dtype", ["float32", "int8", "float64"])
@pytest.mark.parametrize(
    ("shape", "label"),
    [
        ((128, 64), SQUARE),
        ((100, 68), SQUARE),
        ((100, 68), "i:v1.r4.thread16.grid j:v2.r2.thread8.grid keep-shared"),
        ((67, 101), "i:v1.r4.thread16.grid j:v1.r1.thread32.grid keep-shared"),
        ((101, 68), "i:v4.r2.thread8.grid j:v1.r2.thread16.grid keep-shared"),
        ((36, 101), "i:v1.r8.thread4.grid j:v4.r1.thread16.grid keep-shared"),
    ],
)
def test_a_tile_is_read_along_one_axis_and_written_along_another(dtype, shape, label):
    """Whole tiles and ragged ones, by vectors along both axes, one or none."""
    rng = np.random.default_rng(1)
    x = rng.integers(-50, 50, shape).astype(dtype)
    y = rng.integers(-20, 20, shape[::-1]).astype(dtype)
    program = simplify(turned.program(x, y))
    (found,) = simt.launch(program, lowered(program, label), [x, y]).values()
    np.testing.assert_array_equal(found, x.T * 2 + y)


@pytest.mark.parametrize(
    ("axes", "label"),
    [
        ((0, 2, 1), "i:grid j:v4.thread16.grid k:v4.thread8.grid keep-shared"),
        ((2, 1, 0), "i:v4.thread16.grid j:grid k:v1.r2.thread16.grid keep-shared"),
    ],
)
def test_other_axes_have_a_block_for_each_index(axes, label):
    """Before a tile's axes, and between them."""
    permuted = kernel(lambda x: xp.permute_dims(x, axes))
    x = np.random.default_rng(2).standard_normal((5, 36, 68)).astype(np.float32)
    program = simplify(permuted.program(x))
    (found,) = simt.launch(program, lowered(program, label), [x]).values()
    np.testing.assert_array_equal(found, x.transpose(axes))


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("i:v1.thread32.grid j:v1.thread32.grid keep-shared", "64 columns of 32"),
        ("i:v2.thread12.grid j:v4.thread16.grid keep-shared", "powers of two"),
        ("i:v4.thread8.grid j:v2.thread64.grid", "does not lie in order"),
        ("ij:v1.thread64.grid keep-shared", "cuts ij as no tile"),
        ("i:v8.thread16.grid j:v4.thread16.grid keep-shared", "choose a divisor"),
        ("i:v4.r8.thread16.grid j:v4.thread32.grid keep-shared", "choose less"),
    ],
)
def test_a_tile_that_does_not_fit_is_refused(label, message):
    """The error names what was seen, and what to choose."""
    dtype = "float64" if "columns" in message else "float32"
    with pytest.raises(KernelError, match=message):
        lowered(turned.program(((4, 100), dtype), ((100, 4), dtype)), label)


def test_what_lies_in_order_needs_no_tile():
    """A schedule for another program says so."""
    program = kernel(lambda x: x[1:, :] * 2).program(((9, 64), "float32"))
    with pytest.raises(KernelError, match="every array lies in order"):
        lowered(simplify(program), SQUARE.replace("i:v4.thread16.grid j", "i"))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_large_arrays_are_turned_by_tiles(dtype):
    """With the widest vectors along both axes."""
    program = kernel(lambda x: x.T).program(((4096, 4096), dtype))
    chosen = strategies.heuristic(simplify(program), H200)
    assert chosen.keep is Place.SHARED
    size = np.dtype(dtype).itemsize
    assert [cut.at(Place.VECTOR) * size for cut in chosen.cuts] == [16, 16]
