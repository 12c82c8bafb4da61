import pickle
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard_kernels.dtypes import (
    ALL,
    STORED,
    bfloat16,
    bool_,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    of,
    promote,
    rounded,
    uint8,
    uint32,
    uint64,
    widens,
)
from steelyard_kernels.errors import KernelError


def nearest_bfloat16(value):
    """Round an exact number to bfloat16 bits by fractions: the oracle."""
    sign, size = (0x8000 if value < 0 else 0), abs(Fraction(value))
    low, high = 0, 0x7F80  # bits order like the numbers they mean
    while high - low > 1:
        middle = (low + high) // 2
        if _exactly(middle) <= size:
            low = middle
        else:
            high = middle
    below, above = size - _exactly(low), _exactly(high) - size
    up = above < below or (above == below and low % 2 == 1)
    return sign | (high if up else low)


def _exactly(bits):
    if bits == 0x7F80:  # where the next binade would start: overflow rounds there
        return Fraction(2) ** 128
    return Fraction(float(np.array([bits], np.uint16).view(bfloat16.numpy)[0]))


def bfloat16_bits(values):
    """Round numbers, and return the bits."""
    return rounded(values, bfloat16).view(np.uint16)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_a_name_a_numpy_dtype_and_itself_find_an_element_type(dtype):
    """Every spelling of an element type finds the one constant."""
    assert of(dtype.name) is dtype
    assert of(dtype) is dtype
    assert pickle.loads(pickle.dumps(dtype)) is dtype
    assert of(dtype.numpy) is dtype
    assert of(dtype.numpy.type) is dtype
    assert dtype.numpy.itemsize == dtype.bytes


@pytest.mark.parametrize("seen", ["float8_e4m3", "complex64", np.dtype(">f4"), None, 3])
def test_an_unknown_dtype_is_one_sentence_with_a_next_step(seen):
    """What is no element type is refused with the list of those that are."""
    with pytest.raises(KernelError, match=r"expected one of float16.*cast the array"):
        of(seen)


@pytest.mark.parametrize(
    ("a", "b", "both"),
    [
        (float16, bfloat16, float32),
        (float16, float32, float32),
        (bfloat16, float64, float64),
        (float16, float16, float16),
        (int32, int64, int64),
        (bool_, bool_, bool_),
        (uint8, uint32, uint32),
        (uint8, int8, int16),
        (uint32, int32, int64),
        (uint32, int64, int64),
        (float8_e5m2, float8_e5m2, float32),
        (float8_e4m3fn, float16, float32),
    ],
)
def test_dtypes_of_one_kind_promote_to_what_holds_both(a, b, both):
    """Promotion is the array API's and commutes."""
    assert promote(a, b) is both
    assert promote(b, a) is both


@pytest.mark.parametrize(("a", "b"), [(int32, float32), (bool_, int64), (uint64, int8)])
def test_dtypes_without_one_that_holds_both_do_not_mix(a, b):
    """The error names both dtypes."""
    with pytest.raises(KernelError, match=f"{a.name} and {b.name} do not mix"):
        promote(a, b)


@pytest.mark.parametrize(
    "dtype", [each for each in ALL if each.kind == "float"], ids=str
)
def test_the_limits_of_a_float_are_those_of_ml_dtypes(dtype):
    """Largest, smallest, and the distance from 1 to the next."""
    limits = ml_dtypes.finfo(dtype.numpy)
    assert dtype.largest == float(limits.max) == -dtype.smallest
    assert 2.0**dtype.least == float(limits.smallest_subnormal)
    assert 2.0 ** (1 - dtype.digits) == float(limits.eps)


@pytest.mark.parametrize("a", ALL, ids=str)
def test_what_widens_is_what_every_value_survives(a):
    """By trying: of up to two bytes all values, of more the ends and both their sides."""
    values = every_value(a)
    for b in set(ALL) - {a}:
        with np.errstate(all="ignore"):
            there = values.astype(b.numpy)
            same = there.astype(np.longdouble) == values.astype(np.longdouble)
        same |= np.isnan(values.astype(np.float64)) | (a is bool_) | (b is bool_)
        assert widens(a, b) == (bool(same.all()) and bool_ not in {a, b}), b


def every_value(dtype):
    """Return all finite values of a dtype, or those at which others end."""
    if dtype.bytes < 4:
        bits = np.arange(1 << 8 * dtype.bytes).astype(f"uint{8 * dtype.bytes}")
        values = (bits & 1).astype(bool) if dtype is bool_ else bits.view(dtype.numpy)
        with np.errstate(invalid="ignore"):  # NaN that signal
            return values[np.isfinite(values.astype(np.float64))]
    if dtype.kind == "int":
        ends = [n + s for k in (7, 8, 15, 16, 24, 31, 32, 53, 63) for n in (1 << k,)
                for s in (-1, 0, 1)]  # fmt: skip
        ends = [s * n for n in ends for s in (1, -1)]
        inside = [n for n in ends if dtype.smallest <= n <= dtype.largest]
        return np.array([*inside, dtype.largest, dtype.smallest], dtype.numpy)
    step = 1 + 2.0 ** (1 - dtype.digits)
    return np.array([0.5, step, dtype.largest, 2.0**dtype.least], dtype.numpy)


@given(st.floats(allow_nan=False))
def test_float64_rounds_to_bfloat16_once(value):
    """float64 is rounded by value, not by way of float32, as ml_dtypes would."""
    seen = bfloat16_bits(np.array([value]))[0]
    if np.isinf(value):
        assert seen == (0x7F80 if value > 0 else 0xFF80)
    elif value != 0:
        assert seen == nearest_bfloat16(value)


@given(st.integers(-(2**63), 2**64 - 1))
def test_integers_round_to_bfloat16_once(value):
    """An integer's lowest bit can decide a tie."""
    for kind in (np.int64, np.uint64):
        if np.iinfo(kind).min <= value <= np.iinfo(kind).max:
            seen = bfloat16_bits(np.array([value], kind))[0]
            assert seen == (nearest_bfloat16(value) if value else 0)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("kept", [0, 1, 0x7F, 0x80, 0x3F80, 0x3F81, 0x7F7E, 0x7F7F])
def test_ties_go_to_the_even_neighbour(kept, sign):
    """Just below, at and just above half way, float64 and float32 alike."""
    bits = np.array([kept << 16 | 0x7FFF, kept << 16 | 0x8000, kept << 16 | 0x8001])
    between = bits.astype(np.uint32).view(np.float32) * np.float32(sign)
    lifted = np.uint16(0x8000 if sign < 0 else 0)
    expected = np.array([kept, kept + kept % 2, kept + 1]) | lifted
    assert np.array_equal(bfloat16_bits(between), expected)
    assert np.array_equal(bfloat16_bits(between.astype(np.float64)), expected)


@pytest.mark.parametrize("dtype", STORED, ids=str)
def test_float64_rounds_to_float8_once(dtype):
    """All values, the middles between them, and both their neighbours."""
    bits = np.arange(256, dtype=np.uint8).view(dtype.numpy).astype(np.float64)
    values = np.unique(bits[np.isfinite(bits)])
    middles = (values[1:] + values[:-1]) / 2
    even = values.astype(dtype.numpy).view(np.uint8) % 2 == 0
    assert np.array_equal(rounded(values, dtype).astype(float), values)
    at_ties = np.where(even[1:], values[1:], values[:-1])
    assert np.array_equal(rounded(middles, dtype).astype(float), at_ties)
    for end, want in ((-np.inf, values[:-1]), (np.inf, values[1:])):
        beside = np.nextafter(middles, end)
        assert np.array_equal(rounded(beside, dtype).astype(float), want)
