import numpy as np
import pytest
from gpu_cases import FLOATS, rounded, valued
from hypothesis import given
from hypothesis import strategies as st

from steelyard_device import llvm
from steelyard_kernels.dtypes import (
    bfloat16,
    bool_,
    float16,
    float32,
    int32,
    int64,
)
from steelyard_kernels.ir.builder import Builder, const, index
from steelyard_kernels.ir.loops import INDEX, Buffer, Var

N = Var("n", INDEX)
HOST = llvm.Host("x86_64-linux-gnu", "znver4", frozenset({"f16c", "fma"}), 64)
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in")


def agree(seen, expected, dtype):
    """Say whether two stored arrays hold the same numbers, NaN with NaN."""
    return np.array_equal(
        valued(seen, dtype), valued(expected, dtype), equal_nan=dtype.kind == "float"
    )


def test_a_fused_multiply_add_rounds_once(elementwise):
    """What a * b + c loses in two roundings."""
    a = np.array([1 + 2.0**-12] * 17, np.float32)
    c = np.array([-1 - 2.0**-11] * 17, np.float32)
    seen = elementwise(lambda t, x, y: t.let("fma", x, x, y), [a, c], float32)
    assert seen.tolist() == [2.0**-24] * 17


def reduction(op, dtype, lanes):
    """Make y[0] = op(x[0:lanes])."""
    x = Buffer("x", dtype, index(lanes))
    y = Buffer("y", dtype, index(1), access="out")
    b = Builder()
    b.store(y, 0, b.let(op, b.load(x, 0, lanes)))
    return b.kernel("reduction", [x, y])


REDUCED = {"reduce_add": np.sum, "reduce_minimum": np.min, "reduce_maximum": np.max}


@given(count=st.integers(-(2**63), 2**63 - 1))
def test_a_mask_holds_the_lanes_below_any_count(run_kernel, count):
    """Negative counts hold none, large ones all."""
    y = Buffer("y", bool_, index(16), access="out")
    b = Builder()
    b.store(y, 0, b.mask_below(N, 16))
    seen = np.empty(16, bool)
    run_kernel(b.kernel("mask", [y, N]), seen, count)
    assert np.array_equal(seen, np.arange(16) < count)


@given(a=st.integers(-(2**63), 2**63 - 1), b=st.integers(1, 2**63 - 1))
def test_index_division_truncates(run_kernel, a, b):
    """Quotient and remainder as of C, minimum and maximum beside them."""
    p, q = Var("p", INDEX), Var("q", INDEX)
    y = Buffer("y", int64, index(4), access="out")
    t = Builder()
    for k, op in enumerate(("div", "rem", "minimum", "maximum")):
        t.store(y, k, t.let(op, p, q))
    seen = np.empty(4, np.int64)
    run_kernel(t.kernel("indices", [y, p, q]), seen, a, b)
    quotient = abs(a) // b * (1 if a >= 0 else -1)
    assert seen.tolist() == [quotient, a - quotient * b, min(a, b), max(a, b)]


@pytest.mark.parametrize("lanes", [1, 2, 16])
def test_lanes_are_numbered(run_kernel, lanes):
    """In both integer types."""
    for dtype in (int32, int64):
        y = Buffer("y", dtype, index(lanes), access="out")
        b = Builder()
        b.store(y, 0, b.iota(lanes, dtype))
        seen = np.empty(lanes, dtype.numpy)
        run_kernel(b.kernel("lanes", [y]), seen)
        assert seen.tolist() == list(range(lanes))


@given(value=st.floats())
def test_a_constant_is_rounded_to_its_dtype(run_kernel, value):
    """Any float64, spelled for each of the float types."""
    every = [Buffer(str(each), each, index(2), access="out") for each in FLOATS]
    b = Builder()
    for y in every:
        b.store(y, 0, const(value, y.dtype, 2))
    seen = [np.empty(2, y.dtype.numpy) for y in every]
    run_kernel(b.kernel("constant", every), *seen)
    for y, own in zip(every, seen, strict=True):
        assert agree(own, rounded(np.array([value] * 2), y.dtype), y.dtype)


def test_the_same_bits_are_two_numbers_in_two_half_types(run_kernel):
    """A float16 0x3C00 is 1; as a bfloat16 it is 1 / 128."""
    y = Buffer("y", float32, index(2), access="out")
    b = Builder()
    for k, (dtype, value) in enumerate([(float16, 1.0), (bfloat16, 2.0**-7)]):
        constant = const(value, dtype)
        b.store(y, k, b.cast(b.let("negative", constant), float32))
    seen = np.empty(2, np.float32)
    run_kernel(b.kernel("halves", [y]), seen)
    assert seen.tolist() == [-1.0, -(2.0**-7)]
