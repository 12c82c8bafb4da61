"""Submodules of a gate's worktrees, taken from the checkout: nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

from steelyard.errors import SteelyardError
from steelyard.machine import git


def fill(root: Path, tree: Path) -> None:
    """Give a worktree the submodules that the checkout has, at the worktree's commits.

    Raises:
        SteelyardError: a submodule lacks the commit.
    """
    for name, commit in _recorded(tree):
        if (root / name / ".git").exists():
            _clone(root / name, tree / name, commit)
            fill(root / name, tree / name)


def update(root: Path, tree: Path) -> list[tuple[Path, Path]]:
    """Have submodules in a worktree of HEAD at the commits that the checkout's are at.

    Returns the folders of each, in the checkout and in the worktree.
    """
    found = []
    for name, _ in _recorded(root):
        head = git.output(root / name, "rev-parse", "HEAD")
        if (root / name / ".git").exists() and head is not None:
            _clone(root / name, tree / name, head)
            fill(root / name, tree / name)
            found.append((root / name, tree / name))
    return found


def _recorded(tree: Path) -> list[tuple[str, str]]:
    """Return the submodules that an index has, and the commit of each."""
    listed = (git.output(tree, "ls-files", "-z", "--stage") or "").split("\0")
    lines = [one.partition("\t") for one in listed if one.startswith("160000 ")]
    return [(name, words.split()[1]) for words, _, name in lines]


def _clone(source: Path, folder: Path, commit: str) -> None:
    if not (folder / ".git").exists():
        share = ("clone", "--quiet", "--shared", "--no-checkout")
        git.run(source, *share, str(source), str(folder), seconds=None)
    out = ("checkout", "--quiet", "--force", "--detach", commit)
    done = git.run(folder, *out, seconds=None)
    if done.returncode:
        raise SteelyardError(
            f"the submodule {source} has no commit {commit[:12]}. Bring it with "
            f"`git -C {source} fetch origin {commit}`."
        )
