"""Which builds are remembered, and where: three levels, each can be left out.

- `memory`: a kernel object's builds by shapes, dtypes, schedule and target, found
  before anything is traced (`function`);
- `code`: a process's code by the text it was made from: different shapes and kernels
  that come to the same text share one binary;
- `disk`: builds of this user by everything that they depend on (`keys`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from steelyard_device.disk import Disk, default_directory
from steelyard_device.threads import Once
from steelyard_device.timings import span
from steelyard_kernels.binary import Code
from steelyard_kernels.building.record import Record, Refused, pack, unpack
from steelyard_kernels.digest import digest
from steelyard_kernels.errors import KernelError

if TYPE_CHECKING:
    from steelyard_device.cpu import Function

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


class Compiled(NamedTuple):
    """Code, loaded where it is this machine's."""

    made: Code
    function: Function | None


@Once
def compiled() -> dict[tuple[str, str], Compiled]:
    """Return this process's code by target and text."""
    return {}


@Once
def disk() -> Disk:
    """Return this user's cache, which keeps nothing where STEELYARD_CACHE=off."""
    return Disk(default_directory())


def keeps() -> bool:
    """Say whether there is a folder to keep builds in at all."""
    return disk().directory is not None


def recall(key: str) -> tuple[Record, bytes] | Refused | None:
    """Read a build and its image from disk; None for anything that is not whole.

    Each build of a group reads the whole group's cubin.
    """
    with span("read record"):
        found = disk().get(key)
    if found is None:
        return None
    try:
        with span("unpack"):
            record = unpack(found)
    except (ValueError, KeyError, TypeError):  # of a development version, say
        return None
    if isinstance(record, Refused):
        return record
    with span("read image"):
        image = disk().get(record.image_digest)
    return None if image is None else (record, image)


def remember(key: str, record: Record | Refused, image: bytes | None = None) -> None:
    """Write a build and, if given, its image; a disk that refuses costs only time."""
    if image is None or disk().put(digest(image), image):
        disk().put(key, pack(record))
