"""A commit's files and its own environment, made once on each machine.

Both are kept under a name of the commit, its build command, the interpreter and the
platform; the commit has the lock file in it. They are locked while they are made and
while they are used, and the least recently used go.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

from platformdirs import user_cache_path

from steelyard.errors import UnjudgedError
from steelyard.gate import projects, sides
from steelyard.machine import children, files, git

KEPT: Final = 50
"""Environments of a machine; hard links make most of them small."""

READY: Final = "ready"
"""The file that is there once an environment is whole."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What a commit's code runs in."""

    tree: Path
    """Its files."""
    python: str
    variables: Mapping[str, str]
    """That let it import the harness of whoever made it, and its own code."""


def home() -> Path:
    """Return the folder of this user's environments and of all else of a fleet."""
    chosen = os.environ.get("STEELYARD_CACHE", "")
    kept = Path(chosen) if chosen not in {"", "off"} else user_cache_path("steelyard")
    made = kept / "fleet"
    made.mkdir(parents=True, exist_ok=True, mode=0o700)
    return made


@contextmanager
def made(
    repository: str, commit: str, build: str = "", *, files_only: bool = False
) -> Iterator[Environment]:
    """Give the environment of a commit, as long as the context lasts.

    ``repository`` is a path or URL that git can fetch from here; of ``files_only``
    nothing is built.

    Raises:
        UnjudgedError: there is no such commit, or it does not build.
    """
    parts = (commit, build, sys.version, platform.platform(), repository, files_only)
    key = blake2b(ascii(parts).encode(), digest_size=10).hexdigest()
    folder = home() / "environments" / key
    folder.mkdir(parents=True, exist_ok=True)
    # Whoever uses it shares the lock, and none remove it.
    with files.locked(folder.with_suffix(".lock"), fcntl.LOCK_SH) as lock:
        if not (folder / READY).exists():
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / READY).exists():
                _make(folder, _mirror(repository, commit), commit, build, files_only)
                (folder / READY).touch()
            fcntl.flock(lock, fcntl.LOCK_SH)
        os.utime(folder)
        _remove_old(folder.parent)
        yield _of(folder)


def _make(
    folder: Path,
    mirror: Path,
    commit: str,
    build: str,
    files_only: bool,  # as `made` has it
) -> None:
    """Make a worktree with what it takes to import its code."""
    shutil.rmtree(folder)  # what a killed one left
    folder.mkdir()
    tree, who = folder / "tree", f"commit {commit[:12]}"
    git.output(mirror, "worktree", "prune")
    add = ("worktree", "add", "--force", "--detach", "--quiet", str(tree), commit)
    done = git.run(mirror, *add, seconds=None)
    if done.returncode:
        why = "".join(done.stderr.strip().splitlines()[-1:])
        raise UnjudgedError(f"git makes no worktree of {commit[:12]}: {why}")
    if files_only:
        return
    if build:
        sides.run_build(build, tree, who)
    elif any((tree / name).exists() for name in projects.DECLARATIONS):
        _install(tree, who)
    python = tree / ".venv" / "bin" / "python"
    if python.exists():
        sides.lend_packages(python)
    sides.harness(folder)


def _install(tree: Path, who: str) -> None:
    """Install a project and what it depends on, as its lock file says if it has one."""
    uv = shutil.which("uv")
    if uv is None:
        raise UnjudgedError(
            f"{who} cannot be installed: there is no uv. Install it with pip install "
            "uv, or name a command in [tool.steelyard] build."
        )
    if (tree / "uv.lock").exists():
        lines = [[uv, "sync", "--frozen", "--quiet", "--python", sys.executable]]
    else:
        python = str(tree / ".venv" / "bin" / "python")
        lines = [
            [uv, "venv", "--quiet", "--python", sys.executable, str(tree / ".venv")],
            [uv, "pip", "install", "--quiet", "--python", python, "-e", str(tree)],
        ]
    unset = ("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT")
    known = {n: v for n, v in children.environment().items() if n not in unset}
    for line in lines:
        code, end = projects.built(line, tree, known)
        if code:
            raise UnjudgedError(
                f"{who} does not build: `{' '.join(line[:3])}` ended with {code}. Mend "
                f"it, or name a command in [tool.steelyard] build:\n{end}"
            )


def _of(folder: Path) -> Environment:
    tree = folder / "tree"
    own = tree / ".venv" / "bin" / "python"
    path = [
        str(folder / "harness"),
        *(str(p) for p in (tree / "src", tree) if p.is_dir()),
    ]
    variables = {"PYTHONPATH": os.pathsep.join(path)}
    return Environment(tree, str(own) if own.exists() else sys.executable, variables)


def _mirror(repository: str, commit: str) -> Path:
    """Return a copy of a repository that has a commit."""
    name = blake2b(repository.encode(), digest_size=10).hexdigest()
    place = home() / "repositories" / name
    place.parent.mkdir(parents=True, exist_ok=True)
    with files.locked(place.with_suffix(".lock")):
        if not place.exists():
            clone = ("clone", "--quiet", "--mirror", "--", repository, str(place))
            done = git.run(place.parent, *clone, seconds=None)
        elif git.output(place, "cat-file", "-e", commit) is None:
            done = git.run(place, "fetch", "--quiet", "--all", seconds=None)
        else:
            return place
    if done.returncode:
        why = "".join(done.stderr.strip().splitlines()[-1:])
        raise UnjudgedError(
            f"this machine cannot fetch {repository}: {why}. Name a repository that it "
            "can with --repository."
        )
    return place


def _remove_old(folder: Path) -> None:
    """Remove the least recently used environments that nobody uses."""
    every = sorted(
        (one for one in folder.iterdir() if one.is_dir()),
        key=lambda one: one.stat().st_mtime,
    )
    for old in every[:-KEPT]:
        alone = fcntl.LOCK_EX | fcntl.LOCK_NB
        with suppress(BlockingIOError), files.locked(old.with_suffix(".lock"), alone):
            shutil.rmtree(old, ignore_errors=True)
