"""One measuring run at a time per machine: two would measure each other.

The lock is ``flock`` on a file that all users share: the kernel drops it when its
holder dies, so what is written in the file can be stale but never blocks anyone.
"""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from steelyard.errors import SteelyardError
from steelyard.printable import printable
from steelyard.storing import run

SHARED: Final = 0o666
"""Every user of the machine writes the file, so that one user's run blocks all."""

PAUSE: Final = 0.2
"""Seconds between two tries: short beside any run, and no load on its cores."""


def default_path() -> Path:
    """Return the machine's lock file, or that of ``STEELYARD_LOCK``.

    Not in TMPDIR, which each user and many a job has for itself.
    """
    return Path(os.environ.get("STEELYARD_LOCK", "/tmp/steelyard.lock"))  # noqa: S108 # shared on purpose


@contextmanager
def measuring(
    wait: float = 0.0,
    path: Path | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[None]:
    """Hold the machine's lock; wait up to ``wait`` seconds for it.

    Raises:
        SteelyardError: another run holds it; the sentence says who.
    """
    path = path or default_path()
    handle = _open(path)
    try:
        _acquire(handle, path, wait, pause)
        _sign(handle)
        yield
    finally:
        os.close(handle)  # which also releases the lock


def _open(path: Path) -> int:
    """Open the lock file, creating it where it does not exist.

    The plain open comes first: in a sticky folder Linux refuses O_CREAT on another
    user's existing file (fs.protected_regular).
    """
    reason = OSError()
    for flags in (os.O_RDWR, os.O_RDWR | os.O_CREAT, os.O_RDONLY):
        try:
            handle = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, SHARED)
        except OSError as error:
            reason = error
            continue
        return _shared(handle, path)
    raise SteelyardError(
        f"the lock file {path} cannot be opened ({reason.strerror}); runs must not "
        "measure each other. Make it readable, or set STEELYARD_LOCK to another file."
    ) from reason


def _shared(handle: int, path: Path) -> int:
    """Return an open lock file that every user may write."""
    facts = os.fstat(handle)
    if not stat.S_ISREG(facts.st_mode):
        os.close(handle)
        raise SteelyardError(
            f"the lock file {path} is not a file; runs must not measure each other. "
            "Remove it, or set STEELYARD_LOCK to another file."
        )
    if facts.st_uid == os.geteuid():
        os.fchmod(handle, SHARED)  # the umask cut it when the file was made
    return handle


def _acquire(
    handle: int, path: Path, wait: float, pause: Callable[[float], None]
) -> None:
    deadline = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise _held(path, wait) from None
            pause(PAUSE)
        else:
            return


def _held(path: Path, wait: float) -> SteelyardError:
    waited = f" after {wait:g} s of waiting" if wait else ""
    return SteelyardError(
        f"another run measures on this machine{waited}: {describe(content(path))}. "
        "Wait for it with --wait SECONDS; two runs at once would measure each other."
    )


def _sign(handle: int) -> None:
    """Write who holds the lock; a file of another user's may refuse, harmlessly."""
    who = {
        "pid": os.getpid(),
        "user": _user(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": run.command(),
        "cwd": _cwd(),
    }
    if fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY:
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(who).encode(), 0)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return str(os.getuid())


def _cwd() -> str:
    try:
        return str(Path.cwd())
    except OSError:  # the folder was deleted under us
        return "unknown"


def content(path: Path | None = None) -> dict[str, Any]:
    """Return what the last holder wrote; empty where nothing can be read."""
    try:
        value = json.loads((path or default_path()).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def describe(who: dict[str, Any]) -> str:
    """Say who holds the lock in half a sentence."""
    if not who:
        return "its holder left no name"
    said = {name: printable(str(one), 200) for name, one in who.items()}  # of anybody
    return (
        f"process {said.get('pid', '?')} of {said.get('user', '?')} since "
        f"{said.get('since', '?')}, `{said.get('command', '?')}` in "
        f"{said.get('cwd', '?')}"
    )


def is_held(path: Path | None = None) -> bool | None:
    """Return whether somebody holds the lock, without touching it.

    The kernel lists every lock by the file's device and inode; None where it does not.
    """
    try:
        facts = (path or default_path()).stat()
        listed = Path("/proc/locks").read_text(encoding="ascii")
    except FileNotFoundError:
        return False if Path("/proc/locks").exists() else None
    except OSError:
        return None
    if not stat.S_ISREG(facts.st_mode):
        return None
    major, minor = os.major(facts.st_dev), os.minor(facts.st_dev)
    key = f" {major:02x}:{minor:02x}:{facts.st_ino} "
    return any(key in line and "FLOCK" in line for line in listed.splitlines())
