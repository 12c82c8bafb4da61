"""One measuring run at a time per machine: two would measure each other.

The lock is ``flock`` on a file of each user's: the kernel drops it when its holder dies,
so what is written in the file can be stale but never blocks anyone.
"""

from __future__ import annotations

import fcntl
import getpass
import glob
import json
import os
import pwd
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from steelyard.errors import SteelyardError
from steelyard.machine import files, writer
from steelyard.machine.decoding import Malformed, parsed
from steelyard.machine.printable import printable

OWN: Final = 0o600
"""Of a user's lock file: what its holder runs is nobody else's business."""

PAUSE: Final = 0.2
"""Seconds between two tries: short beside any run, and no load on its cores."""


def default_path() -> Path:
    """Return the machine's lock file, or that of ``STEELYARD_LOCK``.

    Not in TMPDIR, which each user and many a job has for itself.
    """
    stated = os.environ.get("STEELYARD_LOCK")
    return Path(stated or "/tmp/steelyard.lock")  # noqa: S108 # shared on purpose


@contextmanager
def measuring(
    wait: float = 0.0,
    path: Path | None = None,
    pause: Callable[[float], None] = time.sleep,
    *,
    part: str = "",
) -> Iterator[Path]:
    """Hold the lock of the machine and give its path; wait at most ``wait`` seconds.

    Of a ``part`` of it, such as a GPU, the part's lock is another, and the machine's is
    held together with those who have other parts: whoever takes one of the whole has it
    alone.

    Every user has a lock file that no other can open, and looks in the kernel's list of
    locks whether somebody holds another's.

    Raises:
        SteelyardError: another run holds it; the sentence says who.
    """
    path = path or default_path()
    deadline = time.monotonic() + wait
    while True:
        handle = _open(_own(path))
        try:
            holder = _taken(handle, path, shared=bool(part))
            if holder is None:
                _sign(handle)
                yield path.with_name(f"{path.name}-{part}") if part else path
                return
        finally:
            os.close(handle)  # which also releases the lock
        if time.monotonic() >= deadline:
            raise _held(holder, wait)
        pause(PAUSE)


def _own(path: Path) -> Path:
    """Return the lock file of this user: the shared name, if nobody else has that."""
    try:
        mine = path.lstat().st_uid == os.geteuid()
    except OSError:
        return path
    return path if mine else path.with_name(f"{path.name}.{os.geteuid()}")


def _all(path: Path) -> Iterator[Path]:
    """Yield the lock files of all users."""
    yield path
    prefix = f"{path.name}."
    for other in path.parent.glob(f"{glob.escape(prefix)}*"):
        if other.name.removeprefix(prefix).isdecimal():
            yield other


def _taken(handle: int, path: Path, *, shared: bool) -> Path | None:
    """Lock an open file; return the one by which another run holds the machine."""
    try:
        how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(handle, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return _own(path)
    own = os.fstat(handle)
    for other in _all(path):
        with suppress(OSError):
            same = os.path.samestat(other.stat(), own)
            if not same and _is_locked(other, "WRITE" if shared else ""):
                return other
    return None


def _open(path: Path) -> int:
    """Open a lock file, creating it where it does not exist; wait for no pipe.

    The plain open comes first: in a sticky folder Linux refuses O_CREAT on a file that
    the folder's owner does not own (fs.protected_regular).
    """
    careful = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    reason = OSError()
    for flags in (os.O_RDWR, os.O_RDWR | os.O_CREAT):
        try:
            handle = os.open(path, flags | careful, OWN)
        except OSError as error:
            reason = error
            continue
        return _private(handle, path)
    raise SteelyardError(
        f"the lock file {path} cannot be opened ({reason.strerror}); runs must not "
        "measure each other. Remove it, or set STEELYARD_LOCK to another file."
    ) from reason


def _private(handle: int, path: Path) -> int:
    """Return an open lock file that only this user may open."""
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise SteelyardError(
            f"the lock file {path} is not a file; runs must not measure each other. "
            "Remove it, or set STEELYARD_LOCK to another file."
        )
    with suppress(OSError):  # one that root looks at for somebody else
        os.fchmod(handle, OWN)
    return handle


def _held(path: Path, wait: float) -> SteelyardError:
    waited = f" after {wait:g} s of waiting" if wait else ""
    return SteelyardError(
        f"another run measures on this machine{waited}: {_holder(path)}. "
        "Wait for it, as commands do with --wait SECONDS; two runs at once would measure "
        "each other."
    )


def _holder(path: Path) -> str:
    """Say who holds a lock file, that of another user by the file's owner."""
    who = content(path)
    if who:
        return describe(who)
    try:
        return f"one of user {pwd.getpwuid(path.stat().st_uid).pw_name}"
    except (OSError, KeyError):
        return describe({})


def _sign(handle: int) -> None:
    """Write who holds the lock."""
    who = {
        "pid": os.getpid(),
        "user": _user(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": writer.command(),
        "cwd": _cwd(),
    }
    with suppress(OSError):  # on a full disk nobody learns it
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
        found = files.read(path or _own(default_path()), follow=False, limit=LONGEST)
        value = parsed(found)
    except (OSError, Malformed):
        return {}
    return value if isinstance(value, dict) else {}


LONGEST: Final = 1 << 20
"""Bytes that say who holds the lock."""


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
    """Return whether somebody holds the lock, without touching it; None if unknown."""
    path = path or default_path()
    if not Path("/proc/locks").exists():
        return None
    found = [_is_locked(one) for one in _all(path)]
    return True if any(found) else None if None in found else False


def _is_locked(path: Path, how: str = "") -> bool | None:
    """Return whether a file is locked, or by ``WRITE`` alone; it need not be readable.

    The kernel lists every lock by the file's device and inode; None where it does not.
    """
    try:
        facts = path.stat()
        listed = Path("/proc/locks").read_text(encoding="ascii")
    except FileNotFoundError:
        return False
    except OSError:
        return None
    if not stat.S_ISREG(facts.st_mode):
        return None
    major, minor = os.major(facts.st_dev), os.minor(facts.st_dev)
    key = f" {major:02x}:{minor:02x}:{facts.st_ino} "
    lines = [line for line in listed.splitlines() if key in line and "FLOCK" in line]
    return any(how in line for line in lines)
