"""Builds kept on disk: bytes by key, and anything that is wrong is a miss.

One file an entry, in a folder of its key's first two digits. An entry is written to a
temporary beside it and renamed, so readers see all of it or none; nobody locks. Its
digest covers its key, so a torn, flipped or exchanged entry is not taken for one.
Bad entries are left where they are: the put that follows a miss replaces them.

Entries are machine code, so only this user's are read. Folders must be the user's and
closed to others, and so must every file; links are not followed; and digests are made
with a secret of the folder (`KEY_FILE`), so that an entry from elsewhere, of a fork's or a
shared machine's cache, is a miss.

Nothing is flushed to the device (fsync): that costs more than most builds, and what a
power failure tears is a miss.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import Struct

SCHEMA: Final = 2
"""Version of the file format; entries of any other are misses."""

LIMIT: Final = 1 << 30
"""Bytes on disk that a cache may take: tens of thousands of kernels of 16 KiB."""

KEY_FILE: Final = "key"
"""File of the folder with what its digests are made with: random, and the user's."""

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
_FOLDER_OF: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
"""A pipe must not block, and a link is nobody's entry."""
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_SECRET_BYTES: Final = 32
_KEY: Final = re.compile(r"[0-9a-f]{8,128}")
_FOLDER: Final = re.compile(r"[0-9a-f]{2}")
_OURS: Final = re.compile(r"[0-9a-f]{8,128}\.build(\.[0-9a-f]{16}\.tmp)?")


class NotPrivateError(OSError):
    """A folder is not the user's, or others may write to it."""


class _File(NamedTuple):
    used: float
    path: str
    size: int
    temporary: bool


class Disk(Struct, frozen=True):
    """A folder of entries; with no folder every get is a miss and every put False.

    Keys are hex digests (ValueError for others). Processes may share a folder, and
    put, get, evict and drop at the same time.
    """

    directory: Path | None
    limit: int = LIMIT
    every: int = EVERY

    def get(self, key: str) -> bytes | None:
        """Return what was put under a key, or None if it is not there whole."""
        folder, name = self._place(key)
        try:
            with (
                self._root() as root,
                _opened(folder, root, close=False) as within,
            ):
                entry, used = _read(name, within, self.limit)
                payload = entry[_HEADER.size :]
                if entry[: _HEADER.size] != _header(key, payload, _secret(root)):
                    return None
                if time.time() - used > TOUCH_SECONDS:
                    with suppress(OSError):
                        os.utime(name, dir_fd=within, follow_symlinks=False)
        except OSError as error:
            _say(error)
            return None
        return payload

    def put(self, key: str, payload: bytes) -> bool:
        """Keep a payload; False if the disk refused or it is above the limit."""
        folder, name = self._place(key)
        if _HEADER.size + len(payload) > self.limit or self.directory is None:
            return False
        number = os.urandom(8)
        try:
            with self._root(make=True) as root:
                secret = _secret(root) or _new_secret(root)
                with suppress(FileExistsError):
                    os.mkdir(folder, 0o700, dir_fd=root)
                entry = _header(key, payload, secret) + payload
                with _opened(folder, root, close=True) as within:
                    _write(name, f"{name}.{number.hex()}.tmp", entry, within)
        except OSError as error:
            _say(error)
            return False
        if int.from_bytes(number, "little") % self.every == 0:
            self._evict()
        return True

    def refusal(self) -> str | None:
        """Return why nothing is kept in the folder, None if it is fine or not there."""
        try:
            with self._root():
                return None
        except NotPrivateError as error:
            return str(error)
        except OSError:
            return None

    def drop(self) -> int:
        """Remove all entries and temporaries, nothing else; return how many entries."""
        if self.refusal():
            return 0
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

    @contextmanager
    def _root(self, *, make: bool = False) -> Iterator[int]:
        """Open the folder, which may be a link of the user's to one."""
        if self.directory is None:
            raise FileNotFoundError(os.devnull)
        if make:
            _make(self.directory)
        if self.directory.lstat().st_uid != os.geteuid():
            raise _not_private(self.directory, "is another user's")
        with _opened(str(self.directory), None, close=make) as root:
            yield root

    def _place(self, key: str) -> tuple[str, str]:
        if not _KEY.fullmatch(key):
            raise ValueError(
                f"{key!r} is no key of a cache, which is 8 to 128 digits 0-9a-f. "
                "Give a hex digest."
            )
        return key[:2], f"{key}.build"

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
                    size = max(512 * status.st_blocks, status.st_size)
                    yield _File(status.st_mtime, file.path, size, temporary)


def default_directory(of: str = "") -> Path | None:
    """Return where builds are kept: $STEELYARD_CACHE, or the user's cache folder.

    Others are kept in the folder `of` there. None if it says `off`, or for a user
    without a home.
    """
    chosen = os.environ.get("STEELYARD_CACHE")
    if chosen == "off":
        return None
    try:
        if chosen:
            return Path(chosen).expanduser() / of
        import platformdirs

        return platformdirs.user_cache_path("steelyard").expanduser() / (of or "builds")
    except RuntimeError:  # neither HOME nor an entry of passwd
        return None


def kept(of: str, named: str, make: Callable[[], bytes]) -> bytes:
    """Return what is kept under all that it depends on, or else make it and keep it.

    `of` is its folder; a damaged entry is made anew, and a folder that cannot be written
    keeps nothing.
    """
    disk = Disk(default_directory(of))
    key = blake2b(named.encode(), digest_size=16).hexdigest()
    found = disk.get(key)
    if found is None:
        found = make()
        disk.put(key, found)
    return found


def _header(key: str, payload: bytes, secret: bytes | None) -> bytes:
    """Return an entry's header; nothing equals that of no secret."""
    if secret is None:
        return b""
    prefix = struct.pack("<8sIQ", _MAGIC, SCHEMA, len(payload))
    digest = blake2b(prefix, digest_size=16, key=secret)
    digest.update(key.encode())
    digest.update(payload)
    return prefix + digest.digest()


def _make(folder: Path) -> None:
    """Make a folder and those above it that are missing, all closed to others."""
    for each in (*reversed(folder.parents), folder):
        if not each.exists():
            with suppress(FileExistsError):
                each.mkdir(0o700)


@contextmanager
def _opened(folder: str, parent: int | None, *, close: bool) -> Iterator[int]:
    """Open a folder that no other user can write; ``close`` it to their reading too."""
    link = 0 if parent is None else os.O_NOFOLLOW
    opened = os.open(folder, _FOLDER_OF | link, dir_fd=parent)
    try:
        status = os.fstat(opened)
        if status.st_uid != os.geteuid():
            raise _not_private(folder, "is another user's")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise _not_private(folder, "can be written by other users")
        if close and status.st_mode & 0o077:
            with suppress(OSError):  # a read-only disk
                os.fchmod(opened, 0o700)
        yield opened
    finally:
        os.close(opened)


def _not_private(folder: object, why: str) -> NotPrivateError:
    return NotPrivateError(
        f"steelyard keeps no builds in {folder}: it {why}, who could put their code "
        "there; remove it, or run chmod -R go= on it if it is yours, or name another "
        "folder in STEELYARD_CACHE."
    )


_SAID: Final[set[str]] = set()


def _say(error: OSError) -> None:
    """Write once a process what a user should know; what else fails costs only time."""
    sentence = str(error)
    if isinstance(error, NotPrivateError) and sentence not in _SAID:
        _SAID.add(sentence)
        sys.stderr.write(f"{sentence}\n")


def _secret(root: int) -> bytes | None:
    """Return the folder's secret; None if it has none that only the user could know."""
    try:
        secret, _ = _read(KEY_FILE, root, _SECRET_BYTES)
    except OSError:
        return None
    return secret if len(secret) == _SECRET_BYTES else None


def _new_secret(root: int) -> bytes:
    """Make the folder's secret, or return the one that another process just made."""
    temporary = f"{KEY_FILE}.{os.urandom(8).hex()}.tmp"
    _write(None, temporary, os.urandom(_SECRET_BYTES), root)
    try:
        os.link(temporary, KEY_FILE, src_dir_fd=root, dst_dir_fd=root)
    except FileExistsError:
        if _secret(root) is None:  # damaged
            os.replace(temporary, KEY_FILE, src_dir_fd=root, dst_dir_fd=root)
    with suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=root)
    secret = _secret(root)
    if secret is None:
        raise OSError(f"{KEY_FILE} is not kept")
    return secret


def _read(name: str, folder: int, limit: int) -> tuple[bytes, float]:
    """Return the bytes of a file of the user's alone, and its time.

    None of its bytes if there are more than `limit`, or if it is anything else.
    """
    file = os.open(name, _READ, dir_fd=folder)
    try:
        status = os.fstat(file)
        ours = status.st_uid == os.geteuid() and not status.st_mode & 0o077
        whole = stat.S_ISREG(status.st_mode) and status.st_size <= limit
        size = status.st_size if ours and whole else 0
        return os.read(file, size), status.st_mtime
    finally:
        os.close(file)


def _write(name: str | None, temporary: str, entry: bytes, folder: int) -> None:
    """Write a file by another name and rename it; raises OSError and leaves nothing."""
    file = os.open(temporary, _CREATE, 0o600, dir_fd=folder)
    try:
        try:
            rest = memoryview(entry)
            while rest:
                rest = rest[os.write(file, rest) :]
        finally:
            os.close(file)
        if name is not None:
            os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
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
