"""What is remembered within a process: machine code by the text it was made from.

A kernel object also remembers its builds by shapes and dtypes (`function`); that
lookup needs no tracing. Here, different shapes and kernels that come to the same text
share one binary.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from steelyard_device.cpu import Function


class Compiled(NamedTuple):
    """Machine code with the hash of its bytes, loaded."""

    code: bytes
    code_hash: str
    function: Function


@cache
def compiled() -> dict[str, Compiled]:
    """Return this process's binaries by LLVM IR text."""
    return {}
