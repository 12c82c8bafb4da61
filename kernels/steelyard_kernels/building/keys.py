"""What a build is known by on disk: everything that its bytes depend on, nothing else.

Never a path, a date, a name of a kernel or a process's order of things.
"""

from __future__ import annotations

import json
from functools import cache
from hashlib import blake2b
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

from steelyard_kernels.artifact import digest
from steelyard_kernels.expression.expr import Program
from steelyard_kernels.expression.structure import described
from steelyard_kernels.schedule.schedule import Schedule
from steelyard_kernels.targets import Target
from steelyard_kernels.toolchains import toolchain

SCHEMA: Final = 4


def key(
    program: Program, schedule: Schedule | None, target: Target, *, aligned: bool
) -> str:
    """Return the key of a build.

    It covers the schema, this compiler's own sources, the program, the schedule (or that
    the heuristic chooses), the target with its machine, and the build of the compiler.
    """
    chosen = repr(schedule) if schedule else "heuristic"
    what = (SCHEMA, sources(), described(program), chosen, aligned, compiled_by(target))
    return digest(json.dumps(what).encode())


@cache
def compiled_by(target: Target) -> str:
    """Return the target with the build of its compiler and what that is told."""
    chain = toolchain(target)
    return f"{target} {chain.compiler()} {chain.settings(target)}"


@cache
def sources(*others: str) -> str:
    """Return the hash of our sources, and of other packages' if they are named.

    A change of any rebuilds everything.
    """
    found = blake2b(digest_size=16)
    for package in ("steelyard_kernels", "steelyard_device", *others):
        for name, text in sorted(_texts(resources.files(package), "")):
            found.update(f"{name} {len(text)} ".encode() + text)
    return found.hexdigest()


def _texts(folder: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    found = []
    for each in folder.iterdir():
        if each.is_dir() and each.name != "__pycache__":
            found += _texts(each, f"{prefix}{each.name}/")
        elif each.name.endswith(".py"):
            found.append((f"{prefix}{each.name}", each.read_bytes()))
    return found
