import errno
import mmap
from pathlib import Path

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
    huge=st.sampled_from([None, 0, 1, 5]),
)
def test_an_array_starts_where_it_is_told_to(shape, dtype, offset, margin, huge):
    """Of any shape: contiguous, at its offset in a page, its margins its own."""
    if huge is not None:  # so many bytes more than fill a huge page
        shape, dtype = (memory.HUGE + huge,), np.int8
    asked = {"offset": offset, "margin": margin}
    array = memory.empty(shape, dtype, **asked, huge=huge is not None)
    assert (array.shape, array.dtype) == (shape, dtype)
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert array.ctypes.data % 4096 == offset
    before = array.ctypes.data - array.base.ctypes.data
    assert before >= margin
    assert array.base.nbytes - before - array.nbytes >= margin


def test_what_cannot_be_had_is_a_memory_error():
    """The caller knows the name of the buffer and says the sentence."""
    with pytest.raises((MemoryError, ValueError)):
        memory.empty((1 << 62,), np.uint8)


def has_huge_pages():
    """Say whether the system gives huge pages to who asks."""
    chosen = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return chosen.exists() and "[never]" not in chosen.read_text()


@pytest.mark.skipif(not has_huge_pages(), reason="the system gives no huge pages")
@pytest.mark.parametrize("pages", [1, 3])
def test_a_large_array_lies_in_huge_pages_from_start_to_end(pages):
    """Once it was written to; the margins may lie in one more."""
    nbytes = pages * memory.HUGE
    array = memory.empty((nbytes,), np.uint8, offset=576, margin=4096, huge=True)
    assert memory.in_huge_pages([array]) == 0
    array.fill(1)
    assert memory.in_huge_pages([array]) == nbytes + memory.HUGE
    assert memory.in_huge_pages([array, array[:5]]) == nbytes + memory.HUGE


def test_small_arrays_lie_in_no_huge_page_of_their_own(monkeypatch):
    """None is asked for, and the system need not be asked."""
    array = memory.empty((memory.HUGE - 1,), np.uint8, huge=True)
    array.fill(1)
    monkeypatch.setattr(Path, "read_text", None)
    assert memory.in_huge_pages([array]) == 0
    assert memory.in_huge_pages([]) == 0


def test_a_system_without_huge_pages_gives_small_ones(monkeypatch):
    """Nobody who asks is refused for it; how many there are is then not known."""

    class Refusing(mmap.mmap):
        def madvise(self, *_):
            raise OSError(errno.EINVAL, "no such advice")

    monkeypatch.setattr(mmap, "mmap", Refusing)
    array = memory.empty((memory.HUGE,), np.uint8, huge=True)
    array.fill(7)
    assert array.min() == 7

    def unreadable(*_, **__):
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", unreadable)
    assert memory.in_huge_pages([array]) is None


def test_memory_that_is_not_there_is_a_memory_error():
    """Also where it would be mapped."""
    with pytest.raises(MemoryError, match="cannot be mapped"):
        memory.empty((1 << 62,), np.uint8, huge=True)
