"""Commits of a checkout, their worktrees, and what changed since them.

Whoever uses a worktree holds its folder's lock (`scratch`). That of a process that is
gone is removed by the next gate. Submodules are taken from the checkout: nothing is
downloaded.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from steelyard.errors import SteelyardError
from steelyard.machine import git
from steelyard.process import scratch
from steelyard.process.origins import INSTALLED

PREFIX: Final = "steelyard-gate-"
TREE: Final = "tree"


def require_commit(ref: str, folder: Path) -> str:
    """Return the commit of a git ref.

    Raises:
        SteelyardError: there is none.
    """
    commit = commit_of(ref, folder)
    if commit is None:
        raise SteelyardError(
            f"{no_commit(ref, folder)}. Name a branch, tag or commit, or a stored run."
        )
    return commit


def no_commit(ref: str, folder: Path) -> str:
    """Say that a ref is none, and what brings it where the clone lacks commits."""
    shallow = git.output(folder, "rev-parse", "--is-shallow-repository")
    why = ", a shallow clone (`git fetch --unshallow` brings the rest)"
    if shallow is None:
        why = ", which git does not know (`git status` there says why)"
    elif shallow != "true":
        branch = git.output(folder, "branch", "--show-current")
        why = f", where branch {branch} is checked out" if branch else ""
    return f"baseline {ref!r} is no commit of {folder}{why}"


def name_of(ref: str, commit: str) -> str:
    """Return a ref with the commit it stands for, unless it says so itself."""
    return ref if commit.startswith(ref) else f"{ref} ({commit[:10]})"


def commit_of(ref: str, folder: Path) -> str | None:
    """Return the commit that git knows a ref as, if there is one."""
    if ref.startswith("-"):
        return None
    return git.output(folder, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")


@contextmanager
def worktree(root: Path, commit: str) -> Iterator[Path]:
    """Give a worktree of a commit, in a folder of its own, while the context lasts.

    Raises:
        SteelyardError: git makes none.
    """
    with scratch.folder(PREFIX) as folder:
        home = Path(folder)
        try:
            tree = home / TREE
            add = ("worktree", "add", "--detach", "--quiet", str(tree), commit)
            done = git.run(root, *add, seconds=None)
            if done.returncode:
                why = "".join(done.stderr.strip().splitlines()[-1:])
                raise SteelyardError(
                    f"git makes no worktree of {commit[:12]}: {why}. Mend that first."
                )
            fill(root, tree)
            yield tree
        finally:
            _remove(root, home)


def remove_left(root: Path) -> None:
    """Remove the worktrees of gates that were killed."""
    git.output(root, "worktree", "prune")
    listed = (git.output(root, "worktree", "list", "--porcelain") or "").splitlines()
    lines = [line for line in listed if line.startswith("worktree ")]
    known = [Path(line.removeprefix("worktree ")).parent for line in lines]
    # Killed before git knew of it, or by another checkout: not all are listed.
    every = {*scratch.homes(PREFIX), *(h for h in known if h.name.startswith(PREFIX))}
    for home in scratch.abandoned(every):
        _remove(root, home)


def _remove(root: Path, home: Path) -> None:
    git.output(root, "worktree", "remove", "--force", str(home / TREE))
    shutil.rmtree(home, ignore_errors=True)
    git.output(root, "worktree", "prune")


def bring(root: Path, tree: Path) -> None:
    """Bring what a checkout has and HEAD has not into a worktree of HEAD."""
    listed = git.output(root, "ls-files", "-z", "-m", "-o", "--exclude-standard") or ""
    staged = git.output(root, "diff", "-z", "--name-only", "HEAD") or ""
    for name in {*listed.split("\0"), *staged.split("\0")} - {""}:
        old, new = root / name, tree / name
        if old.is_file():
            new.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(old, new)
        elif not old.exists():
            new.unlink(missing_ok=True)
    for inner in update(root, tree):
        bring(*inner)


TIMEOUT: Final = 10
"""Seconds: an explanation is not worth more."""


COMPILED: Final = (
    *("pyx", "pxd", "c", "h", "cc", "cpp", "cxx", "hpp", "cu", "cuh"),
    *("ptx", "ll", "rs", "f", "f90"),
)
SOURCES: Final = (*COMPILED, "py", "toml", "cmake")
"""Endings of files that what is measured is made of, or built by."""


def changed(folder: Path, base: str) -> tuple[str, ...]:
    """Return the `SOURCES` that differ from ``base``, what is not committed among them.

    Nothing where git does not know: an explanation is less, never an error.
    """
    if base.startswith("-"):  # an option, not a commit
        return ()
    files = [f"*.{ending}" for ending in SOURCES]
    line = ("diff", "--name-only", "--no-renames", base, "--", *files)
    names = (git.output(folder, *line, seconds=TIMEOUT) or "").splitlines()
    return tuple(name for name in names if not is_test(name))


def stale(folder: Path, changes: Sequence[str]) -> str:
    """Name a library of a checkout that was built before a source of it changed."""
    sources = [name for name in changes if _is_compiled(folder / name)]
    written = {name: _written(folder / name) for name in sources}
    if not written:
        return ""
    last = max(written, key=written.__getitem__)
    listed = (git.output(folder, "ls-files", "-z", "-o", "--", "*.so") or "").split(
        "\0"
    )
    for name in filter(None, listed):
        old = _written(folder / name) < written[last]
        if old and not {*INSTALLED}.intersection(Path(name).parts):
            return (
                f"{name} of the checkout is older than {last}, which changed: if it is "
                "made of it, build the checkout and gate again"
            )
    return ""


def _is_compiled(file: Path) -> bool:
    """Tell whether a library may be made of a file; cffi's and setuptools' are Python."""
    if file.suffix != ".py":
        return file.suffix[1:] in COMPILED
    try:
        text = file.read_bytes()
    except OSError:
        return False
    return b"set_source(" in text or b"Extension(" in text


def _written(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def is_test(name: str) -> bool:
    """Say whether a file is a test: it makes nothing slower."""
    parts = Path(name).parts
    return "tests" in parts[:-1] or parts[-1].startswith("test_")


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
