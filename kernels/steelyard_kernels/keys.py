"""What a build is known by on disk: everything that its bytes depend on, nothing else.

Never a path, a date, a name of a kernel or a process's order of things.
"""

from __future__ import annotations

import json
from functools import cache
from hashlib import blake2b
from importlib import resources
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Final

from steelyard_kernels.digest import digest
from steelyard_kernels.expr import Constant, Program, operands
from steelyard_kernels.targets import Target
from steelyard_kernels.toolchains import toolchain

if TYPE_CHECKING:
    from steelyard_kernels.schedule.strategies import Schedule

SCHEMA: Final = 2


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


def described(program: Program) -> str:
    """Return a program without its name: two of equal text compute the same."""
    lines = []
    for node in program.nodes:
        kind = type(node).__name__
        details = [getattr(node, name, "") for name in ("index", "op", "keepdims")]
        value = repr(node.value) if isinstance(node, Constant) else ""
        args = [arg.number for arg in operands(node)]
        lines.append(
            f"{node.number} {kind} {details} {value} {args} {node.shape} {node.dtype}"
        )
    inputs = [(i.index, i.name, i.shape, i.dtype.name) for i in program.inputs]
    scalars = [(s.name, s.dtype.name) for s in program.scalars]
    outputs = [(o.name, o.value.number, o.updates) for o in program.outputs]
    return "\n".join([*lines, f"{inputs}{scalars}{outputs}"])


@cache
def compiled_by(target: Target) -> str:
    """Return the target with the build of its compiler and what that is told."""
    chain = toolchain(target)
    return f"{target} {chain.compiler()} {chain.settings(target)}"


@cache
def sources() -> str:
    """Return the hash of this package's sources: a change of any rebuilds everything."""
    found = blake2b(digest_size=16)
    for package in ("steelyard_kernels", "steelyard_device"):
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
