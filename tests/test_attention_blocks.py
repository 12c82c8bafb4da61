"""Attention in a CPU's registers: every blocking against float64, with ugly sizes."""

import random

import attention_programs as programs
import numpy as np
import pytest
from attention_programs import drawn, expected, softmax
from msgspec.structs import replace

from steelyard_kernels import array as xp
from steelyard_kernels import reference
from steelyard_kernels.artifact import Artifact
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.function import kernel
from steelyard_kernels.ir.verify import verify
from steelyard_kernels.nest.places import nest_of
from steelyard_kernels.schedule import strategies
from steelyard_kernels.schedule.model import Machine
from steelyard_kernels.schedule.recipes.attention_blocks import (
    AttentionBlocking,
    attended,
)
from steelyard_kernels.schedule.schedule import Cut, Place
from steelyard_kernels.targets import machine

CASES = [
    ("plain", (1, 2, 128, 128, 64, 64), "float32"),
    ("plain", (1, 1, 1, 1, 32, 32), "float32"),
    ("plain", (1, 1, 1, 131, 64, 64), "float32"),
    ("plain", (1, 1, 7, 13, 5, 3), "float32"),
    ("plain", (1, 3, 37, 200, 80, 80), "float16"),
    ("plain", (1, 1, 72, 72, 40, 96), "bfloat16"),
    ("causal", (1, 2, 192, 192, 64, 64), "float32"),
    ("causal", (1, 1, 200, 264, 64, 64), "float16"),
    ("causal", (1, 1, 264, 200, 64, 64), "float32"),  # queries without keys
    ("biased", (2, 2, 71, 137, 32, 32), "float16"),
    ("unseen", (3, 2, 72, 130, 64, 64), "float32"),  # a sequence without keys
    ("unseen", (2, 1, 19, 67, 64, 64), "float16"),
    ("by_sequence", (2, 3, 136, 72, 64, 64), "float32"),
    ("grouped", (2, 2, 1, 137, 64, 64), "float32"),
]


def blocked(made, arrays, device=None):
    """Return the schedules of a program that are blockings of attention."""
    every = strategies.candidates(simplify(made.program(*arrays)), device or machine())
    return [each for each in every if each.multiplies_blocks]


def run(made, arrays, schedule):
    """Build and launch; return the output."""
    work = made.bind(*arrays, schedule=schedule)
    work.launch()
    (found,) = work.outputs.values()
    return found


@pytest.mark.parametrize(("name", "shape", "dtype"), CASES)
def test_attention_is_within_its_bound_by_every_blocking(name, shape, dtype):
    """Rows that see no key come to NaN, or to zeros where the program says so."""
    made = getattr(programs, name)
    arrays = drawn(made, shape, dtype, seed=1)
    schedules = blocked(made, arrays) or [None]  # the smallest are no blocks
    exact, bound = expected(made, arrays)
    rng = random.Random(f"{name} {shape} {dtype}")
    for schedule in rng.sample(schedules, min(2, len(schedules))):
        found = run(made, arrays, schedule).astype(np.float64)
        assert np.array_equal(np.isnan(found), np.isnan(exact)), schedule.label
        off = np.abs(found - exact)
        assert (np.isnan(exact) | (off <= bound)).all(), schedule.label


@pytest.mark.parametrize("name", ["plain", "causal", "biased", "padded"])
def test_attention_is_one_kernel_of_blocks(name):
    """It is chosen without being asked for, and the same bit for bit each time."""
    made = getattr(programs, name)
    arrays = drawn(made, (2, 3, 96, 160, 64, 64), "float32")
    built = made.build(*arrays)
    assert isinstance(built, Artifact)
    assert built.schedule.multiplies_blocks
    assert np.array_equal(made(*arrays), made(*arrays))


def test_wide_floats_attend_in_their_own_dtype():
    """Of n products and keys, each rounded by 2**-53: far below what float32 could do."""
    arrays = [
        x.astype("float64")
        for x in drawn(programs.plain, (1, 2, 37, 75, 40, 24), "float32")
    ]
    exact, _ = expected(programs.plain, [x.astype("float32") for x in arrays])
    (schedule, *_) = blocked(programs.plain, arrays)
    np.testing.assert_allclose(
        run(programs.plain, arrays, schedule), exact, rtol=0, atol=1e-13
    )


def test_a_narrow_machine_attends_by_fewer_registers():
    """AVX2 has half of them, and half as wide."""
    narrow = Machine(32, 2)
    arrays = drawn(programs.causal, (1, 2, 70, 90, 64, 64), "float32")
    program = simplify(programs.causal.program(*arrays))
    schedules = blocked(programs.causal, arrays, narrow)
    for schedule in schedules[:3]:
        verify(strategies.lower(program, schedule, narrow).kernel, "cpu")
    exact, bound = expected(programs.causal, arrays)
    found = run(programs.causal, arrays, schedules[0])
    assert (np.abs(found - exact) <= bound).all()


@kernel
def transposed_bias(q, k, v, bias):
    """Add what lies along the queries."""
    s = xp.matmul(q, k.mT) + bias.mT
    return xp.matmul(softmax(s), v)


@kernel
def of_sums(q, k, v):
    """Attend by what is computed, and add to the result."""
    return xp.matmul(softmax(xp.matmul(q + q, k.mT)), v * 2) + q


def nan_ahead(s, _bias):
    """Fill what lies ahead with what no maximum leaves out."""
    i, j = xp.arange(s.shape[-2])[:, None], xp.arange(s.shape[-1])
    return xp.where(j <= i, s, xp.nan)


def above_infinity(s, bias):
    """See where a bias is a number."""
    return xp.where(bias > -xp.inf, s, -xp.inf)


def above_nan(s, bias):
    """See no key."""
    return xp.where(bias > xp.nan, s, -1e30)


@pytest.mark.parametrize("mask", [nan_ahead, above_infinity, above_nan])
def test_masks_that_are_nearly_causal_are_computed(mask):
    """None of them is taken for keys up to a query's own number, and more."""
    arrays = drawn(programs.plain, (1, 2, 40, 40, 16, 16), "float32")
    bias = np.zeros((40, 40), "float32")
    bias[1, 4:] = -np.inf
    made = kernel(
        lambda q, k, v, bias: xp.matmul(softmax(mask(xp.matmul(q, k.mT), bias)), v)
    )
    (exact,) = reference.evaluate(made.program(*arrays, bias), [*arrays, bias]).values()
    np.testing.assert_allclose(made(*arrays, bias), exact, rtol=0, atol=1e-4)


def test_computed_factors_are_made_while_they_are_copied():
    """And what follows is computed with the sums."""
    q, k, v = drawn(programs.plain, (1, 2, 40, 50, 32, 32), "float32")
    exact, bound = expected(programs.plain, [q * 16, k, v])
    (schedule, *_) = blocked(of_sums, [q, k, v])
    found = run(of_sums, [q, k, v], schedule)
    assert (np.abs(found - (2 * exact + q)) <= 2 * bound + 2.0**-23 * np.abs(q)).all()


def test_what_is_no_attention_for_a_cpu_says_why():
    """The program is computed as others are."""
    q, k, v = drawn(programs.plain, (1, 2, 8, 9, 16, 16), "float32")
    bias = np.ones((9, 8), "float32")
    program = simplify(transposed_bias.program(q, k, v, bias))
    assert "an array does not lie in order" in attended(nest_of(program))
    s = q @ k.swapaxes(-1, -2) + bias.T
    e = np.exp(s - s.max(-1, keepdims=True))
    np.testing.assert_allclose(
        transposed_bias(q, k, v, bias), e / e.sum(-1, keepdims=True) @ v, atol=1e-5
    )


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((12, 16, 1, 2, 1, 128, 1), "takes 16 of 64 columns of the values at a time"),
        ((16, 16, 2, 2, 2, 128, 2), "needs 35 vector registers .* there are 32"),
        ((12, 16, 2, 500, 2, 128, 2), "bytes of a thread's stack, of which it takes"),
        (
            (12, 3, 2, 2, 11, 36, 2),
            "has vectors of 3 float32; choose 1, 2, 4, 8, 16, or",
        ),
    ],
)
def test_a_blocking_that_does_not_fit_says_why(numbers, said):
    """What was seen, and what to choose."""
    arrays = drawn(programs.plain, (1, 1, 50, 128, 64, 64), "float32")
    program = simplify(programs.plain.program(*arrays))
    whole = attended(nest_of(program))
    assert not isinstance(whole, str)
    rows, lanes, vectors, down, over, keys, beside = numbers
    blocking = AttentionBlocking(
        whole.sums, rows, lanes, vectors, down, over, keys, (False, True),
        weighing=whole, beside=beside,
    )  # fmt: skip
    with pytest.raises(KernelError, match=said):
        strategies.lower(program, blocking.schedule, Machine(64, 2))


def test_a_schedule_of_parts_of_queries_is_refused():
    """Scores are summed up whole."""
    arrays = drawn(programs.plain, (1, 1, 50, 128, 64, 64), "float32")
    (schedule, *_) = blocked(programs.plain, arrays)
    parts = Cut(schedule.cuts[-1].axes, ((32, Place.STACK), (1, Place.SERIAL)))
    unlike = replace(schedule, cuts=(*schedule.cuts[:-1], parts))
    with pytest.raises(KernelError, match=r"cuts a product unlike .*stack64"):
        strategies.lower(simplify(programs.plain.program(*arrays)), unlike, machine())
