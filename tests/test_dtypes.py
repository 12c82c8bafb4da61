import pickle
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard_kernels.dtypes import (
    ALL,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    from_bfloat16,
    int32,
    int64,
    of,
    promote,
    to_bfloat16,
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
    return Fraction(float(from_bfloat16(np.array([bits], np.uint16))[0]))


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_a_name_a_numpy_dtype_and_itself_find_an_element_type(dtype):
    """Every spelling of an element type finds the one constant."""
    assert of(dtype.name) is dtype
    assert of(dtype) is dtype
    assert pickle.loads(pickle.dumps(dtype)) is dtype
    if dtype is not bfloat16:
        assert of(np.dtype(dtype.numpy_name)) is dtype
        assert of(np.dtype(dtype.numpy_name).type) is dtype
    assert np.dtype(dtype.numpy_name).itemsize == dtype.bytes


@pytest.mark.parametrize("seen", [np.uint16, "complex64", np.dtype(">f4"), None, 3])
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
    ],
)
def test_dtypes_of_one_kind_promote_to_what_holds_both(a, b, both):
    """Promotion is the array API's and commutes."""
    assert promote(a, b) is both
    assert promote(b, a) is both


@pytest.mark.parametrize(("a", "b"), [(int32, float32), (bool_, int64)])
def test_dtypes_of_two_kinds_do_not_mix(a, b):
    """The error names both dtypes."""
    with pytest.raises(KernelError, match=f"{a.name} and {b.name} do not mix"):
        promote(a, b)


def test_every_bfloat16_survives_widening_and_rounding():
    """Widening is exact, so rounding gives the same bits; NaN turns quiet."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    wide = from_bfloat16(bits)
    nan = np.isnan(wide)
    assert np.array_equal(to_bfloat16(wide), np.where(nan, bits | 0x40, bits))
    with np.errstate(invalid="ignore"):
        doubled = to_bfloat16(wide.astype(np.float64))
    assert np.array_equal(doubled, np.where(nan, bits | 0x40, bits))


@given(st.floats(allow_nan=False))
def test_float64_rounds_to_bfloat16_once(value):
    """float64 is rounded by value, not by way of float32."""
    seen = to_bfloat16(np.array([value]))[0]
    if np.isinf(value):
        assert seen == (0x7F80 if value > 0 else 0xFF80)
    elif value != 0:
        assert seen == nearest_bfloat16(value)


@given(st.integers(-(2**63), 2**63 - 1))
def test_int64_rounds_to_bfloat16_once(value):
    """An integer's lowest bit can decide a tie."""
    seen = to_bfloat16(np.array([value], np.int64))[0]
    assert seen == (nearest_bfloat16(value) if value else 0)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("kept", [0, 1, 0x7F, 0x80, 0x3F80, 0x3F81, 0x7F7E, 0x7F7F])
def test_ties_go_to_the_even_neighbour(kept, sign):
    """Just below, at and just above half way, float64 and float32 alike."""
    bits = np.array([kept << 16 | 0x7FFF, kept << 16 | 0x8000, kept << 16 | 0x8001])
    between = bits.astype(np.uint32).view(np.float32) * np.float32(sign)
    lifted = np.uint16(0x8000 if sign < 0 else 0)
    expected = np.array([kept, kept + kept % 2, kept + 1]) | lifted
    assert np.array_equal(to_bfloat16(between), expected)
    assert np.array_equal(to_bfloat16(between.astype(np.float64)), expected)


def test_a_foreign_bfloat16_array_is_taken_as_it_is():
    """An array whose dtype calls itself bfloat16 is viewed as its bits."""
    bits = np.array([0x3F80, 0x4000], np.uint16)
    foreign = SimpleNamespace(dtype=SimpleNamespace(name="bfloat16"), view=bits.view)
    assert np.array_equal(to_bfloat16(foreign), bits)
