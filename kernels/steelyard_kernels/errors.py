"""What can go wrong in the compiler core: a user's mistake, a limit, our own bug."""

from __future__ import annotations

from pathlib import Path
from traceback import extract_tb
from typing import Final

from steelyard_device.errors import DeviceError

OURS: Final = str(Path(__file__).parents[1] / "steelyard_")
"""How the files of our packages begin."""


class KernelError(Exception):
    """A user's mistake: one sentence that names it and ends with the next step."""


class Unsupported(KernelError):  # noqa: N818  # reads as the verdict it is
    """A legal program that this target, or this machine, cannot run."""


class OutOfBounds(KernelError, OverflowError):  # noqa: N818 - as Unsupported
    """A Python integer that its array's dtype has not, as NumPy 2 refuses it."""


class CompilerBug(Exception):  # noqa: N818  # not the user's error: ours
    """A broken invariant of the compiler itself; never the user's fault.

    Deliberately no `KernelError`: code that reports a user's mistakes must not
    swallow one of ours.
    """


def sentence(error: BaseException) -> str:
    """Return what an error says; with its type and place if it is not one of ours.

    The place is the last in the file of a kernel's function, which raised it or called
    what did.
    """
    if isinstance(error, (KernelError, DeviceError, CompilerBug)):
        return str(error)
    frames = extract_tb(error.__traceback__)
    users = [frame for frame in frames if not frame.filename.startswith(OURS)]
    users = [frame for frame in users if frame.filename == users[0].filename]
    where = [f" ({f.filename}:{f.lineno})" for f in (users or frames)[-1:]]
    said = " ".join(str(error).split())
    return ": ".join(filter(None, [type(error).__name__, said])) + "".join(where)
