"""Sums of products in a CPU's registers: every blocking against float64, bit for bit."""

import random
import re

import numpy as np
import product_programs as programs
import pytest
from llvmlite import binding
from pairwise import pairs
from product_programs import drawn

from steelyard_device import processors
from steelyard_device.llvm import without_strength_reduction
from steelyard_kernels import array as xp
from steelyard_kernels import dtypes
from steelyard_kernels.artifact import Artifact
from steelyard_kernels.emit.llvm import emit
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.function import kernel
from steelyard_kernels.ir import printing
from steelyard_kernels.ir.verify import verify
from steelyard_kernels.nest.contraction import contraction_of
from steelyard_kernels.nest.places import nest_of
from steelyard_kernels.schedule import strategies
from steelyard_kernels.schedule.blocking import Blocking
from steelyard_kernels.schedule.model import Machine
from steelyard_kernels.schedule.schedule import Place
from steelyard_kernels.targets import machine

RAGGED = (37, 75, 53)
SHAPES = [RAGGED, (64, 96, 48), (2, 200, 33), (3, 17, 129), (130, 16, 40)]


def blocked(program, device=None):
    """Return the schedules of a program that are blockings."""
    every = strategies.candidates(simplify(program), device or machine())
    return [each for each in every if each.multiplies_blocks]


def run(made, arrays, schedule, **scalars):
    """Build and launch; return the outputs."""
    built = made.build(*arrays, schedule=schedule)
    assert isinstance(built, Artifact), built
    work = made.bind(*[array.copy() for array in arrays], schedule=schedule, **scalars)
    work.launch()
    return list(work.outputs.values())


def bound(x, w, dtype):
    """Return how far sums of products may be from those of float64.

    Of k products every one takes part in at most k roundings: Higham, "Accuracy and
    Stability of Numerical Algorithms", 2002, section 3.1. A half is rounded once more.
    """
    kept = dtypes.of(dtype)
    wide = dtypes.float32 if kept in dtypes.HALVES else kept
    k, unit = x.shape[-1], 2.0**-wide.digits
    most = np.abs(x) @ np.abs(w) * (k * unit / (1 - k * unit))
    return most + (np.abs(x @ w) + most) * (
        2.0**-kept.digits if kept is not wide else 0
    )


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    pairs(
        ["product", "linear", "of_transposed"],
        SHAPES,
        ["float32", "float64", "float16", "bfloat16"],
    ),
    ids=str,
)
def test_sums_are_within_their_bound_and_the_same_by_every_blocking(name, shape, dtype):
    """Each sum is added up in the order of the depth, however it is blocked."""
    made = getattr(programs, name)
    arrays = drawn(made, shape, dtype, seed=3)
    x, w = (array.astype(np.float64) for array in arrays)
    x, w = (x.T if name == "of_transposed" else x), (w.T if name == "linear" else w)
    schedules = blocked(made.program(*arrays))
    rng = random.Random(f"{name} {shape} {dtype}")
    seen = set()
    for schedule in rng.sample(schedules, min(4, len(schedules))):
        (found,) = run(made, arrays, schedule)
        off = np.abs(found.astype(np.float64) - x @ w)
        assert (off <= bound(x, w, dtype)).all(), schedule.label
        seen.add(found.tobytes())
    assert len(seen) == 1


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int16", "int32", "int64", "uint32"]
)
def test_integers_are_exact(dtype):
    """They wrap as NumPy's do."""
    rng = np.random.default_rng(5)
    info = np.iinfo(dtype)
    x, w = (
        rng.integers(info.min, info.max, shape, dtype, endpoint=True)
        for shape in ((37, 53), (53, 40))
    )
    made = kernel(xp.matmul)
    schedules = blocked(made.program(x, w))
    assert schedules
    for schedule in random.Random(dtype).sample(schedules, 4):
        (found,) = run(made, (x, w), schedule)
        assert found.dtype == dtype
        assert np.array_equal(found, x @ w), schedule.label


def test_sums_of_bytes_are_wide_where_asked():
    """Products of int8 in int32."""
    rng = np.random.default_rng(6)
    x, w = (rng.integers(-128, 128, s, "int8") for s in ((30, 200), (200, 40)))

    @kernel
    def wide(x, w):
        return xp.matmul(x.astype("int32"), w.astype("int32"))

    expected = x.astype(np.int32) @ w.astype(np.int32)
    schedules = blocked(wide.program(x, w))
    for schedule in random.Random(1).sample(schedules, 4):
        assert np.array_equal(run(wide, (x, w), schedule)[0], expected)


@kernel
def heads(q, k):
    """Multiply in each head, whose axis lies between the others."""
    return xp.einsum("bqhd,bkhd->bhqk", q, k)


@kernel
def of_two_axes(x, w):
    """Contract two axes that neither array has next to each other."""
    return xp.einsum("aibk,bja->ij" if w.ndim == 3 else "aib,bjak->ijk", x, w)


@kernel
def scaled_rows(x, w, s):
    """Multiply what is computed: a prologue."""
    return xp.exp(-(x * s[:, None])) @ (w * 0.5)


@kernel
def flipped(x, w):
    """Multiply rows that are read backwards."""
    return xp.flip(x, axis=1) @ xp.flip(w, axis=0)


@kernel
def padded(x, w):
    """Multiply what a border of zeros is around."""
    return xp.pad(x, ((1, 2), (3, 0))) @ xp.pad(w, ((2, 1), (0, 5)))


@kernel
def pairs_of_rows(x):
    """Multiply by products, a factor of which each row of columns has one of."""
    x = xp.roll(x, 1, axis=1)
    return xp.tensordot(x, xp.einsum("ab,ac->abc", x, x), axes=([1], [1]))


def normal(*shapes):
    """Return normal numbers of some shapes."""
    rng = np.random.default_rng(11)
    return [rng.standard_normal(shape).astype("float32") for shape in shapes]


OTHERS = [
    (
        heads,
        ((2, 19, 3, 24), (2, 33, 3, 24)),
        lambda q, k: np.einsum("bqhd,bkhd->bhqk", q, k),
    ),
    (
        of_two_axes,
        ((5, 21, 7), (7, 9, 5, 11)),
        lambda x, w: np.einsum("aib,bjak->ijk", x, w),
    ),
    (
        scaled_rows,
        ((30, 40), (40, 50), (30,)),
        lambda x, w, s: np.exp(-x * s[:, None]) @ (w * 0.5),
    ),
    (flipped, ((30, 40), (40, 50)), lambda x, w: x[:, ::-1] @ w[::-1]),
    (
        padded,
        ((30, 37), (37, 50)),
        lambda x, w: np.pad(x, ((1, 2), (3, 0))) @ np.pad(w, ((2, 1), (0, 5))),
    ),
    (
        pairs_of_rows,
        ((64, 3),),
        lambda x: np.einsum("ab,cb,cd->acd", *[np.roll(x, 1, axis=1)] * 3),
    ),
]


@pytest.mark.parametrize(
    ("made", "shapes", "answer"), OTHERS, ids=lambda x: getattr(x, "__name__", "")
)
def test_factors_may_be_computed_and_lie_anyhow(made, shapes, answer):
    """Views and prologues are what is copied."""
    arrays = normal(*shapes)
    expected = answer(*[array.astype(np.float64) for array in arrays])
    schedules = blocked(made.program(*arrays))
    assert schedules
    seen = set()
    for schedule in random.Random(2).sample(schedules, min(6, len(schedules))):
        (found,) = run(made, arrays, schedule)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)
        seen.add(found.tobytes())
    assert len(seen) == 1


def blocking(shape=(64, 96, 768), dtype="float32", name="product"):
    """Return a maker of blockings of a product."""
    made = getattr(programs, name)
    arrays = drawn(made, shape, dtype)
    program = simplify(made.program(*arrays))
    found = contraction_of(nest_of(program))
    return program, lambda *numbers: Blocking(found, *numbers).schedule


BIG = Machine(64, 2)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((16, 16, 2, 4, 3, 768), "needs 35 vector registers .* there are 32"),
        ((12, 16, 2, 40, 40, 768), "bytes of a thread's stack"),
        ((12, 16, 2, 0, 3, 768), "takes 0 rows, 96 columns and 768 of the depth"),
        (
            (12, 32, 1, 4, 3, 768),
            "has vectors of 32 float32; choose 1, 2, 4, 8, 16, or",
        ),
        (
            (12, 16, 2, 4, 3, 768, (False, True)),
            "takes 12 rows of 64 at a time where they",
        ),
    ],
)
def test_a_blocking_that_does_not_fit_says_why(numbers, said):
    """What was seen, and what to choose."""
    program, made = blocking()
    with pytest.raises(KernelError, match=said):
        strategies.lower(program, made(*numbers), BIG)


def test_halves_are_not_multiplied_where_they_lie():
    """They are widened while they are copied."""
    program, made = blocking(dtype="float16")
    with pytest.raises(KernelError, match="what is no array of float32; copy it"):
        strategies.lower(program, made(8, 16, 3, 8, 2, 768, (True, False)), BIG)


def assembly(kernel_, processor):
    """Return what LLVM makes of a kernel, with its comments, which name the spills."""
    module = binding.parse_assembly(emit(kernel_, processors.PROCESSORS[processor]))
    with without_strength_reduction():
        return processors._machine(processor).emit_assembly(module)


@pytest.mark.parametrize(("processor", "least"), [("x86-64-v3", 8), ("x86-64-v4", 20)])
@pytest.mark.parametrize("shape", [(512, 512, 512), (60, 100, 300)], ids=str)
def test_the_sums_of_a_block_stay_in_registers(processor, least, shape):
    """The heuristic's blocks, of either vectors: a multiplication a vector, no spill."""
    program, _ = blocking(shape)
    device = Machine(processors.PROCESSORS[processor].vector_bytes, 2)
    schedule = strategies.heuristic(program, device)
    kernel_ = strategies.lower(program, schedule, device).kernel
    verify(kernel_)
    text = assembly(kernel_, processor)
    rows, columns, _ = schedule.cuts
    sums = rows.at(Place.REGISTER) * columns.at(Place.REGISTER)
    assert sums >= least
    assert text.count("\tvfmadd") == sums
    begin = text.rindex("\n.LBB", 0, text.index("\tvfmadd"))
    inner = text[begin : text.index("\tjl", text.rindex("\tvfmadd"))]
    assert not re.search(f"{device.vector_bytes}-byte (Folded )?(Spill|Reload)", inner)


def test_the_kernel_of_a_layer_is_golden(golden):
    """64 x 768 x 768 with a bias."""
    arrays = drawn(programs.bias_relu, (64, 768, 768), "float32", seed=0)
    program = simplify(programs.bias_relu.program(*arrays))
    schedule = strategies.heuristic(program, BIG)
    kernel_ = strategies.lower(program, schedule, BIG).kernel
    golden(printing.text(kernel_), "loops")
