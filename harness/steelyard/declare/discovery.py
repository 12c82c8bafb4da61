"""Find benchmarks in files, folders and modules, importing but allocating nothing."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import math
import os
import posix
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NoReturn

from steelyard.declare import config
from steelyard.declare.axes import parse_override
from steelyard.declare.benchmark import Benchmark, Case, raised, select
from steelyard.errors import SteelyardError, UnjudgedError
from steelyard.machine.isolation import intact
from steelyard.machine.printable import printable

ENDS: Final = ("_exit", "execv", "execve")
"""Functions of `os` after which a process, or what it ran, is no more."""

SILENT: Final = 5.0
"""Seconds after which an import is named: one of PyTorch takes about two."""


def find(
    places: Sequence[str],
    pattern: str | None = None,
    overrides: Sequence[str] = (),
    broken: list[SteelyardError] | None = None,
    seconds: float = math.inf,
) -> list[Case]:
    """Return the cases of some places; a pattern may also be one case's exact id.

    ``broken`` and ``seconds`` are as `discover` takes them.

    Raises:
        SteelyardError: nothing matches; the sentence has the nearest.
    """
    return choose(discover(places, broken, seconds), pattern, overrides)


def discover(
    places: Sequence[str],
    broken: list[SteelyardError] | None = None,
    seconds: float = math.inf,
) -> list[Benchmark]:
    """Return the benchmarks of ``places``: files, folders, or names of modules.

    What is wrong with a file of a folder is added to ``broken``, where that is given
    and another file has benchmarks. An import may take ``seconds``.

    Raises:
        SteelyardError: a place does not exist or cannot be imported, two benchmarks
            share a name, or there is none.
    """
    found: dict[str, Benchmark] = {}
    for module in [m for place in places for m in _modules(place, broken, seconds)]:
        for one in _benchmarks(module):
            other = found.setdefault(one.name, one)
            if other is not one:
                raise UnjudgedError(
                    f"benchmark {one.name} is defined in {other.path} and again in "
                    f"{one.path}. Rename one: results are kept by name."
                )
    if not found:
        raise next(iter(broken or ()), None) or SteelyardError(
            f"no benchmark in {', '.join(places)}. Decorate a function with "
            "@steelyard.benchmark, or name another file or folder."
        )
    return list(found.values())


def choose(
    benchmarks: Sequence[Benchmark], pattern: str | None, overrides: Sequence[str]
) -> list[Case]:
    """Return the cases that ``-k`` and ``-p`` name; ``-k`` may be one case's exact id.

    Raises:
        SteelyardError: nothing matches; the sentence has the nearest.
    """
    replaced: dict[str, list[Any]] = {}
    for text in overrides:
        name, values = parse_override(text)
        if not all(math.isfinite(v) for v in values if isinstance(v, float)):
            raise SteelyardError(
                f"-p {text!r} has no finite number. Change its values."
            )
        replaced.setdefault(name, []).extend(values)
    exact = [c for c in select(benchmarks, None, replaced) if c.id == pattern]
    return exact or select(benchmarks, pattern, replaced)


def load(path: Path, name: str) -> Benchmark:
    """Import the file ``path`` and return its benchmark ``name``.

    Raises:
        SteelyardError: the file cannot be imported or has no such benchmark.
    """
    for one in _benchmarks(import_file(path)):
        if one.name == name:
            return one
    raise SteelyardError(
        f"{path} has no benchmark {name} any more. Run the whole again."
    )


def defines(path: Path) -> bool:
    """Tell whether a file uses steelyard's `benchmark`, without importing the file.

    A file that cannot be parsed and has both words does: importing it gives the reason.
    """
    text = path.read_bytes()
    if b"steelyard" not in text or b"benchmark" not in text:
        return False
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError):
        return True
    names, packages = set(), set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module in {
            "steelyard",
            "steelyard.benchmark",
            "steelyard.declare.benchmark",
        }:
            names |= {
                a.asname or "benchmark"
                for a in node.names
                if a.name in {"benchmark", "*"}
            }
        elif isinstance(node, ast.Import):
            packages |= {
                a.asname or "steelyard"
                for a in node.names
                if a.name.partition(".")[0] == "steelyard"
            }
    return any(
        node.id in names
        if isinstance(node, ast.Name)
        else isinstance(node, ast.Attribute)
        and node.attr == "benchmark"
        and _root(node) in packages
        for node in nodes
    )


def _root(node: ast.expr) -> str:
    """Return the name that a chain of attributes begins with."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _modules(
    place: str, broken: list[SteelyardError] | None, seconds: float
) -> Iterator[ModuleType]:
    path = Path(place)
    if path.is_dir():
        for file in sorted(path.rglob("*.py")):
            # Parts below the folder only: it may itself lie in a hidden one, or in "..".
            below = file.relative_to(path).parts
            hidden = any(part.startswith((".", "__pycache__")) for part in below)
            if hidden or file.name == "__main__.py":
                continue
            # A folder may hold a setup.py, or anything that should not run.
            if b"steelyard" in file.read_bytes():
                try:
                    module = _apart(import_file, file, seconds)
                except SteelyardError as error:
                    if broken is None:
                        raise
                    broken.append(error)
                else:
                    yield module
    elif path.is_file():
        yield _apart(import_file, path, seconds)
    elif "/" in place or place.endswith(".py"):
        raise SteelyardError(f"{place} does not exist. Name a file, folder or module.")
    else:
        yield _apart(_import_name, place, seconds)


def _apart(
    load: Callable[[Any], ModuleType], place: str | Path, seconds: float
) -> ModuleType:
    """Import a module; of its process that changes nothing else."""
    with _watched(place, seconds), intact():
        return load(place)


@contextmanager
def _watched(place: str | Path, seconds: float) -> Iterator[None]:
    """Name an import that takes long, and end it after ``seconds``."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    process, named = os.getpid(), seconds <= SILENT

    def late(*_: object) -> None:
        nonlocal named
        if os.getpid() != process:  # the suite forked
            return
        if named:
            raise UnjudgedError(
                f"importing {place} was not done within {seconds:g} s and was ended. Look "
                "for what waits or never stops, or raise `timeout` (STEELYARD_TIMEOUT)."
            )
        named = True
        if math.isfinite(seconds):
            signal.setitimer(signal.ITIMER_REAL, seconds - SILENT)
        said = f"still importing {printable(str(place))} after {SILENT:g} s\n"
        os.write(2, said.encode())

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, min(SILENT, seconds))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before or signal.SIG_DFL)


def _benchmarks(module: ModuleType) -> list[Benchmark]:
    """Return what the module defines itself, not what it imported from another."""
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, Benchmark) and value.function.__module__ == module.__name__
    ]
    for path in {one.path for one in found}:
        _require_distinct(path)
    return found


def _require_distinct(path: Path) -> None:
    """Refuse a file whose second benchmark hides a first of its name."""
    lines: dict[str, int] = {}
    for node in ast.parse(path.read_bytes()).body:
        if not isinstance(node, ast.FunctionDef) or not _is_benchmark(node):
            continue
        first = lines.setdefault(node.name, node.lineno)
        if first != node.lineno:
            raise UnjudgedError(
                f"benchmark {node.name} is defined in line {first} of {path} and again "
                f"in line {node.lineno}. Rename one: results are kept by name."
            )


def _is_benchmark(node: ast.FunctionDef) -> bool:
    """Tell whether one of the decorators reads ``benchmark`` or ``x.benchmark``."""
    named = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
    return any(
        (d.attr if isinstance(d, ast.Attribute) else getattr(d, "id", ""))
        == "benchmark"
        for d in named
    )


def import_file(path: Path) -> ModuleType:
    """Import a file under one name, whoever asks.

    Raises:
        SteelyardError: it is no Python file, or raised.
    """
    path = path.resolve()
    root = path.parent
    while (root / "__init__.py").exists():
        root = root.parent
    # Last: neither a loose file named as a library nor a project's sources must hide
    # what is installed. The project's folder is for one that is not installed.
    project = config.nearest(root, config.MARKS) or root
    for place in map(str, (root, project)):
        if place not in sys.path:
            sys.path.append(place)
    if root != path.parent:
        return _import_part(path, root)
    # A loose file: its folder's name keeps two files of one name apart.
    digest = hashlib.blake2b(str(root).encode(), digest_size=4).hexdigest()
    name = f"{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    return _execute(name, path)


def _execute(name: str, path: Path, places: list[str] | None = None) -> ModuleType:
    """Import a file as the module ``name``; a package has the ``places`` of its parts."""
    spec = importlib.util.spec_from_file_location(
        name, path, submodule_search_locations=places
    )
    if spec is None or spec.loader is None:
        raise SteelyardError(
            f"{path} is not a Python file. Name a file, folder or module."
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _staying():
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _unimportable(str(path), error) from error
    return module


@contextmanager
def _staying() -> Iterator[None]:
    """Have what ends a process raise: a command would end as if all was well.

    Processes that a suite forks end as they always do.
    """
    process = os.getpid()
    ends = [(m, name, getattr(m, name)) for m in (os, posix) for name in ENDS]

    def refused(end: Callable[..., object], name: str, *arguments: object) -> NoReturn:
        if os.getpid() != process:
            end(*arguments)
        first = ", ".join(map(repr, arguments[:1]))
        raise SystemExit(f"os.{name}({first}) ends the process")

    try:
        for module, name, end in ends:
            setattr(module, name, partial(refused, end, name))
        yield
    finally:
        for module, name, end in ends:
            setattr(module, name, end)


def _import_name(name: str) -> ModuleType:
    try:
        with _staying():
            return importlib.import_module(name)
    except SteelyardError:
        raise
    except ModuleNotFoundError as error:
        if error.name == name:
            raise SteelyardError(
                f"{name} is neither a file, a folder nor a module. Check its spelling."
            ) from None
        raise _unimportable(name, error) from error
    except (Exception, SystemExit) as error:
        raise _unimportable(name, error) from error


def _import_part(path: Path, root: Path) -> ModuleType:
    """Import a file of a package by its dotted name, so that it may import relatively."""
    parts = path.relative_to(root).with_suffix("").parts
    name = ".".join(p for p in parts if p != "__init__")
    top = sys.modules.get(parts[0])
    there = [Path(place).resolve() for place in getattr(top, "__path__", ())]
    if top is not None and root / parts[0] not in there:
        raise SteelyardError(
            f"{path} would be imported as {name}, but {parts[0]} is already "
            f"{top.__file__ or there}. Measure the two one after the other, or rename one."
        )
    if top is None:
        # By its path: another package of its name may be installed.
        home = root / parts[0]
        _execute(parts[0], home / "__init__.py", [str(home)])
    return _import_name(name)


def _unimportable(name: str, error: BaseException) -> SteelyardError:
    if isinstance(error, SteelyardError):
        return error
    step = "Mend it first."
    if isinstance(error, ModuleNotFoundError):
        step = "Install it in this environment: pip install -e . if it is the project."
    return UnjudgedError(f"{name} could not be imported: {raised(error)}. {step}")
