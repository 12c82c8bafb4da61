"""Git, in a process that is not given the credentials of a store."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from steelyard.machine import children

SECONDS: Final = 60.0
"""After these git counts as not answering: a large tree on a slow disk takes seconds."""


def run(
    folder: Path, *arguments: str, seconds: float | None = SECONDS
) -> subprocess.CompletedProcess[str]:
    """Run git in a folder; names that are not UTF-8 have surrogates (PEP 383).

    Raises:
        OSError: there is no git.
        subprocess.TimeoutExpired: it takes longer than ``seconds``.
    """
    # Optional locks would write the index of a checkout that we only look at.
    return subprocess.run(
        ["git", "--no-optional-locks", "-C", str(folder), *arguments],  # noqa: S607
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        env=children.environment(),
        timeout=seconds,
        check=False,
    )


def output(
    folder: Path, *arguments: str, seconds: float | None = SECONDS
) -> str | None:
    """Return what git prints, or None where it fails, is missing or takes too long."""
    try:
        done = run(folder, *arguments, seconds=seconds)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.removesuffix("\n") if done.returncode == 0 else None
