"""The caches of this machine's processors, and how many bytes evict what they hold."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path

PRIVATE = 4
"""Times its second-level cache that a processor reads at least: those of one
third-level cache may be so many that a share of it leaves some of their own as it was."""


@functools.cache
def second() -> int:
    """Return the bytes of a core's second-level cache; 1 MiB where nobody says."""
    kilobytes = _said(min(os.sched_getaffinity(0)), "index2/size").removesuffix("K")
    return int(kilobytes) << 10 if kilobytes.isdigit() else 1 << 20


def last(processor: int) -> str:
    """Return which processors share this one's third-level cache; itself if unknown."""
    return _said(processor, "index3/shared_cpu_list") or str(processor)


def _said(processor: int, name: str) -> str:
    """Return what Linux says of a processor's cache; "" where it says nothing."""
    cache = Path(f"/sys/devices/system/cpu/cpu{processor}/cache")
    try:
        return (cache / name).read_text(encoding="ascii").strip()
    except OSError:
        return ""


def parts(nbytes: int, shared: Sequence[str]) -> list[tuple[int, int]]:
    """Return the first byte that each processor reads and the one behind its last.

    Processors of one of the ``shared`` caches read all ``nbytes`` together.
    """
    found = []
    for index, cache in enumerate(shared):
        share = -(-nbytes // (128 * shared.count(cache))) * 128
        share = min(nbytes, max(share, PRIVATE * second()))
        first = min(shared[:index].count(cache) * share, nbytes - share)
        found.append((first, first + share))
    return found
