"""Settings of a run: a flag over the environment over ``[tool.steelyard]``.

Each key of `Config` has a variable, ``STEELYARD_BLOCKS``, and a flag, ``--blocks``, of its
name; those of ``suites`` are PATHS. docs/configuration.md has them all.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from steelyard.errors import SteelyardError, suggestion
from steelyard.machine import files

PREFIX: Final = "STEELYARD_"

BLOCKS: Final = 4
"""Turns of a case unless asked for otherwise: the spread between turns is the error
that counts, and Student's t of fewer is wider than what a kernel changes by."""

PRECISION: Final = 0.5
"""Percent: the half-width at which a trial has enough samples."""

TIMEOUT: Final = 60.0
"""Seconds: a case that is silent for longer is taken for hung."""

LONGEST: Final = 1e9
"""Seconds, 32 years: more overflow what the system waits with."""

BUILT_IN: Final = "steelyard.declare.builtin"
"""The module of the suite that is measured where there is no other."""

USUAL: Final = ("benchmarks", "benchmark", "bench", "benches", "asv_bench", "perf")
"""Folders that benchmarks are often kept in."""

AUTO: Final = "auto"
ALL: Final = "all"
OFF: Final = "off"
MARKS: Final = ("pyproject.toml", ".git")
"""What marks the folder that the default store lives in."""


def _require(good: bool, value: Any) -> Any:  # what was asked of the value
    if not good:
        raise ValueError
    return value


def _text(value: Any) -> str:
    words = isinstance(value, str) and bool(value.strip()) and "\0" not in value
    return str(_require(words, value))


def _words(value: Any) -> tuple[str, ...]:
    _require(bool(value) and isinstance(value, (list, tuple)), value)
    return tuple(map(_text, value))


def _gpu(value: Any) -> str:
    index = re.fullmatch(r"\d+|(?i:GPU-)?[\da-fA-F-]+", str(value))
    return str(_require(index is not None and not isinstance(value, bool), value))


def _peaks(value: Any) -> str:
    return str(_require(value in {AUTO, OFF}, value))


def _number(value: Any) -> float:
    return float(_require(not isinstance(value, bool), value))


def _seconds(value: Any) -> float:
    number = _number(value)
    return float(_require(0 < number <= LONGEST, number))  # NaN is not either


def _percent(value: Any) -> float:
    number = _number(value)
    return float(_require(0 < number < 100, number)) / 100


def _whole(least: int, most: float = math.inf) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        number = _number(value)
        whole = number.is_integer() and least <= number <= most  # nor inf, nor NaN
        exact = isinstance(value, int) or (isinstance(value, str) and value.isdecimal())
        return int(_require(whole, value if exact else number))

    return read


SECONDS: Final = (_seconds, f"a number above 0 and up to {LONGEST:g}")


def _setting(default: Any, read: Callable[[Any], Any], expected: str) -> Any:
    """Return a field with what checks and converts its value, and what is expected."""
    return field(default=default, metadata={"reader": (read, expected)})


@dataclass(frozen=True, slots=True)
class Config:
    """Validated settings."""

    suites: tuple[str, ...] = _setting(
        (), _words, "a list of files, folders or modules, or no key"
    )
    """Files, folders or modules; none: ``./suites`` or else the built-in suite."""
    store: str = _setting("", _text, "a path or a URL")
    """A path or an SQLAlchemy URL."""
    budget: float | None = _setting(None, *SECONDS)
    """Seconds for the whole run."""
    precision: float = _setting(
        PRECISION / 100, _percent, "a percentage between 0 and 100"
    )
    """A fraction."""
    blocks: int = _setting(
        BLOCKS,
        _whole(1, LONGEST),
        f"a whole number of at least 1 and up to {LONGEST:g}",
    )
    timeout: float = _setting(TIMEOUT, *SECONDS)
    """Seconds."""
    seed: int = _setting(0, _whole(0), "a whole number of at least 0")
    gpu: str = _setting("", _gpu, "an index or the beginning of a GPU's UUID")
    """An index or the beginning of a UUID; nothing: the least used one."""
    clock: str = _setting(AUTO, _text, "the id of a clock, auto or all")
    """The id of a clock of the GPU's, or `ALL`."""
    peaks: str = _setting(AUTO, _peaks, f"one of {AUTO}, {OFF}")
    """Whether what a GPU does at most is measured where it is not known: or `OFF`."""
    build: str = _setting("", _text, "a command line")
    """The command that builds a commit for a gate; nothing: it needs no building."""


READERS: Final[Mapping[str, tuple[Callable[[Any], Any], str]]] = {
    one.name: one.metadata["reader"] for one in fields(Config)
}
"""Each key with what checks and converts its value, and what is expected."""


def load(
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Config:
    """Return the settings of a command run in ``folder``; a flag of None is not given.

    Raises:
        SteelyardError: a key is unknown, or a value is not what its key takes.
    """
    folder = folder or Path.cwd()
    environment = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    project = nearest(folder, ("pyproject.toml",))
    if project is not None:
        values |= _table(project / "pyproject.toml")
    for key in READERS:
        text = environment.get(PREFIX + key.upper())
        if text:
            values[key] = _read(f"{PREFIX}{key.upper()}", key, _split(key, text))
    for key, value in (flags or {}).items():
        if value is not None:
            flag = "PATHS" if key == "suites" else f"--{key}"
            values[key] = _read(flag, key, value)
    values["store"] = values.get("store") or default_store(folder)
    return Config(**values)


def suites(config: Config, folder: Path | None = None) -> list[str]:
    """Return what to discover: what was asked for, ``./suites``, or the built-in."""
    if config.suites:
        return list(config.suites)
    default = (folder or Path.cwd()) / "suites"
    return [str(default)] if default.is_dir() else [BUILT_IN]


def own_suites(config: Config) -> list[str]:
    """Return what to judge: never the built-in suite, which no commit changes.

    Raises:
        SteelyardError: no suite of this project is known.
    """
    found = suites(config)
    if found == [BUILT_IN] and not config.suites:
        raise SteelyardError(
            "no suite of this project is known, and the built-in suite has none of its "
            "code. Name one after the commits, or set suites in [tool.steelyard]."
        )
    return found


def taken(config: Config, folder: Path | None = None) -> str:
    """Return a sentence on which suites are taken where none are named.

    It warns of the built-in suite where the folder seems to have benchmarks of its own.
    """
    folder = folder or Path.cwd()
    if config.suites:
        return f"suites: {', '.join(config.suites)} (configured)"
    if suites(config, folder) != [BUILT_IN]:
        return "suites: ./suites"
    own = [name for name in USUAL if (folder / name).exists()]
    if own:
        return (
            f"warning: the built-in suite, not ./{own[0]}; name the folder: "
            f"`steelyard run {own[0]}`, or set suites in [tool.steelyard]"
        )
    return "suites: the built-in suite; name files to measure yours"


def default_store(folder: Path) -> str:
    """Return the store of the project that ``folder`` is in."""
    home = nearest(folder, MARKS) or folder
    return str(home / ".steelyard" / "steelyard.db")


def nearest(folder: Path, names: tuple[str, ...]) -> Path | None:
    """Return the nearest of ``folder`` and its parents that holds one of ``names``."""
    for place in (folder.absolute(), *folder.absolute().parents):
        if any((place / name).exists() for name in names):
            return place
    return None


def _table(path: Path) -> dict[str, Any]:
    """Return the validated table of a project's file; its paths are relative to it."""
    import tomllib  # a worker reads none

    try:
        table = tomllib.loads(files.read(path).decode())
        tool = table.get("tool", {})
        values = tool.get("steelyard", {}) if isinstance(tool, dict) else tool
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or error
        raise SteelyardError(f"{path} cannot be read: {why}. Mend it first.") from error
    if not isinstance(values, dict):
        raise SteelyardError(
            f"[tool.steelyard] in {path} is {values!r}, expected a table of "
            f"{', '.join(READERS)}."
        )
    read = {}
    for key, value in values.items():
        if key not in READERS:
            raise SteelyardError(
                f"[tool.steelyard] in {path} has the key {key!r}. "
                f"{suggestion(key, READERS).capitalize()}"
            )
        read[key] = _read(f"{key} in {path}", key, value)
    if "store" in read and "://" not in read["store"]:
        read["store"] = str(path.parent / Path(read["store"]).expanduser())
    if "suites" in read:
        read["suites"] = tuple(_beside(path, suite) for suite in read["suites"])
    return read


def _beside(project: Path, suite: str) -> str:
    """Return a suite's path from anywhere; the name of a module stays one."""
    path = project.parent / suite
    return str(path) if path.exists() or "/" in suite else suite


def _split(key: str, text: str) -> str | list[str]:
    return [s for s in text.split(os.pathsep) if s] if key == "suites" else text


def _read(name: str, key: str, value: Any) -> Any:
    """Return a setting, checked and converted."""
    convert, expected = READERS[key]
    try:
        return convert(value)
    except (TypeError, ValueError, OverflowError):
        raise SteelyardError(f"{name} is {value!r}, expected {expected}.") from None
