from fractions import Fraction

import numpy as np
import pytest

from steelyard_device import llvm
from steelyard_kernels.dtypes import (
    ALL,
    bfloat16,
    float16,
    float32,
    float64,
    int32,
    int64,
    rounded,
)
from steelyard_kernels.emit.llvm import emit
from steelyard_kernels.errors import Unsupported
from steelyard_kernels.ir.builder import Builder
from steelyard_kernels.ir.loops import INDEX, Buffer, Const

EVERY_HALF = np.arange(1 << 16, dtype=np.uint16)
EVERY_BFLOAT16 = EVERY_HALF.view(bfloat16.numpy)
RANDOM = np.random.default_rng(20261120)
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in cast")


@pytest.fixture
def cast(elementwise):
    """Cast an array to an element type."""

    def run(array, target, lanes=16):
        return elementwise(lambda b, x: b.cast(x, target), [array], target, lanes)

    return run


def same_floats(a, b):
    """Say whether two float arrays agree, NaN with NaN, zeros by sign."""
    assert a.dtype == b.dtype
    a, b = (x.astype(np.float64) for x in (a, b))
    equal = (a == b) & (np.signbit(a) == np.signbit(b))
    return np.all(equal | (np.isnan(a) & np.isnan(b)))


def half_ties(dtype):
    """Every half number, its tie with the next, and those ties' neighbours."""
    wide = (EVERY_HALF[:0x7C01] if dtype is float16 else EVERY_HALF[:0x7F81]).copy()
    if dtype is float16:
        edges = wide.view(np.float16).astype(np.float64)
        edges[-1] = 2.0**16  # where the next binade would start
    else:
        edges = wide.view(bfloat16.numpy).astype(np.float64)
        edges[-1] = 2.0**128
    ties = (edges[1:] + edges[:-1]) / 2
    positive = np.concatenate([edges, ties])
    return np.concatenate([positive, -positive])


@pytest.mark.parametrize("target", [float32, float64], ids=str)
def test_every_float16_widens_exactly(cast, target):
    """All 65536 patterns, NaN staying NaN."""
    halves = EVERY_HALF.view(np.float16)
    assert same_floats(cast(halves, target), halves.astype(target.numpy))


@pytest.mark.parametrize("target", [float32, float64], ids=str)
def test_every_bfloat16_widens_exactly(cast, target):
    """All 65536 patterns, denormals kept, NaN staying NaN."""
    seen = cast(EVERY_BFLOAT16, target)
    assert same_floats(seen, EVERY_BFLOAT16.astype(target.numpy))


@pytest.mark.parametrize("source", [float32, float64], ids=str)
def test_float16_rounds_like_numpy_everywhere(cast, source):
    """Random bit patterns, every half number, every tie and its neighbours."""
    name = source.numpy
    ties = half_ties(float16).astype(name)
    words = RANDOM.integers(0, 256, (1 << 20) * source.bytes, np.uint8).view(name)
    scaled = RANDOM.normal(0, 1e3, 1 << 18).astype(name)
    near = [np.nextafter(ties, side, dtype=name) for side in (np.inf, -np.inf)]
    values = np.concatenate([words, scaled, ties, *near]).astype(name)
    assert same_floats(cast(values, float16), values.astype(np.float16))


@pytest.mark.parametrize("source", [float32, float64], ids=str)
def test_bfloat16_rounds_like_the_oracle_everywhere(cast, source):
    """Random bit patterns, every half number, every tie and its neighbours."""
    name = source.numpy
    ties = half_ties(bfloat16).astype(name)
    words = RANDOM.integers(0, 256, (1 << 20) * source.bytes, np.uint8).view(name)
    scaled = RANDOM.normal(0, 1e3, 1 << 18).astype(name)
    near = [np.nextafter(ties, side, dtype=name) for side in (np.inf, -np.inf)]
    values = np.concatenate([words, scaled, ties, *near]).astype(name)
    seen = cast(values, bfloat16)
    assert same_floats(seen, rounded(values, bfloat16))
    bits = seen.view(np.uint16)[words.size :].tolist()
    exact = set(zip(scaled[:99], bits, strict=False))
    assert all(_is_nearest_bfloat16(x, bits) for x, bits in exact)


def _is_nearest_bfloat16(value, bits):
    """Check by fractions that no other bfloat16 is nearer."""
    around = np.array([bits - 1, bits, bits + 1], np.uint16)
    size = abs(Fraction(float(value)))
    away = [abs(abs(Fraction(float(x))) - size) for x in around.view(bfloat16.numpy)]
    return away[1] <= min(away[0], away[2])


def test_double_rounding_is_avoided(cast):
    """float64 values whose rounding to float32 lands on a half type's tie."""
    tiny = 2.0**-40
    values = np.array([1 + 2.0**-11 + tiny, 1 + 2.0**-11 - tiny, -1 - 2.0**-11 - tiny])
    assert np.array_equal(cast(values, float16), values.astype(np.float16))
    values = np.array([1 + 2.0**-8 + tiny, 1 + 2.0**-8 - tiny, 1 + 2.0**-8])
    bits = cast(values, bfloat16).view(np.uint16)
    assert bits.tolist() == [0x3F81, 0x3F80, 0x3F80]


@pytest.mark.parametrize("source", [int32, int64], ids=str)
def test_integers_round_to_half_types_once(cast, source):
    """Ties decided by an integer's last bit, and the ends of its range."""
    bound = np.iinfo(source.numpy)
    edges = [0, 1, -1, 65519, 65520, -65520, 2049, 2051, bound.min, bound.max]
    ties = [(257 << s) + d for s in range(source.bytes * 8 - 10) for d in (-1, 0, 1)]
    random = RANDOM.integers(bound.min, bound.max, 1 << 12, source.numpy)
    shifted = random >> RANDOM.integers(0, source.bytes * 8 - 2, random.size)
    values = np.concatenate(
        [np.array(x, source.numpy) for x in (edges, ties, random, shifted)]
    )
    by_value = [np.float64(np.clip(x, -70000, 70000)) for x in values]
    with np.errstate(over="ignore"):
        expected = np.array(by_value).astype(np.float16)
    assert same_floats(cast(values, float16), expected)
    assert np.array_equal(cast(values, bfloat16), rounded(values, bfloat16))


def test_the_half_types_convert_into_each_other_with_one_rounding(cast):
    """By way of float32, which holds both exactly."""
    halves = EVERY_HALF.view(np.float16)
    assert same_floats(cast(halves, bfloat16), rounded(halves, bfloat16))
    expected = rounded(EVERY_BFLOAT16, float16)
    assert same_floats(cast(EVERY_BFLOAT16, float16), expected)


def test_float64_rounds_to_float32_like_numpy(cast):
    """Overflow, denormals and NaN among random patterns."""
    values = RANDOM.integers(0, 256, 8 << 16, np.uint8).view(np.float64)
    values = np.concatenate([values, np.geomspace(1e-46, 1e39, 9999)])
    assert same_floats(cast(values, float32), values.astype(np.float32))


@pytest.mark.parametrize("lanes", [1, 2, 64])
def test_conversions_hold_at_every_width(cast, lanes):
    """Scalars, and vectors of less and more than a register."""
    values = RANDOM.normal(0, 1, 131).astype(np.float32)
    for target in ALL:
        given = np.abs(values) if target.family == "uint" else values
        seen = cast(given, target, lanes=lanes)
        assert np.array_equal(seen, rounded(given, target))
    assert same_floats(
        cast(values.astype(np.float64), float16, lanes=lanes), values.astype(np.float16)
    )


def test_float16_without_its_instructions_is_unsupported():
    """LLVM would call a library routine that is not there."""
    host = llvm.Host("x86_64-linux-gnu", "x86-64", frozenset({"sse2"}), 16)
    x = Buffer("x", float16, Const(1, INDEX), access="inout")
    b = Builder()
    value = b.load(x, 0)
    b.store(x, 0, b.let("add", value, value))
    with pytest.raises(Unsupported, match="float16 needs the CPU feature f16c"):
        emit(b.kernel("k", [x]), host)


def test_float64_needs_no_casts_to_be_itself(cast):
    """A cast to the value's own dtype keeps every bit."""
    values = RANDOM.integers(0, 2**63 - 1, 99).view(np.float64)
    seen = cast(values, float64)
    assert np.array_equal(seen.view(np.int64), values.view(np.int64))
