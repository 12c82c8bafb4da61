"""The two sides of a gate: where their code lies and who runs it.

Head is what lies in the checkout, run by this interpreter. Base is a commit in a git
worktree of its own; there the command of ``[tool.steelyard] build`` may make a virtual
environment ``.venv``, otherwise this interpreter runs it with base's sources in the
place of head's. Both are driven by head's harness, and by head's suites: they are
copied over base's, so that what is measured should not lie in a folder of suites.

A worktree says whose it is. That of a process that is gone is removed by the next gate.
"""

from __future__ import annotations

import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Self

from steelyard import discovery
from steelyard.errors import SteelyardError
from steelyard.gate.outcome import BASE, HEAD
from steelyard.processes import scratch
from steelyard.processes.origins import Origins

BUILD_SECONDS: Final = 3600.0
"""A build that takes longer hangs."""

LOG_LINES: Final = 20
"""Of a failed build's output, shown."""

PREFIX: Final = "steelyard-gate-"
OWNER: Final = scratch.OWNER
TREE: Final = "tree"

HARNESS: Final = ("steelyard", "steelyard_device")
"""Packages that are head's on both sides."""

PADDING: Final = "STEELYARD_GATE_PADDING"
"""Text of a random length: where the stack lies depends on the environment's size, and
would tell two sides apart that are the same (Mytkowicz et al., ASPLOS 2009)."""


@dataclass(frozen=True, slots=True)
class Side:
    """Code to be weighed, and what its workers are started with."""

    name: str
    root: Path
    """Of its sources."""
    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that its workers have beside ours."""
    commit: str = ""
    suites: tuple[tuple[Path, Path], ...] = ()
    """Where head's files and folders of suites lie on this side."""

    @classmethod
    def head(cls, name: str = HEAD, folder: Path | None = None) -> Self:
        """Return the side of what lies in a checkout."""
        folder = folder or Path.cwd()
        root = _git(folder, "rev-parse", "--show-toplevel")
        commit = _git(folder, "rev-parse", "HEAD") or ""
        return cls(name, Path(root) if root else folder, commit=commit)

    @classmethod
    @contextmanager
    def of_ref(
        cls,
        ref: str,
        places: Sequence[str] = (),
        build: str = "",
        folder: Path | None = None,
    ) -> Iterator[Self]:
        """Give a commit's side as long as the context lasts.

        ``places`` are head's suites; those within the checkout are measured as copies.

        Raises:
            SteelyardError: there is no such commit, or it does not build.
        """
        head = Side.head(folder=folder)
        commit = require_commit(ref, head.root)
        remove_left(head.root)
        with _worktree(head.root, commit) as tree:
            python = _built(tree, build, commit)
            variables = {
                "PYTHONPATH": os.pathsep.join(_path(head.root, tree)),
                **_origins(tree, head.root).variable(),
                **_bytecode(tree.parent),
            }
            yield cls(BASE, tree, python, variables, commit, _moved(head, tree, places))

    def beside(self, base: Side) -> Side:
        """Return this side with a path like base's, and bytecode where base has it.

        Python looks for what it imports, and for distributions, place by place: a side
        with fewer of them would build quicker.
        """
        places = [
            Path(place) for place in base.environment["PYTHONPATH"].split(os.pathsep)
        ]
        own = [
            self.root / place.relative_to(base.root)
            if base.root in (place, *place.parents)
            else place
            for place in places
        ]
        path = {"PYTHONPATH": os.pathsep.join(map(str, own))}
        variables = {**base.environment, **path, **Origins().variable()}
        return replace(self, environment=variables)

    def path_of(self, path: Path) -> Path:
        """Return where one of head's files of suites lies on this side."""
        for old, new in self.suites:
            if path == old or old in path.parents:
                return new / path.relative_to(old)
        return path

    def variables(self) -> dict[str, str]:
        """Return the whole environment of one worker, of a length of its own."""
        padding = "x" * random.randrange(4096)  # noqa: S311 # not a secret
        return {**os.environ, **self.environment, PADDING: padding}

    def install_suites(self) -> None:
        """Put head's suites where base's were."""
        for old, new in self.suites:
            _replace(old, new)


def require_commit(ref: str, folder: Path) -> str:
    """Return the commit of a git ref.

    Raises:
        SteelyardError: there is none.
    """
    commit = commit_of(ref, folder)
    if commit is None:
        raise SteelyardError(
            f"baseline {ref!r} is no commit of {folder}. Name a branch, tag or commit "
            "(fetch it first in a shallow clone), or a stored run."
        )
    return commit


def name_of(ref: str, commit: str) -> str:
    """Return a ref with the commit it stands for, unless it says so itself."""
    return ref if commit.startswith(ref) else f"{ref} ({commit[:10]})"


def commit_of(ref: str, folder: Path) -> str | None:
    """Return the commit that git knows a ref as, if there is one."""
    if ref.startswith("-"):
        return None
    return _git(folder, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")


def _git(folder: Path, *arguments: str) -> str | None:
    """Return what git prints, or None where it fails or is not there."""
    line = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(line, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@contextmanager
def _worktree(root: Path, commit: str) -> Iterator[Path]:
    home = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        scratch.sign(home)
        tree = home / TREE
        line = ["git", "-C", str(root), "worktree", "add", "--detach", "--quiet"]
        done = subprocess.run(
            [*line, str(tree), commit], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SteelyardError(
                f"git makes no worktree of {commit[:12]}: {_tail(done.stderr, 1)}. "
                "Mend that first."
            )
        yield tree
    finally:
        _remove(root, home)


def remove_left(root: Path) -> None:
    """Remove the worktrees of gates that were killed."""
    _git(root, "worktree", "prune")
    listed = (_git(root, "worktree", "list", "--porcelain") or "").splitlines()
    lines = [line for line in listed if line.startswith("worktree ")]
    for home in [Path(line.removeprefix("worktree ")).parent for line in lines]:
        if home.name.startswith(PREFIX) and scratch.abandoned(home):
            _remove(root, home)
    for home in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        # Killed before git knew of it, or by another checkout.
        if scratch.abandoned(home):
            shutil.rmtree(home, ignore_errors=True)


def _remove(root: Path, home: Path) -> None:
    _git(root, "worktree", "remove", "--force", str(home / TREE))
    shutil.rmtree(home, ignore_errors=True)
    _git(root, "worktree", "prune")


def _built(tree: Path, build: str, commit: str) -> str:
    """Build a commit and return the interpreter that runs it."""
    if not build:
        return sys.executable
    log = tree.parent / "build.log"
    variables = {**os.environ, "STEELYARD_PYTHON": sys.executable}
    with log.open("w") as output:
        try:
            code = subprocess.run(
                shlex.split(build),
                cwd=tree,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=BUILD_SECONDS,
                check=False,
            ).returncode
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            code, _ = 1, output.write(f"{error}\n")
    if code:
        raise SteelyardError(
            f"base {commit[:12]} does not build: `{build}` ended with {code}. Mend it, "
            f"or name another baseline. The end of its output:\n"
            f"{_tail(log.read_text(errors='replace'), LOG_LINES)}"
        )
    python = tree / ".venv" / "bin" / "python"
    if not python.exists():
        return sys.executable
    _lend_packages(python)
    return str(python)


def _bytecode(home: Path) -> dict[str, str]:
    """Return variables that let both sides keep what Python compiles of sources.

    Where it is told not to, a worktree would compile all of them in each process, and a
    checkout only those that nobody ever ran: then both start with none, in ``home``.
    """
    if not os.environ.get("PYTHONDONTWRITEBYTECODE"):
        return {}
    kept = {"PYTHONPYCACHEPREFIX": str(home / "bytecode")}
    return {**kept, "PYTHONDONTWRITEBYTECODE": ""}


def _lend_packages(python: Path) -> None:
    """Let base's environment find what the harness needs, behind all that it has."""
    ours = [place for place in sys.path if place.endswith("site-packages")]
    for folder in python.parents[1].glob("lib*/python*/site-packages"):
        (folder / "zz-steelyard-gate.pth").write_text("\n".join(ours) + "\n")


def _origins(tree: Path, other: Path) -> Origins:
    return Origins(
        places=(str(tree),),
        avoided=(str(other),),
        wrong="base would run head's code. Name a command that builds an environment "
        ".venv of its own in [tool.steelyard] build.",
    )


def _path(root: Path, tree: Path) -> list[str]:
    """Return where base's workers import from before anything that is installed."""
    overlay = tree.parent / "harness"
    overlay.mkdir()
    for name in HARNESS:
        module = sys.modules.get(name) or __import__(name)
        assert module.__file__ is not None
        (overlay / name).symlink_to(Path(module.__file__).resolve().parent)
    found = [str(overlay)]
    for entry in sys.path:
        place = Path(entry or ".").absolute()
        if place == root or root in place.parents:
            moved = tree / place.relative_to(root)
            found += [str(moved)] if moved.is_dir() else []
        elif str(place) in os.environ.get("PYTHONPATH", "").split(os.pathsep):
            found.append(str(place))
    return list(dict.fromkeys(found))


def _moved(
    head: Side, tree: Path, places: Sequence[str]
) -> tuple[tuple[Path, Path], ...]:
    """Return the suites within the checkout, with their places in the worktree.

    Of a place that is the whole checkout the files with benchmarks are.
    """
    found: dict[Path, Path] = {}
    root = head.root.resolve()
    for text in places:
        path = Path(text).resolve()
        if path == root:
            files = {one.path.resolve() for one in discovery.discover([text])}
            found |= {file: tree / file.relative_to(root) for file in files}
        elif path.exists() and root in path.parents:
            found[path] = tree / path.relative_to(root)
    return tuple(found.items())


def _replace(old: Path, new: Path) -> None:
    new.parent.mkdir(parents=True, exist_ok=True)
    if old.is_file():
        shutil.copy2(old, new)
        return
    shutil.rmtree(new, ignore_errors=True)
    skipped = shutil.ignore_patterns("__pycache__", ".*")
    shutil.copytree(old, new, ignore=skipped)


def _tail(text: str, lines: int) -> str:
    return "\n".join(text.strip().splitlines()[-lines:])
