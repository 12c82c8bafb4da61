"""Which files changed from a base to what is judged, by git."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from steelyard.machine import git

TIMEOUT: Final = 10
"""Seconds: an explanation is not worth more."""


def files(folder: Path, base: str) -> tuple[str, ...]:
    """Return the Python files that differ from ``base``, what is not committed among them.

    Nothing where git does not know: an explanation is less, never an error.
    """
    if base.startswith("-"):  # an option, not a commit
        return ()
    line = ("diff", "--name-only", "--no-renames", base, "--", "*.py")
    names = (git.output(folder, *line, seconds=TIMEOUT) or "").splitlines()
    return tuple(name for name in names if not is_test(name))


def is_test(name: str) -> bool:
    """Say whether a file is a test: it makes nothing slower."""
    parts = Path(name).parts
    return "tests" in parts[:-1] or parts[-1].startswith("test_")
