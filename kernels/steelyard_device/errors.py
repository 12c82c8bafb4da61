"""What can go wrong when code is loaded and launched."""

from __future__ import annotations


class DeviceError(Exception):
    """A device refused something: what was asked, what it said, what to do."""


class LLVMError(DeviceError):
    """LLVM rejected a program; the message is LLVM's own, with its line."""
