"""Builds kept on disk: bytes by key, and anything that is wrong is a miss.

One file an entry, in a folder of its key's first two digits. An entry is written to a
temporary beside it and renamed, so readers see all of it or none; nobody locks. Its
digest covers its key, so a torn, flipped or exchanged entry is not taken for one.
Bad entries are left where they are: the put that follows a miss replaces them.

Nothing is flushed to the device (fsync): that costs more than most builds, and what a
power failure tears is a miss.
"""

from __future__ import annotations

import os
import re
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple

SCHEMA: Final = 1
"""Version of the file format; entries of any other are misses."""

LIMIT: Final = 1 << 30
"""Bytes that a cache may take: tens of thousands of kernels of 16 KiB."""

EVERY: Final = 256
"""One put in so many, at random, looks at all entries and evicts.

No process has to know about another: on average the limit is overshot by so many
entries, and a put pays for 1/256 of a walk (1 us an entry)."""

TOUCH_SECONDS: Final = 3600.0
"""How stale an entry's time of use may get: a hit writes at most once an hour."""

ABANDONED_SECONDS: Final = 3600.0
"""Age of a temporary whose writer must be dead: writing takes milliseconds."""

_HEADER: Final = struct.Struct("<8sIQ16s")
"""Magic, schema, length of the payload, digest of all that and key and payload."""

_MAGIC: Final = b"steelyrd"
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe must not block
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_KEY: Final = re.compile(r"[0-9a-f]{8,128}")
_FOLDER: Final = re.compile(r"[0-9a-f]{2}")
_OURS: Final = re.compile(r"[0-9a-f]{8,128}\.build(\.[0-9a-f]{16}\.tmp)?")


class _File(NamedTuple):
    used: float
    path: str
    size: int
    temporary: bool


@dataclass(frozen=True, slots=True)
class Disk:
    """A folder of entries; with no folder every get is a miss and every put False.

    Keys are hex digests (ValueError for others). Processes may share a folder, and
    put, get, evict and drop at the same time.
    """

    directory: Path | None
    limit: int = LIMIT
    every: int = EVERY

    def get(self, key: str) -> bytes | None:
        """Return what was put under a key, or None if it is not there whole."""
        path = self._path(key)
        try:
            entry, used = _read(path, self.limit)
        except OSError:
            return None
        payload = entry[_HEADER.size :]
        if entry[: _HEADER.size] != _header(key, payload):
            return None
        if time.time() - used > TOUCH_SECONDS:
            with suppress(OSError):
                os.utime(path)
        return payload

    def put(self, key: str, payload: bytes) -> bool:
        """Keep a payload; False if the disk refused or it is above the limit."""
        path = self._path(key)
        entry = _header(key, payload) + payload
        if len(entry) > self.limit:
            return False
        name = os.urandom(8)
        try:
            _write(path, f"{path}.{name.hex()}.tmp", entry)
        except OSError:
            return False
        if int.from_bytes(name, "little") % self.every == 0:
            self._evict()
        return True

    def drop(self) -> int:
        """Remove all entries and temporaries, nothing else; return how many entries."""
        files = list(self._files())
        removed = sum(_remove(file.path) for file in files if not file.temporary)
        for file in files:
            if file.temporary:
                _remove(file.path)
        for folder in {Path(file.path).parent for file in files}:
            with suppress(OSError):  # something of somebody else's is in it
                folder.rmdir()
        return removed

    def size(self) -> tuple[int, int]:
        """Return how many entries there are and how many bytes they take."""
        sizes = [file.size for file in self._files() if not file.temporary]
        return len(sizes), sum(sizes)

    def _path(self, key: str) -> str:
        if not _KEY.fullmatch(key):
            raise ValueError(
                f"{key!r} is no key of a cache, which is 8 to 128 digits 0-9a-f. "
                "Give a hex digest."
            )
        return f"{self.directory or os.devnull}/{key[:2]}/{key}.build"

    def _evict(self) -> None:
        """Remove what was unused longest until the limit holds, and dead temporaries.

        Others may be at it too: what is gone already counts as removed.
        """
        files = sorted(self._files())
        excess = sum(file.size for file in files) - self.limit
        abandoned = time.time() - ABANDONED_SECONDS
        for file in files:
            if (file.temporary and file.used < abandoned) or (
                not file.temporary and excess > 0
            ):
                _remove(file.path)
                excess -= file.size

    def _files(self) -> Iterator[_File]:
        """Yield our files, as far as they can be seen; links are not followed."""
        for folder in _scan(self.directory, _FOLDER):
            for file in [] if folder.is_symlink() else _scan(folder.path, _OURS):
                with suppress(OSError):
                    status = file.stat(follow_symlinks=False)
                    temporary = file.name.endswith(".tmp")
                    yield _File(status.st_mtime, file.path, status.st_size, temporary)


def default_directory() -> Path | None:
    """Return where builds are kept: $STEELYARD_CACHE, or the user's cache folder.

    None if it says `off`.
    """
    chosen = os.environ.get("STEELYARD_CACHE")
    if chosen == "off":
        return None
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs

    return platformdirs.user_cache_path("steelyard") / "builds"


def _header(key: str, payload: bytes) -> bytes:
    prefix = struct.pack("<8sIQ", _MAGIC, SCHEMA, len(payload))
    digest = blake2b(prefix, digest_size=16)
    digest.update(key.encode())
    digest.update(payload)
    return prefix + digest.digest()


def _read(path: str, limit: int) -> tuple[bytes, float]:
    """Return a file's bytes, none if there are more than `limit`, and its time."""
    file = os.open(path, _READ)
    try:
        status = os.fstat(file)
        size = status.st_size if status.st_size <= limit else 0
        return os.read(file, size), status.st_mtime
    finally:
        os.close(file)


def _write(path: str, temporary: str, entry: bytes) -> None:
    """Write a file by another name and rename it; raises OSError and leaves nothing."""
    try:
        file = os.open(temporary, _CREATE, 0o600)
    except FileNotFoundError:
        Path(path).parent.mkdir(0o700, parents=True, exist_ok=True)
        file = os.open(temporary, _CREATE, 0o600)
    try:
        try:
            rest = memoryview(entry)
            while rest:
                rest = rest[os.write(file, rest) :]
        finally:
            os.close(file)
        Path(temporary).replace(path)
    except BaseException:
        _remove(temporary)
        raise


def _remove(path: str) -> bool:
    try:
        Path(path).unlink()
    except OSError:
        return False
    return True


def _scan(folder: Path | str | None, names: re.Pattern[str]) -> list[os.DirEntry[str]]:
    """Return a folder's entries of such names, none if it cannot be read."""
    if folder is None:
        return []
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if names.fullmatch(entry.name)]
    except OSError:
        return []
