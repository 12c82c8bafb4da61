"""Host memory whose alignment is chosen, not met by chance."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

LINE = 64
"""Bytes of a cache line on every machine we run on."""


def empty(
    shape: tuple[int, ...], dtype: DTypeLike, *, offset: int = 0, margin: int = 0
) -> NDArray[Any]:
    """Return an uninitialised C-contiguous array that starts on a cache line.

    Its first byte lies ``offset`` bytes (a multiple of 64) past a 4096-byte page, so
    that several arrays can be kept from aliasing in the low address bits; ``margin``
    bytes before and after it belong to the same allocation, reachable as ``.base``.
    """
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(nbytes + 2 * margin + 4096 + offset, np.uint8)
    first = -(raw.ctypes.data + margin) % 4096 + margin + offset
    # Not a slice: one of no bytes would start where raw does.
    return np.ndarray(shape, dtype, raw, first)
