"""The two sides of a gate: where their code lies and who runs it.

Head is what lies in the checkout, base is a commit in a git worktree of its own. Where
the project's sources are on the path, base's are there in the place of head's. Where it
was installed as a copy, or is native, both sides' sources are installed anew, each for
itself (`projects`), or by the command of ``[tool.steelyard] build``, which may make a
virtual environment ``.venv``. Both are driven by head's harness, and cases that differ
by head's suites: these are copied over base's, so that a kernel in them is not compared.
A process that imports other code of the project than its side's is refused.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Self

from steelyard.errors import UnjudgedError
from steelyard.gate import projects, worktrees
from steelyard.gate.outcome import BASE, HEAD
from steelyard.gate.projects import Project
from steelyard.machine import children, git
from steelyard.process.origins import Origins

HARNESS: Final = ("steelyard", "steelyard_device")
"""Packages that are head's on both sides."""

TUNED: Final = "STEELYARD_TUNED"
"""Emptied: what was tuned for one side's sources is not found by the other's."""

PADDING: Final = "STEELYARD_GATE_PADDING"
"""Text of a random length: where the stack lies depends on the environment's size, and
would tell two sides apart that are the same (Mytkowicz et al., ASPLOS 2009)."""


@dataclass(frozen=True, slots=True)
class Side:
    """Code to be measured, and what its workers are started with."""

    name: str
    root: Path
    """Of its sources."""
    below: Path = Path()
    """Where its processes start within."""
    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that its workers have beside ours."""
    commit: str = ""
    suites: tuple[tuple[Path, Path], ...] = ()
    """Where head's files and folders of suites lie on this side."""
    unbuilt: bool = False
    """Whether it is a commit of which nothing was built."""
    own: Path | None = None
    """Where its own sources were installed anew; None where they are on the path."""
    origins: Origins = field(default_factory=Origins)
    """Where its processes may import the project from."""

    @classmethod
    def head(cls, name: str = HEAD) -> Self:
        """Return the side of what lies in a checkout."""
        folder = Path.cwd()
        root = git.output(folder, "rev-parse", "--show-toplevel")
        commit = git.output(folder, "rev-parse", "HEAD") or ""
        home = Path(root) if root else folder
        return cls(name, home, folder.relative_to(home.resolve()), commit=commit)

    @classmethod
    @contextmanager
    def of_ref(
        cls,
        ref: str,
        places: Sequence[str] = (),
        build: str = "",
        files: Sequence[Path] = (),
        say: Callable[[str], object] = str,
    ) -> Iterator[Self]:
        """Give a commit's side as long as the context lasts.

        ``places`` are head's suites, and ``files`` those of them that define a
        benchmark; what lies within the checkout is measured as a copy. ``say`` is told
        of builds, which may take minutes.

        Raises:
            SteelyardError: there is no such commit.
            UnjudgedError: it does not build.
        """
        head = Side.head()
        commit = worktrees.require_commit(ref, head.root)
        worktrees.remove_left(head.root)
        project = projects.find(head.root)
        with worktrees.worktree(head.root, commit) as tree:
            python, own = _built(
                tree, build, project.folders, f"base {commit[:12]}", say
            )
            path = [*harness(tree.parent), *_path(head.root, tree, own)]
            variables = {
                "PYTHONPATH": os.pathsep.join(path),
                **_bytecode(tree.parent),
            }
            origins = _origins(
                BASE, project, tree, own, python=python, besides=path[:1]
            )
            yield cls(
                BASE,
                tree,
                head.below if (tree / head.below).is_dir() else Path(),
                python,
                variables,
                commit,
                _moved(head, tree, places, files),
                own is None and not build,
                own,
                replace(origins, avoided=(str(head.root),)),
            )

    @contextmanager
    def prepared(
        self, build: str = "", say: Callable[[str], object] = str
    ) -> Iterator[Self]:
        """Give this side with its own sources, as long as the context lasts.

        They are installed anew where what is installed is a copy of some commit's.

        Raises:
            UnjudgedError: they do not build.
        """
        project = projects.find(self.root)
        if not project.folders:
            places = os.pathsep.join(_path(self.root, self.root, None))
            yield replace(
                self,
                environment={"PYTHONPATH": places},
                origins=_origins(HEAD, project, self.root),
            )
            return
        worktrees.remove_left(self.root)
        with worktrees.worktree(self.root, "HEAD") as tree:
            worktrees.bring(self.root, tree)
            python, own = _built(tree, build, project.folders, HEAD, say)
            path = [*harness(tree.parent), *_path(self.root, self.root, own)]
            origins = _origins(
                HEAD, project, self.root, own, python=python, besides=path[:1]
            )
            yield replace(
                self,
                python=python,
                environment={"PYTHONPATH": os.pathsep.join(path)},
                own=own,
                origins=origins,
            )

    @property
    def folder(self) -> Path:
        """Where its processes start."""
        return self.root / self.below

    def beside(self, base: Side) -> Side:
        """Return this side with a path like base's, and bytecode where base has it.

        Python looks for what it imports, and for distributions, place by place: a side
        with fewer of them would build quicker.
        """
        places = base.environment["PYTHONPATH"].split(os.pathsep)
        own = [str(self._place_of(Path(place), base)) for place in places]
        path = {"PYTHONPATH": os.pathsep.join(own)}
        return replace(self, environment={**base.environment, **path})

    def _place_of(self, place: Path, base: Side) -> Path:
        if place == base.own and self.own:
            return self.own
        if base.root in (place, *place.parents):
            return self.root / place.relative_to(base.root)
        return place

    def path_of(self, path: Path) -> Path:
        """Return where one of head's files of suites lies on this side."""
        for old, new in self.suites:
            if path == old or old in path.parents:
                return new / path.relative_to(old)
        return path

    def has_suite(self, path: Path) -> bool:
        """Tell whether a file is one of head's suites that have a place on this side."""
        return self.path_of(path) != path

    def variables(self) -> dict[str, str]:
        """Return the whole environment of one worker, of a length of its own."""
        padding = "x" * random.randrange(4096)  # noqa: S311 # not a secret
        stated = self.origins.variable()
        own = {**self.environment, **stated, PADDING: padding, TUNED: ""}
        return self._led(children.environment()) | own

    def _led(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return variables whose paths lead to this side where they led to head's."""

        def led(text: str) -> str:
            for head in map(Path, self.origins.avoided):
                if head in (path := Path(text), *path.parents):
                    moved = self.root / path.relative_to(head)
                    return str(moved) if moved.exists() else text
            return text

        return {
            name: os.pathsep.join(map(led, value.split(os.pathsep)))
            for name, value in variables.items()
        }

    def install_suites(self) -> None:
        """Put head's suites where base's were."""
        for old, new in self.suites:
            _replace(old, new)


def _built(
    tree: Path,
    build: str,
    folders: Sequence[str],
    who: str,
    say: Callable[[str], object],
) -> tuple[str, Path | None]:
    """Build a side; return the interpreter that runs it, and where its code lies."""
    if build or folders:
        say(f"{who}: {f'building by `{build}`' if build else 'installing it anew'}")
    if build:
        run_build(build, tree, who)
        python = tree / ".venv" / "bin" / "python"
        if not python.exists():
            return sys.executable, None
        lend_packages(python)
        return str(python), None
    if not folders:
        return sys.executable, None
    own = tree.parent / "own"
    projects.install(tree, folders, own, who)
    return sys.executable, own


def run_build(build: str, tree: Path, who: str) -> None:
    """Run a project's own build command in a tree.

    Raises:
        UnjudgedError: it fails; the sentence has the end of its output.
    """
    variables = children.environment(STEELYARD_PYTHON=sys.executable)
    code, end = projects.built(["sh", "-c", build], tree, variables)
    if code:
        raise UnjudgedError(
            f"{who} does not build: `{build}` ended with {code} in the top folder of "
            f"its files. Mend it, or name another baseline. The end of its output:\n{end}"
        )


def _bytecode(home: Path) -> dict[str, str]:
    """Return variables that let both sides keep what Python compiles of sources.

    Where it is told not to, a worktree would compile all of them in each process, and a
    checkout only those that nobody ever ran: then both start with none, in ``home``.
    """
    if not os.environ.get("PYTHONDONTWRITEBYTECODE"):
        return {}
    kept = {"PYTHONPYCACHEPREFIX": str(home / "bytecode")}
    return {**kept, "PYTHONDONTWRITEBYTECODE": ""}


def lend_packages(python: Path) -> None:
    """Let a side's environment find what the harness needs, behind all that it has."""
    ours = [place for place in sys.path if place.endswith("site-packages")]
    for folder in installed(python):
        (folder / "zz-steelyard-gate.pth").write_text("\n".join(ours) + "\n")


def installed(python: Path) -> list[Path]:
    """Return where an environment's interpreter has what is installed."""
    return list(python.parents[1].glob("lib*/python*/site-packages"))


def _origins(
    name: str,
    project: Project,
    root: Path,
    own: Path | None = None,
    *,
    python: str = sys.executable,
    besides: Sequence[str] = (),
) -> Origins:
    """Return where a side's processes may import the project from."""
    places = [str(root), *besides]
    if own is not None:
        places.append(str(own))
    elif python != sys.executable:
        places += map(str, installed(Path(python)))
    names = [one for one in project.names if one.partition(".")[0] not in HARNESS]
    return Origins(
        names=tuple(names),
        places=tuple(places),
        wrong=f"{name} would run other code than its own. Install the project with "
        "pip install -e ., load libraries from beside its sources (no LD_LIBRARY_PATH, "
        "no full path), or name a command that builds an environment .venv in "
        "[tool.steelyard] build (docs/gate.md, What code each side imports).",
    )


def harness(home: Path) -> list[str]:
    """Return a folder that holds the packages that are head's on both sides."""
    overlay = home / "harness"
    overlay.mkdir()
    for name in HARNESS:
        module = sys.modules.get(name) or __import__(name)
        assert module.__file__ is not None
        (overlay / name).symlink_to(Path(module.__file__).resolve().parent)
    return [str(overlay)]


def _path(root: Path, tree: Path, own: Path | None) -> list[str]:
    """Return where a side's workers import from before anything that is installed."""
    found = [str(own)] if own else []
    for place in projects.path(root):
        if projects.is_own(root, place):
            moved = tree / place.relative_to(root)
            found += [str(moved)] if moved.is_dir() else []
        elif str(place) in os.environ.get("PYTHONPATH", "").split(os.pathsep):
            found.append(str(place))
    return list(dict.fromkeys(found))


def _moved(
    head: Side, tree: Path, places: Sequence[str], files: Sequence[Path]
) -> tuple[tuple[Path, Path], ...]:
    """Return the suites within the checkout, with their places in the worktree.

    Of the whole checkout, and of modules, the ``files`` are, which have benchmarks.
    """
    root = head.root.resolve()
    paths = [
        path for path in (Path(text).resolve() for text in places) if path.exists()
    ]
    inside = [path for path in paths if root in path.parents]
    own = [file for file in map(Path.resolve, files) if root in file.parents]
    inside += [f for f in own if not {f, *f.parents}.intersection(inside)]
    return tuple((path, tree / path.relative_to(root)) for path in inside)


def _replace(old: Path, new: Path) -> None:
    new.parent.mkdir(parents=True, exist_ok=True)
    if old.is_file():
        shutil.copy2(old, new)
        return
    shutil.rmtree(new, ignore_errors=True)
    skipped = shutil.ignore_patterns("__pycache__", ".*")
    shutil.copytree(old, new, ignore=skipped)
