"""Errors are in units of the result's last place, against a wider NumPy type."""

import numpy as np
import pytest

from steelyard_device import llvm
from steelyard_kernels.dtypes import (
    bfloat16,
    float16,
    float32,
    float64,
    from_bfloat16,
    of,
    to_bfloat16,
)
from steelyard_kernels.emit.llvm import emit
from steelyard_kernels.errors import Unsupported
from steelyard_kernels.ir.builder import Builder, const
from steelyard_kernels.ir.loops import INDEX, Buffer, Const

WIDER = {"float32": np.float64, "float64": np.longdouble}
REFERENCE = {"exp": np.exp, "log": np.log, "rsqrt": lambda x: 1 / np.sqrt(x)}
# What llvm_math's table states, in ulp: the bound that these tests hold.
STATED = {
    ("exp", "float32"): 1.02,
    ("exp", "float64"): 1.01,
    ("log", "float32"): 0.84,
    ("log", "float64"): 0.87,
    ("rsqrt", "float32"): 1.50,
    ("rsqrt", "float64"): 1.50,
}
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in")


@pytest.fixture
def apply(elementwise):
    """Apply a function of the table to every element."""

    def run(op, array, lanes=16, source=None):
        source = source or of(array.dtype)
        return elementwise(
            lambda b, x: b.let(op, x), [array], source, lanes, sources=[source]
        )

    return run


def ulps(seen, exact):
    """Return the largest error in ulp; values that are not finite must agree."""
    rounded = exact.astype(seen.dtype)
    finite = np.isfinite(rounded) & np.isfinite(seen)
    agree = (np.isnan(rounded) & np.isnan(seen)) | (rounded == seen)
    assert np.all(finite | agree)
    step = np.spacing(np.abs(rounded[finite])).astype(exact.dtype)
    return np.max(np.abs(seen[finite].astype(exact.dtype) - exact[finite]) / step)


def arguments(op, dtype):
    """Every binade, the neighbourhood of the hard points, and the edges."""
    random = np.random.default_rng(7)
    one = np.array(1, dtype)
    bits = random.integers(0, 256, np.dtype(dtype).itemsize << 18, np.uint8)
    near_one = one + np.arange(-50_000, 50_000).astype(dtype) * np.finfo(dtype).eps
    around = random.uniform(-1, 1, 1 << 18).astype(dtype)
    if op == "exp":
        low, high = (-104, 89) if dtype == np.float32 else (-746, 710)
        halfway = (np.arange(low, high, 0.5) * np.log(2)).astype(dtype)  # |r| largest
        rest = [random.uniform(low, high, 1 << 18).astype(dtype), halfway]
    else:
        roots = np.sqrt(0.5) * (1 + np.linspace(-1e-6, 1e-6, 9999))
        rest = [roots.astype(dtype), np.abs(around), np.ldexp(one, range(-149, 128))]
    return np.concatenate([bits.view(dtype), near_one, around, *rest]).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", ["exp", "log", "rsqrt"])
def test_a_function_stays_within_its_stated_error(apply, op, dtype):
    """A million arguments of every size, denormal ones and results included."""
    values = arguments(op, dtype)
    exact = REFERENCE[op](values.astype(WIDER[dtype]))
    assert ulps(apply(op, values), exact) <= STATED[op, dtype]


@pytest.mark.parametrize("dtype", [float16, bfloat16, float32, float64], ids=str)
@pytest.mark.parametrize("op", ["exp", "log", "rsqrt"])
def test_the_edges_are_those_of_ieee_754(apply, op, dtype):
    """Zeros, infinities, NaN, negative numbers, one."""
    values = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, 1.0])
    expected = REFERENCE[op](values)
    if dtype is bfloat16:
        seen = from_bfloat16(apply(op, to_bfloat16(values), source=bfloat16))
        expected = from_bfloat16(to_bfloat16(expected))
    else:
        seen = apply(op, values.astype(dtype.numpy_name))
        expected = expected.astype(dtype.numpy_name)
    unit = 2.0**-7 if dtype is bfloat16 else np.finfo(seen.dtype).eps
    assert np.allclose(seen[5:], expected[5:], rtol=unit, atol=0, equal_nan=True)
    assert np.array_equal(seen[:5], expected[:5], equal_nan=True)


@pytest.mark.parametrize("op", ["exp", "log", "rsqrt", "sqrt"])
def test_a_float16_function_is_the_float32_one_rounded(apply, op):
    """All 65536 arguments; at most the neighbour of the correctly rounded value."""
    values = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    reference = {**REFERENCE, "sqrt": np.sqrt}[op]
    exact = reference(values.astype(np.float64))
    assert ulps(apply(op, values), exact) <= 0.501


def test_results_are_the_same_at_every_width(apply):
    """A lane's result does not depend on how many lanes there are."""
    values = np.random.default_rng(3).normal(0, 20, 131).astype(np.float32)
    for op in ("exp", "log", "rsqrt"):
        wide = apply(op, values, 16)
        for lanes in (1, 4, 32):
            assert np.array_equal(apply(op, values, lanes), wide, equal_nan=True)


def test_without_fused_multiply_add_the_functions_are_unsupported():
    """LLVM would call a library routine."""
    host = llvm.Host("x86_64-linux-gnu", "x86-64", frozenset({"sse2"}), 16)
    y = Buffer("y", float32, Const(1, INDEX), access="out")
    b = Builder()
    b.store(y, 0, b.let("exp", const(1.0, float32)))
    with pytest.raises(Unsupported, match="needs the CPU feature fma"):
        emit(b.kernel("k", [y]), host)
