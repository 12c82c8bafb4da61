"""The commits of a branch, as git knows them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from steelyard.errors import SteelyardError
from steelyard.machine import git


def commits(branch: str, folder: Path) -> list[str]:
    """Return the commits of a branch and all before them, the oldest first.

    Raises:
        SteelyardError: git is missing, the folder is in no repository, or the
            repository has no such branch.
    """
    line = ("rev-list", "--reverse", "--topo-order", "--end-of-options", branch, "--")
    try:
        done = git.run(folder, *line)
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
