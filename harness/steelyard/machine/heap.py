"""One policy for freed memory in every process that measures.

glibc moves the size from which it maps each block, and the free memory it keeps, with
what was freed before (M_MMAP_THRESHOLD in mallopt(3)). A case that allocates then takes
up to four times as long alone as after another case. Setting either value stops that.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
from pathlib import Path
from typing import Final

MAPPED: Final = 32 << 20
"""Bytes from which each block is mapped: where glibc's own moving value ends, so that
smaller blocks are reused as in a program that has run for long."""

KEPT: Final = -1
"""Never give free memory back: what is on top of the heap depends on earlier cases."""

OWN: Final = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
"""Variables by which a user has set the same (mallopt(3)); then theirs count."""

TUNABLES: Final = "GLIBC_TUNABLES"

_TRIM, _MMAP = -1, -3


@functools.cache
def fix() -> None:
    """Fix what this process's C library does with freed memory, once."""
    if not _glibc() or _users():
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_MMAP, MAPPED)
    libc.mallopt(_TRIM, KEPT)


def available() -> int:
    """Return the bytes that this process may take before others are swapped out."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    (found,) = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found) << 10


def policy() -> str:
    """Return what holds in processes that measure; ``unknown`` without glibc."""
    if not _glibc():
        return "unknown"
    return _users() or f"maps blocks from {MAPPED >> 20} MiB, never trims"


def _users() -> str:
    """Return what the environment says of it; nothing where it is silent."""
    found = {name: os.environ[name] for name in OWN if name in os.environ}
    tunables = os.environ.get(TUNABLES, "")
    if "mmap_threshold" in tunables or "trim_threshold" in tunables:
        found[TUNABLES] = tunables
    return " ".join(f"{name}={value}" for name, value in found.items())


def _glibc() -> bool:
    return platform.libc_ver()[0] == "glibc"
