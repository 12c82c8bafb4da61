"""Host memory whose alignment and pages are chosen, not met by chance."""

from __future__ import annotations

import math
import mmap
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

LINE: Final = 64
"""Bytes of a cache line on every machine we run on."""

PAGE: Final = 4096
HUGE: Final = 2 << 20
"""Bytes of a huge page, as x86-64 has them and AArch64 with pages of 4 KiB."""

_MAPPING: Final = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) ", re.MULTILINE)
_IN_HUGE: Final = re.compile(r"^AnonHugePages:\s+(\d+) kB", re.MULTILINE)


def empty(
    shape: tuple[int, ...],
    dtype: DTypeLike,
    *,
    offset: int = 0,
    margin: int = 0,
    huge: bool = False,
) -> NDArray[Any]:
    """Return an uninitialised C-contiguous array that starts on a cache line.

    Its first byte lies ``offset`` bytes (a multiple of 64) past a 4096-byte page, so
    that several arrays can be kept from aliasing in the low address bits; ``margin``
    bytes before and after it belong to the same allocation, reachable as ``.base``.
    With ``huge`` an array of at least `HUGE` bytes has a mapping of its own, from its
    start to its end in huge pages where the system has them: that is worth its system
    calls for what is kept, and too dear for a result of each launch.

    Raises:
        MemoryError, ValueError: there is not as much.
    """
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    if huge and nbytes >= HUGE:
        raw, start = _mapped(nbytes + 2 * margin + PAGE + offset)
    else:
        raw, start = np.empty(nbytes + 2 * margin + PAGE + offset, np.uint8), 0
    first = -(raw.ctypes.data + start + margin) % PAGE + start + margin + offset
    # Not a slice: one of no bytes would start where raw does.
    return np.ndarray(shape, dtype, raw, first)


def _mapped(nbytes: int) -> tuple[NDArray[np.uint8], int]:
    """Return a mapping and where in it as many bytes begin that fill huge pages."""
    whole = -(-nbytes // HUGE) * HUGE
    try:
        mapping = mmap.mmap(
            -1, whole + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )
    except (OSError, OverflowError) as error:
        raise MemoryError(f"{nbytes} bytes cannot be mapped: {error}") from None
    raw = np.frombuffer(mapping, np.uint8)
    start = -raw.ctypes.data % HUGE
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            mapping.madvise(mmap.MADV_HUGEPAGE, start, whole)
        except OSError:  # a system without them: then in small ones
            return raw, start
    return raw, start


def in_huge_pages(arrays: Iterable[NDArray[Any]]) -> int | None:
    """Return how many bytes of huge pages the arrays of `HUGE` or more lie in.

    None where the system does not say. What shares a mapping with them counts up to as
    many pages as they would fill; what was never written has none.
    """
    large = [array for array in arrays if array.nbytes >= HUGE]
    if not large:  # the system takes 40 ms to say, 0.2 s of a large process
        return 0
    try:
        told = Path("/proc/self/smaps").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    starts = [array.ctypes.data for array in large]
    mappings = list(_MAPPING.finditer(told))
    ends = [one.start() for one in mappings[1:]] + [len(told)]
    total = 0
    for one, end in zip(mappings, ends, strict=True):
        low, high = int(one[1], 16), int(one[2], 16)
        seen = _IN_HUGE.search(told, one.end(), end)
        if seen and any(low <= start < high for start in starts):
            total += int(seen[1]) << 10
    return min(total, sum(_pages(array) for array in large) * HUGE)


def _pages(array: NDArray[Any]) -> int:
    """Return how many huge pages an array touches."""
    first = array.ctypes.data
    return (first + array.nbytes - 1) // HUGE - first // HUGE + 1
