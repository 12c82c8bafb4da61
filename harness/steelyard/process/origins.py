"""Which folders this process may import a project's code from, and what it runs beside.

Whoever starts a process that measures states it in a variable; after each answer the
process looks at what was imported, and refuses to measure other code than it is for.

What a compiler in Python takes depends on more than on what it makes: on the interpreter,
on every package it may import, and on the sources it was imported from. `digest` compares
that of two sides of a gate.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from steelyard.analyse.doubts.work import EDITED, INSTALLED_COPY
from steelyard.analyse.trial import Trial
from steelyard.declare import config
from steelyard.machine.decoding import made

if TYPE_CHECKING:
    from importlib import metadata

VARIABLE: Final = "STEELYARD_ORIGINS"

STARTED: Final = time.time_ns()
"""When this process began, by the clock of file systems."""

BEGAN: Final = "began"
"""A file of the run's folder that is as old as the run's first turn."""

SHOWN: Final = 3
"""Modules that a refusal names."""

INSTALLED: Final = ("site-packages", "dist-packages")
"""Folders that hold what is installed, wherever they lie."""


@dataclass(frozen=True, slots=True)
class Origins:
    """Where a project's code comes from, and what is said where it does not."""

    names: tuple[str, ...] = ()
    """Dotted names of the project's modules and packages: all below them too."""
    places: tuple[str, ...] = ()
    """Folders that these may come from, but for environments within."""
    avoided: tuple[str, ...] = ()
    """Folders that nothing else may come from, but for environments within."""
    wrong: str = ""
    """What it would mean, and the next step: two clauses after the modules' names."""

    @classmethod
    def stated(cls, variables: Mapping[str, str] = os.environ) -> Self:
        """Return what the parent stated; nothing where it did not."""
        return made(json.loads(variables.get(VARIABLE) or "{}"), cls)

    def variable(self) -> dict[str, str]:
        """Return the variable for a process."""
        return {VARIABLE: json.dumps(asdict(self))}

    def refusal(self) -> str | None:
        """Return why what was imported is not to be measured; None where it is."""
        found = sorted(self._foreign_modules(sys.modules.copy()))
        if self.avoided:
            found = found or sorted(f for f in _mapped() if self._is_avoided(f))
        if not found:
            return None
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        return f"{', '.join(found[:SHOWN])}{more}: {self.wrong}"

    def libraries(self) -> list[str]:
        """Return the libraries of the side's own that this process has loaded."""
        python = sys.prefix, sys.base_prefix  # an environment in the checkout
        return sorted(
            file
            for file in _mapped()
            if _within(file, self.places) and not _within(file, python)
        )

    def _foreign_modules(self, modules: Mapping[str, Any]) -> Iterator[str]:
        if not self.names and not self.avoided:
            return
        for name, module in modules.items():
            file = getattr(module, "__file__", None)
            if not isinstance(file, str) or _within(file, self.places):
                continue
            own = any(f"{name}.".startswith(f"{one}.") for one in self.names)
            if own or _within(file, self.avoided):
                yield f"{name} from {file}"

    def _is_avoided(self, file: str) -> bool:
        """Tell whether a library is of a folder that nothing else may come from."""
        python = sys.prefix, sys.base_prefix  # an environment in the checkout
        return (
            _within(file, self.avoided)
            and not _within(file, self.places)
            and not _within(file, python)
        )


def _mapped() -> set[str]:
    """Return the files whose code this process has mapped: also what ctypes loads."""
    try:
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return set()
    words = (line.split(maxsplit=5) for line in lines)
    return {w[5] for w in words if len(w) > 5 and "x" in w[1] and w[5][0] == "/"}


def _within(file: str, places: tuple[str, ...]) -> bool:
    """Tell whether a file is in one of some folders, and in no environment within."""
    return any(
        path.startswith(f"{place.rstrip('/')}/")
        and not any(folder in path[len(place) :].split("/") for folder in INSTALLED)
        for place in places
        for path in (file, os.path.realpath(file))
    )


@functools.cache
def begin(scratch: str) -> None:
    """Note in the run's folder, where there is one, that turns have begun."""
    if scratch:
        with suppress(OSError), Path(scratch, BEGAN).open("x"):
            pass


def watched(trial: Trial, scratch: str) -> Trial:
    """Return a trial with its doubts: of edited code, and of copies that are installed."""
    suite = Path(trial.hashes.get("file", "")).parent
    project = config.nearest(suite, config.MARKS) or suite
    edited, copies = _edited(scratch, str(project)), _copies(project)
    found = {"edited": edited, "installed_copies": copies}
    seen = [
        d.name for d, files in ((EDITED, edited), (INSTALLED_COPY, copies)) if files
    ]
    if not seen:
        return trial
    extra = {**trial.extra, **{name: one for name, one in found.items() if one}}
    return replace(trial, extra=extra, doubts=(*trial.doubts, *seen))


def _copies(project: Path) -> list[str]:
    """Name installed files that were imported and are unlike a project's own.

    Where the parent stated which code this process is for, as a gate does, it is that.
    """
    found: list[str] = []
    if VARIABLE in os.environ:
        return found
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        installed = next((f"/{p}/" for p in INSTALLED if f"/{p}/" in file), None)
        if installed and _places(project, name.partition(".")[0]):
            rest = file.rpartition(installed)[2]
            own = [p / rest for p in (project, project / "src") if (p / rest).is_file()]
            if own and _content(str(own[0])) != _content(file):
                found.append(file)
    return sorted(found)


@functools.cache
def _places(project: Path, package: str) -> bool:
    """Say whether a project has a package or module of a name, in its root or in src."""
    every = (place / package for place in (project, project / "src"))
    return any(each.is_dir() or each.with_suffix(".py").is_file() for each in every)


def _edited(scratch: str, project: str) -> list[str]:
    """Name code of a project that changed after the first turn and before this process.

    Processes before had other code. The time is that of the inode, which nobody sets.
    """
    began = _changed(str(Path(scratch, BEGAN))) if scratch else 0
    if not began:
        return []
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    own = [f for f in {*files, *_mapped()} if f and _within(f, (project,))]
    late = (f for f in own if began < _changed(f) < STARTED)
    return sorted(os.path.relpath(f, project) for f in late)


def _changed(file: str) -> int:
    try:
        return Path(file).stat().st_ctime_ns
    except OSError:
        return 0


CODE: Final = (".py", ".so")
"""How files end that Python runs. Of the others some have a path in them."""

OWN: Final = ("..", "/", "__editable__")
"""How files of a distribution begin that differ with the folder it is installed in."""


def digest() -> str:
    """Return a hash of the interpreter, all that is installed, and what is imported.

    Of an installed distribution it has what its installer wrote down of its files; what
    is imported from elsewhere, such as from a checkout, is read. Where files lie is not
    in it.
    """
    found = hashlib.blake2b(f"{sys.version} {sys.flags}".encode(), digest_size=16)
    for text in (*_distributions(), *sorted(map(_content, {*_imported()}))):
        found.update(f"{text}\n".encode())
    return found.hexdigest()


@functools.cache
def _distributions() -> tuple[str, ...]:
    """Return every distribution with the hashes of its files."""
    from importlib import metadata

    return tuple(sorted({_said(one) for one in metadata.distributions()}))


def _said(one: metadata.Distribution) -> str:
    lines = (one.read_text("RECORD") or "").splitlines()
    paths = ((line.partition(",")[0], line) for line in lines)
    code = sorted(x for p, x in paths if p.endswith(CODE) and not p.startswith(OWN))
    return f"{one.metadata['Name']} {one.version} {code}"


def _imported() -> Iterator[str]:
    """Yield the packages and files of modules that were not installed with something."""
    known = tuple(_homes())
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and not file.startswith(known):
            package = sys.modules.get(name.partition(".")[0])
            yield from getattr(package, "__path__", None) or [file]


def _homes() -> Iterable[str]:
    """Return the folders of the standard library and of what is installed."""
    own = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    places = {place for place in sys.path if place.endswith("site-packages")}
    return {f"{place.rstrip('/')}/" for place in (own | places) if place}


@functools.cache
def _content(place: str) -> str:
    """Return the hash of a file, or of all code in a folder; the name of what is gone."""
    path = Path(place)
    try:
        if not path.is_dir():
            return _hash(path.read_bytes())
        found = sorted(_code(path, ""))
        return _hash(*(f"{name} {_hash(text)}".encode() for name, text in found))
    except OSError:
        return place


def _code(folder: Path, prefix: str) -> Iterator[tuple[str, bytes]]:
    """Yield what is under a folder; nothing hidden, such as an environment of its own."""
    for each in folder.iterdir():
        if each.name.startswith("."):
            continue
        if each.is_dir():
            yield from _code(each, f"{prefix}{each.name}/")
        elif each.name.endswith(CODE):
            yield f"{prefix}{each.name}", each.read_bytes()


def _hash(*texts: bytes) -> str:
    return hashlib.blake2b(b"\n".join(texts), digest_size=16).hexdigest()
