"""Which builds are remembered, and where: three levels, each can be left out.

- `memory`: a kernel object's builds by shapes, dtypes, schedule and target, found
  before anything is traced (`function`);
- `code`: a process's code by the text it was made from: different shapes and kernels
  that come to the same text share one binary;
- `disk`: builds of this user by everything that they depend on (`keys`).

A build is kept as bytes; its image lies beside it. Reading back checks nothing: the disk
vouches for every byte.
"""

from __future__ import annotations

import pickle
from typing import Any, Final

from msgspec.structs import replace

from steelyard_device.disk import Disk, default_directory
from steelyard_device.threads import Once
from steelyard_device.timings import span
from steelyard_kernels.artifact import Artifact, Code, Failure, digest
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import Program


def pack(built: Artifact | Failure) -> bytes:
    """Return the bytes of all that tracing does not give.

    An image is named by its digest, so that a group of candidates keeps its one cubin
    once.
    """
    assert built.schedule is not None, "what a compiler refused had one"
    if isinstance(built, Failure):
        facts: tuple[Any, ...] = built.schedule, built.phase, built.error
        return pickle.dumps(facts)
    how = built.slots, built.threads, built.per_block, built.shared
    code = replace(built.code, image=b"", phases=(), function=None)
    facts = built.schedule, built.text, *how, code, digest(built.code.image)
    return pickle.dumps(facts)


def unpack(
    data: bytes, program: Program, target: str
) -> tuple[Artifact, str] | Failure:
    """Read a build and the name of its image, or why it was refused."""
    facts = pickle.loads(data)  # noqa: S301 # the disk vouches for every byte
    if len(facts) == len(("schedule", "phase", "error")):
        schedule, phase, error = facts
        cause = KernelError(error)
        return Failure(program.name, schedule, target, phase, error, cause)
    schedule, text, slots, threads, per_block, shared, code, named = facts
    how = slots, threads, per_block, shared, code
    return Artifact(program, schedule, target, text, *how), named


LEVELS: Final = ("memory", "code", "disk")
CACHES: Final = {
    "cold": frozenset[str](),
    "warm-disk": frozenset({"disk"}),
    "warm-memory": frozenset(LEVELS),
}
"""What a build may find under each name: a quantity of the same name measures it."""


def levels_of(
    kernel: str, cache: str, drop: frozenset[str] = frozenset()
) -> frozenset[str]:
    """Return the levels of a named cache, less those that are dropped."""
    if cache not in CACHES:
        raise KernelError(
            f"{kernel}: cache {cache!r} is not known, expected one of "
            f"{', '.join(CACHES)}; pass one of these."
        )
    unknown = sorted(drop - set(LEVELS))
    if unknown:
        raise KernelError(
            f"{kernel}: cache level {unknown[0]!r} is not known, expected one of "
            f"{', '.join(LEVELS)}; drop one of these."
        )
    return CACHES[cache] - drop


@Once
def compiled() -> dict[tuple[str, str], Code]:
    """Return this process's code by target and text, loaded where that can be."""
    return {}


@Once
def disk() -> Disk:
    """Return this user's cache, which keeps nothing where STEELYARD_CACHE=off."""
    return Disk(default_directory())


def keeps() -> bool:
    """Say whether there is a folder to keep builds in at all."""
    return disk().directory is not None


def recall(key: str, program: Program, target: str) -> Artifact | Failure | None:
    """Read a build and its image from disk; None for anything that is not whole.

    Each build of a group reads the whole group's cubin.
    """
    with span("read record"):
        found = disk().get(key)
    if found is None:
        return None
    try:
        with span("unpack"):
            known = unpack(found, program, target)
    except Exception:  # noqa: BLE001 - what is not ours may be anything
        return None
    if isinstance(known, Failure):
        return known
    built, named = known
    with span("read image"):
        image = disk().get(named)
    if image is None:
        return None
    return replace(built, code=replace(built.code, image=image))


def remember(key: str, built: Artifact | Failure, *, with_image: bool = True) -> None:
    """Write a build and its image, which may be there already, of others of a group.

    A disk that refuses costs only time.
    """
    image = built.code.image if isinstance(built, Artifact) and with_image else None
    if image is None or disk().put(digest(image), image):
        disk().put(key, pack(built))
