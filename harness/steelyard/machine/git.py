"""Git, in a process that is not given the credentials of a store."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from steelyard.errors import SteelyardError
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


def commits(branch: str, folder: Path) -> list[str]:
    """Return the commits of a branch and all before them, the oldest first.

    Raises:
        SteelyardError: git is missing, the folder is in no repository, or the
            repository has no such branch.
    """
    line = ("rev-list", "--reverse", "--topo-order", "--end-of-options", branch, "--")
    try:
        done = run(folder, *line)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SteelyardError(
            f"--branch {branch}: git does not list its commits ({error}). Name a tag of "
            "runs with --tag."
        ) from error
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no reason given"])[0]
        raise SteelyardError(
            f"--branch {branch}: git does not know it in {folder} ({why}). Name a branch "
            "of the repository you are in."
        )
    return done.stdout.split()
