"""What memory a process holds: the interpreter's, and what the C library handed out.

One reading is of the whole process, all threads together. LLVM takes its memory from the
C library, and so does the interpreter for what is larger than 512 bytes.
"""

from __future__ import annotations

import ctypes
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple


class Memory(NamedTuple):
    """Memory at one moment, in bytes but for the interpreter's `blocks`.

    `peak` is the most that the interpreter `held` since the reading before.
    """

    blocks: int = 0
    held: int = 0
    peak: int = 0
    heap: int = 0


class _Heap(ctypes.Structure):
    """``struct mallinfo2`` of malloc.h, glibc 2.33 and later."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


@cache
def _read_heap() -> Any:
    """Return what reads the C library's heap, None where it cannot say."""
    found = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if found is not None:
        found.restype = _Heap
    return found


@contextmanager
def traced() -> Iterator[None]:
    """Have the interpreter count its bytes, as `read` needs it: slow, while it lasts."""
    if tracemalloc.is_tracing():  # for somebody else, who ends it
        yield
        return
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def read() -> Memory:
    """Return what is held now; the next reading's peak begins here."""
    blocks = sys.getallocatedblocks()
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    heap = _read_heap()
    if heap is None:
        return Memory(blocks, held, peak)
    found = heap()
    return Memory(blocks, held, peak, found.uordblks + found.hblkhd)
