"""What can go wrong when code is loaded and launched."""

from __future__ import annotations


class DeviceError(Exception):
    """A device refused something: what was asked, what it said, what to do."""


class Cancelled(DeviceError):  # noqa: N818 - what happened, by somebody's wish
    """A compilation was stopped at its time limit."""


class CompileError(DeviceError):
    """A compiler refused a program: its verdict on that text, the same each time."""


class LLVMError(CompileError):
    """LLVM rejected a program; the message is LLVM's own, with its line."""
