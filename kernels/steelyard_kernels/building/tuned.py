"""Schedules that were found by measuring: a file, read where STEELYARD_TUNED names it.

Unset, builds depend on nothing that was measured. An entry is found by the program, the
device and the compiler's sources: of another of these it is no choice, and the heuristic's
holds. The file is JSON, for people to read and to commit.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from msgspec import ValidationError, convert, to_builtins

from steelyard_kernels.artifact import digest
from steelyard_kernels.building.keys import compiled_by, sources
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import Program
from steelyard_kernels.expression.structure import described
from steelyard_kernels.schedule.schedule import Schedule
from steelyard_kernels.targets import Target, device

VARIABLE: Final = "STEELYARD_TUNED"
SCHEMA: Final = 1


def key(program: Program, target: Target) -> str:
    """Return what a choice is known by.

    The device is what schedules see of it, and a CPU's name is in what its compiler is
    told. Addresses are those that arrays have by themselves: aligned.
    """
    seen = (device(target), compiled_by(target))
    what = (SCHEMA, sources(), described(program), repr(seen))
    return digest(json.dumps(what).encode())


def chosen(program: Program, target: Target) -> Schedule | None:
    """Return the schedule that was found for a program; None where there is none.

    Raises:
        KernelError: the file that is named cannot be read.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return None
    entry = table(path).get(key(program, target))
    try:
        return convert(entry["schedule"], Schedule) if entry else None
    except (KeyError, TypeError, ValidationError) as error:
        raise _unreadable(path, f"an entry has {error!r}") from error


def table(path: str) -> Mapping[str, Any]:
    """Return all entries of a file; raises KernelError for one that cannot be read."""
    try:
        state = os.stat(path)  # noqa: PTH116 # nothing heavy on the way of builds
    except OSError as error:
        raise _unreadable(path, str(error.strerror)) from error
    return _read(path, (state.st_ino, state.st_mtime_ns, state.st_size))


@lru_cache(maxsize=2)
def _read(path: str, _state: tuple[int, ...]) -> Mapping[str, Any]:
    try:
        found = json.loads(Path(path).read_bytes())
        entries: Mapping[str, Any] = found["entries"]
        if found["schema"] != SCHEMA or not isinstance(entries, dict):
            raise _unreadable(path, f"it is of schema {found['schema']}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _unreadable(path, f"it has {error!r}") from error
    return entries


def _unreadable(path: str, why: str) -> KernelError:
    return KernelError(
        f"{path} is no file of tuned schedules: {why}. Write one with `steelyard tune "
        f"--keep {path}`, or unset {VARIABLE}."
    )


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Let one process at a time write in a folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def keep(
    path: str,
    program: Program,
    target: Target,
    schedule: Schedule,
    facts: Mapping[str, Any],
) -> None:
    """Write a choice to a file, whole or not at all, beside those that it has.

    Two that write at a time wait for each other. Raises KernelError where it cannot be
    written, or is something else.
    """
    place = Path(path)
    try:
        with _held(place.parent):
            entries = dict(table(path)) if place.exists() else {}
            entries[key(program, target)] = {**facts, "schedule": to_builtins(schedule)}
            ordered = dict(sorted(entries.items()))
            made = json.dumps({"schema": SCHEMA, "entries": ordered}, indent=1)
            new = place.with_name(f".{place.name}.new")
            new.write_text(f"{made}\n", encoding="utf-8")
            new.replace(place)
    except OSError as error:
        raise KernelError(
            f"{path} cannot be written: {error.strerror}; name a file elsewhere."
        ) from error
