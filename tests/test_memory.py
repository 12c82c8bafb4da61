import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard_device import memory

DTYPES = ["bool", "int8", "float16", "float32", "int64", "float64"]


@given(
    shape=st.lists(st.integers(0, 7), max_size=4).map(tuple),
    dtype=st.sampled_from(DTYPES),
    offset=st.integers(0, 63).map(lambda lines: lines * memory.LINE),
    margin=st.sampled_from([0, 64, 4096]),
)
def test_an_array_starts_where_it_is_told_to(shape, dtype, offset, margin):
    """Of any shape: contiguous, at its offset in a page, its margins its own."""
    array = memory.empty(shape, dtype, offset=offset, margin=margin)
    assert (array.shape, array.dtype) == (shape, dtype)
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert array.ctypes.data % 4096 == offset
    before = array.ctypes.data - array.base.ctypes.data
    assert before >= margin
    assert array.base.nbytes - before - array.nbytes >= margin


def test_a_scalar_has_one_element():
    """Shape () is one element, not none."""
    array = memory.empty((), "float32")
    array[...] = 3
    assert array.nbytes == 4
    assert array.item() == 3


def test_what_cannot_be_had_is_a_memory_error():
    """The caller knows the name of the buffer and says the sentence."""
    with pytest.raises((MemoryError, ValueError)):
        memory.empty((1 << 62,), np.uint8)
