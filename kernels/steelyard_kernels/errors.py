"""What can go wrong in the compiler core: a user's mistake, a limit, our own bug."""

from __future__ import annotations


class KernelError(Exception):
    """A user's mistake: one sentence that names it and ends with the next step."""


class Unsupported(KernelError):  # noqa: N818  # reads as the verdict it is
    """A legal program that this target, or this machine, cannot run."""


class CompilerBug(Exception):  # noqa: N818  # not the user's error: ours
    """A broken invariant of the compiler itself; never the user's fault.

    Deliberately no `KernelError`: code that reports a user's mistakes must not
    swallow one of ours.
    """
