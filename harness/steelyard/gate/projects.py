"""Which of what is installed is the checkout's own, and how a side gets its own of it.

Sources that are imported from the checkout, installed editable or not at all, need no
building: a side has its own in their place. What ``pip install .`` copied is the code
of some commit, whichever it was; native code is built from sources that lie elsewhere.
Of such projects each side's sources are installed anew, into a folder that comes before
everything that is installed; nothing else is installed again.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Iterator, Mapping, Sequence
from configparser import ConfigParser
from configparser import Error as ConfigError
from dataclasses import dataclass, field
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from steelyard.errors import UnjudgedError
from steelyard.machine import children, git
from steelyard.process.origins import INSTALLED

SECONDS: Final = 3600.0
"""A build that takes longer hangs."""

LOG_LINES: Final = 20
"""Of a failed build's output, shown."""

UNPACKAGED: Final = frozenset(
    {"tests", "test", "testing", "docs", "doc", "examples", "example", "benchmarks"}
    | {"benchmark", "bench", "asv_bench", "suites", "scripts", "tools", "ci", "build"}
    | {"dist", "setup", "conftest", "noxfile", "tasks", "__main__"}
)
"""What lies beside a package in many checkouts, and also in some distributions."""

DECLARATIONS: Final = ("pyproject.toml", "setup.py", "setup.cfg")


@dataclass(frozen=True, slots=True)
class Project:
    """What a checkout provides."""

    names: tuple[str, ...] = ()
    """Its modules and packages by their dotted names, each the first that is no
    namespace."""
    folders: tuple[str, ...] = ()
    """Of its distributions that each side needs its own of, from the checkout's root."""


@dataclass(slots=True)
class _Found:
    root: Path
    files: frozenset[str]
    """What git tracks, or would."""
    folders: dict[str, str]
    """The folders of distributions with their names, as far as these are known."""
    names: dict[str, str | None] = field(default_factory=dict)
    """What may be imported, with the folder of its distribution."""
    needed: set[str] = field(default_factory=set)


def find(root: Path) -> Project:
    """Look for a checkout's own distributions and code in what is installed here."""
    files = frozenset(_listed(root))
    found = _Found(root, files, _declared(root, files))
    own = [_relative(root, place) for place in path(root) if is_own(root, place)]
    for folder in sorted(found.folders or [""], key=len, reverse=True):
        below = [
            one for one in own if one == folder or one.startswith(_join(folder, ""))
        ]
        for name in _provided(files, [folder, _join(folder, "src"), *below]):
            found.names.setdefault(name, folder if found.folders else None)
    for one in metadata.distributions():
        _look_at(found, one)
    names = [n for n in found.names if n.partition(".")[0] not in UNPACKAGED]
    for name in names:
        folder_of = found.names[name]
        if folder_of is not None and _is_installed(root, name):
            found.needed.add(folder_of)
    return Project(tuple(sorted(names)), tuple(sorted(found.needed)))


def _listed(root: Path) -> list[str]:
    listed = git.output(root, "ls-files", "-z", "-c", "-o", "--exclude-standard")
    return (listed or "").split("\0")[:-1]


def _declared(root: Path, files: frozenset[str]) -> dict[str, str]:
    """Return the folders that pip could install, with the names of distributions."""
    found: dict[str, str] = {}
    for file in sorted(files):
        at = PurePosixPath(file)
        if at.name in DECLARATIONS and not UNPACKAGED.intersection(at.parent.parts):
            name = _name(root / file)
            folder = "" if at.parent == PurePosixPath() else str(at.parent)
            if name is not None and not found.get(folder):
                found[folder] = name
    return found


def _name(file: Path) -> str | None:
    """Return the name that a file declares, "" for an unknown one, None for no project."""
    try:
        if file.name == "setup.py":
            return ""
        if file.name == "setup.cfg":
            parser = ConfigParser(interpolation=None)
            parser.read_string(file.read_text(encoding="utf-8"))
            name = parser.get("metadata", "name", fallback="")
            return _canonical(name) if name else None
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, ConfigError):
        return None
    poetry = table.get("tool", {}).get("poetry", {})
    name = table.get("project", poetry).get("name", "")
    if name or "build-system" in table:
        return _canonical(str(name))
    return None


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def path(root: Path) -> list[Path]:
    """Return where modules are looked for, but for where the command was started.

    Places of a checkout that a link leads to are where they are.
    """
    here = Path.cwd()
    stated = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    places = [Path(place or ".").absolute() for place in sys.path]
    places = [r if is_own(root, r := place.resolve()) else place for place in places]
    started = places[:1] == [here] and here not in [
        Path(p).absolute() for p in stated if p
    ]
    return places[1:] if started else places


def is_own(root: Path, place: Path) -> bool:
    """Tell whether a folder holds sources of a checkout."""
    inside = place == root or root in place.parents
    return inside and not any(part in INSTALLED for part in place.parts)


def _relative(root: Path, place: Path) -> str:
    return "" if place == root else place.relative_to(root).as_posix()


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _provided(files: frozenset[str], folders: Sequence[str]) -> Iterator[str]:
    """Yield what may be imported of files from some folders."""
    for folder in dict.fromkeys(folders):
        start = f"{folder}/" if folder else ""
        for file in files:
            if file.startswith(start) and file.endswith((".py", *EXTENSION_SUFFIXES)):
                parts = file[len(start) :].split("/")
                parts[-1] = parts[-1].partition(".")[0]
                for count in range(1, len(parts)):
                    if f"{start}{'/'.join(parts[:count])}/__init__.py" in files:
                        parts = parts[:count]
                        break
                if all(map(str.isidentifier, parts)) and parts[-1] != "__init__":
                    yield ".".join(parts)


def _look_at(found: _Found, one: metadata.Distribution) -> None:
    """Note a distribution that is of the checkout."""
    origin = _origin(one)
    place = Path(unquote(urlsplit(origin["url"]).path)) if origin else None
    name = _canonical(one.metadata["Name"] or "")
    named = [folder for folder, its in found.folders.items() if name and its == name]
    inside = place is not None and (place == found.root or found.root in place.parents)
    lies = Path(str(one.locate_file("")))
    if not (inside or named) or is_own(found.root, lies):
        return
    if inside and place is not None and place.is_dir():
        folder = _relative(found.root, place)
    else:
        folder = named[0] if named else ""
    parts = frozenset(str(file) for file in one.files or () if ".." not in file.parts)
    tops = (one.read_text("top_level.txt") or "").split()
    for provided in tops or _provided(parts, [""]):
        if "__editable__" not in provided:
            found.names.setdefault(provided, folder)
    editable = bool(origin and origin.get("dir_info", {}).get("editable"))
    if not (inside and editable) or _is_elsewhere(found, parts, tops, folder):
        found.needed.add(folder)


def _origin(one: metadata.Distribution) -> dict[str, Any] | None:
    """Return what an installer wrote of a distribution's source on this machine."""
    try:
        found = json.loads(one.read_text("direct_url.json") or "{}")
        return found if found["url"].startswith("file://") else None
    except (ValueError, KeyError, AttributeError, TypeError):
        return None


def _is_elsewhere(
    found: _Found, parts: frozenset[str], tops: Sequence[str], folder: str
) -> bool:
    """Tell whether an editable project is more than sources on the path.

    A finder of its own leads to some, and native code is built beside them or in a
    folder that no other commit has.
    """
    sources = [place for place in path(found.root) if is_own(found.root, place)]
    sources.append(found.root)  # where workers look last
    finder = any(
        part.endswith(".py") and ".dist-info/" not in part for part in sorted(parts)
    )
    if finder and not (tops and all(_first(sources, top) for top in tops)):
        return True
    own = [name for name, of in found.names.items() if of == folder]
    homes = [home for name in own if (home := _first(sources, name))]
    native = [
        file
        for home in homes
        for file in (home.rglob("*") if home.is_dir() else [home])
        if file.name.endswith(tuple(EXTENSION_SUFFIXES))
    ]
    return any(_relative(found.root, file) not in found.files for file in native)


def _first(places: Sequence[Path], name: str) -> Path | None:
    """Return the first module or package of a name."""
    for place in places:
        at = place.joinpath(*name.split("."))
        if (at / "__init__.py").exists():
            return at
        for suffix in (".py", *EXTENSION_SUFFIXES):
            if (file := at.with_name(f"{at.name}{suffix}")).exists():
                return file
    return None


def _is_installed(root: Path, name: str) -> bool:
    """Tell whether a name is imported from elsewhere than from the checkout's sources."""
    standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    kept = [place for place in path(root) if str(place) not in standard]
    at = _first([one for one in kept if one.name != "lib-dynload"], name)
    return at is not None and not is_own(root, at)


def install(tree: Path, folders: Sequence[str], into: Path, who: str) -> None:
    """Install distributions of a tree into a folder, without what they depend on.

    Their build tools are those of this environment where it has them.

    Raises:
        UnjudgedError: they do not build.
    """
    said: dict[str, str] = {}
    for line in _installers(tree, folders, into):
        code, end = built(line, tree)
        if code == 0 and into.is_dir():
            return
        said[end] = f"`{' '.join(line[:4])} ...` ended with {code}:\n{end}"
        shutil.rmtree(into, ignore_errors=True)
    raise UnjudgedError(
        f"{who} does not build, and what is installed is the code of another commit. "
        "Install what its build needs, install the project with pip install -e ., or "
        "name a command in [tool.steelyard] build (docs/your-repository.md). The builds "
        "said:\n" + "\n".join(said.values())
    )


def built(
    line: Sequence[str], tree: Path, variables: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run a build in a tree; return its exit code and the end of what it said."""
    try:
        done = children.run(line, SECONDS, variables, tree)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return 1, str(error)
    said = (done.output + done.errors).strip().splitlines()
    return done.code, "\n".join(said[-LOG_LINES:])


def _installers(tree: Path, folders: Sequence[str], into: Path) -> Iterator[list[str]]:
    """Yield command lines to be tried in turn."""
    places = [str(tree / folder) for folder in folders]
    what = ["--quiet", "--no-deps", "--target", str(into)]
    if uv := shutil.which("uv"):
        start = [uv, "pip", "install", "--python", sys.executable]
    elif importlib.util.find_spec("pip"):
        start = [sys.executable, "-m", "pip", "install"]
    else:
        home = into.with_name("pip")
        venv.create(home, with_pip=True)
        start = [str(home / "bin" / "python"), "-m", "pip"]
        start += ["--python", sys.executable, "install"]
    alone = ["--no-build-isolation"]
    ways = [alone, []] if _has_tools(tree, folders) else [[], alone]
    for way in ways:
        yield [*start, *what, *way, *places]


def _has_tools(tree: Path, folders: Sequence[str]) -> bool:
    """Tell whether this environment has what the builds ask for."""
    for folder in folders:
        try:
            text = (tree / folder / "pyproject.toml").read_text(encoding="utf-8")
            wanted = tomllib.loads(text)["build-system"]["requires"]
            names = [
                re.split(r"[^\w.-]", str(one).strip(), maxsplit=1) for one in wanted
            ]
        except (OSError, ValueError, KeyError, TypeError):
            names = [["setuptools"]]  # PEP 517's default
        for name, *_ in names:
            try:
                metadata.version(name)
            except (metadata.PackageNotFoundError, ValueError):
                return False
    return True
