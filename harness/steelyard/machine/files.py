"""Files that anybody may have put there, and files that are written whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from steelyard.errors import SteelyardError

ENOUGH = 64 << 20
"""Bytes: more is none of what is read at once."""


def read(path: Path, *, follow: bool = True, limit: int = ENOUGH) -> bytes:
    """Return what a file holds; never wait for a pipe, nor read a device.

    Raises:
        OSError: it cannot be read, is no file, is larger than ``limit`` bytes, or is a
            link that must not be followed.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(path, flags if follow else flags | os.O_NOFOLLOW)
    with os.fdopen(handle, "rb") as file:
        facts = os.fstat(handle)
        if stat.S_ISDIR(facts.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        if facts.st_size > limit:
            why = f"it has {facts.st_size} bytes, expected at most {limit}"
            raise OSError(errno.EFBIG, why, str(path))
        return file.read(limit)


def replace(path: Path, content: bytes) -> None:
    """Write a file aside and rename it: who is killed or finds the disk full keeps the old.

    What is no file, such as ``/dev/stdout`` or a pipe, is written to as it is; a file in a
    folder that takes no other too.

    Raises:
        OSError: it cannot be written.
    """
    alone = not path.is_file() or not os.access(path.resolve().parent, os.W_OK)
    if path.exists() and alone:
        path.write_bytes(content)
        return
    path = path.resolve()  # of a link its target is replaced
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    _clear(path)
    try:
        _write(aside, content)
        if path.exists():
            aside.chmod(stat.S_IMODE(path.stat().st_mode))
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def save(
    path: str | Path,
    content: str | bytes,
    what: str = "",
    hint: str = "Name another file.",
) -> None:
    """Write a file that an option names; see `replace`.

    Raises:
        SteelyardError: it cannot be written; ``what`` was named, and the ``hint`` helps.
    """
    try:
        replace(
            Path(path),
            content.encode(errors="replace") if isinstance(content, str) else content,
        )
    except OSError as error:
        raise SteelyardError(
            f"{f'{what} {path}'.lstrip()}: {error.strerror}. {hint}"
        ) from error


@contextmanager
def locked(path: Path, how: int = fcntl.LOCK_EX) -> Iterator[int]:
    """Hold the lock of a file, or of a folder; it ends with the process at the latest."""
    flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
    handle = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, how)
        yield handle
    finally:
        os.close(handle)


def folder(path: Path, what: str, hint: str) -> None:
    """Make a folder, where it is not there.

    Raises:
        SteelyardError: it cannot be made; ``what`` names it, and the ``hint`` helps.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SteelyardError(f"{what}: {error.strerror}. {hint}") from error


def require_writable(path: str | Path, what: str) -> None:
    """Refuse a file that could not be written once everything is done.

    Raises:
        SteelyardError: it is a folder, or its folder is missing or gives no permission.
    """
    place = Path(path)
    target = place if place.exists() else place.parent
    if place.is_dir() or not os.access(target, os.W_OK):
        raise SteelyardError(
            f"{what} {path} cannot be written: {target} is a folder, is missing or gives "
            "no permission. Name a file in a folder that exists."
        )


def _clear(path: Path) -> None:
    """Remove what processes left beside a file that were killed while they wrote it."""
    for aside in path.parent.glob(f".{glob.escape(path.name)}.*"):
        pid = aside.name.rpartition(".")[2]
        if pid.isdecimal() and not Path("/proc", pid).exists():
            aside.unlink(missing_ok=True)


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
