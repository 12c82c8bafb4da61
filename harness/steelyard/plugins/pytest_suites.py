"""Which files pytest collects as suites: those that the project and the run name."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import pytest

from steelyard.declare import config as settings
from steelyard.declare import discovery
from steelyard.errors import SteelyardError


def holds(path: Path, config: pytest.Config) -> bool:
    """Tell whether a file lies where suites were asked for and defines a benchmark."""
    places = _asked_for(config)
    asked = any(place in (path, *path.parents) for place in places)
    return asked and discovery.defines(path)


def whole(config: pytest.Config, collected: Iterable[Path]) -> list[str]:
    """Return the arguments of this run if all files of theirs are ``collected``."""
    start = config.invocation_params.dir
    if any("::" in argument for argument in config.args):
        return []
    places = [start / argument for argument in config.args]
    files = {file for place in places for file in (place, *place.rglob("*.py"))}
    asked = {file.resolve() for file in files if file.is_file() and holds(file, config)}
    return [] if asked.difference(collected) else [str(place) for place in places]


def missed(config: pytest.Config) -> Iterator[str]:
    """Yield a sentence for each argument with benchmarks that no project names."""
    if config.stash.get(_PLACES, None) != []:
        return
    start = config.invocation_params.dir
    for argument in config.args:
        place = start / argument.partition("::")[0]
        files = sorted(place.rglob("*.py")) if place.is_dir() else [place]
        if below := [one for one in _declared(config) if place in one.parents]:
            yield f"steelyard's benchmarks are measured where they are named: pytest {below[0]}"
        elif any(one.suffix == ".py" and discovery.defines(one) for one in files):
            yield (
                f"{argument} has steelyard's benchmarks; name it to collect them: "
                f'suites = ["{argument}"] in [tool.steelyard] of pyproject.toml.'
            )


def has_tests(path: Path, config: pytest.Config) -> bool:
    """Tell whether a file binds a name that pytest may take for a test's."""
    try:
        nodes = list(ast.walk(ast.parse(path.read_bytes())))
    except (SyntaxError, ValueError, RecursionError):
        return False  # collecting its benchmarks says so
    bound = {
        node.id
        for node in nodes
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    bound |= {n.asname or n.name for n in nodes if isinstance(n, ast.alias)}
    bound |= {
        node.name
        for node in nodes
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    }
    patterns = [
        *config.getini("python_functions"),
        *config.getini("python_classes"),
    ]
    return "*" in bound or any(
        name.startswith(pattern) or fnmatchcase(name, pattern)
        for name in bound
        for pattern in patterns
    )


_PLACES: Final = pytest.StashKey[list[Path]]()


def _asked_for(config: pytest.Config) -> list[Path]:
    """Return the places of suites that hold, or are, an argument of this run.

    ``pytest`` or ``pytest .`` must not measure whatever the project has.
    """
    if _PLACES not in config.stash:
        places = _declared(config)
        start = config.invocation_params.dir
        asked = [start / str(argument).partition("::")[0] for argument in config.args]
        config.stash[_PLACES] = [
            place
            for place in places
            if any(place in (path, *path.parents) for path in asked)
        ]
    return config.stash[_PLACES]


def _declared(config: pytest.Config) -> list[Path]:
    """Return the suites that the project names.

    Raises:
        UsageError: its ``[tool.steelyard]`` cannot be read.
    """
    if declared := config.getini("steelyard_suites"):
        return list(declared)
    try:
        found = settings.load(folder=config.rootpath).suites
    except SteelyardError as error:
        raise pytest.UsageError(str(error)) from None
    return [Path(place).absolute() for place in found if Path(place).exists()]
