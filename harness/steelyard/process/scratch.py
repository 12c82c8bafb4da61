"""A folder that the processes of one run share; that of a killed run goes with the next.

Whoever uses a folder holds a lock on it (flock), which ends with its process: nobody
takes away what somebody still uses, and nothing in it is to be believed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

PREFIX: Final = "steelyard-scratch-"


@contextmanager
def folder(prefix: str = PREFIX) -> Iterator[str]:
    """Give a folder as long as the context lasts; remove those of the dead before."""
    for home in abandoned(homes(prefix)):
        shutil.rmtree(home, ignore_errors=True)
    home, held = _claimed(prefix)
    try:
        yield str(home)
    finally:
        shutil.rmtree(home, ignore_errors=True)
        os.close(held)


def homes(prefix: str) -> list[Path]:
    """Return the folders with a prefix, whosever they are."""
    return list(Path(tempfile.gettempdir()).glob(f"{prefix}*"))


def abandoned(homes: Iterable[Path]) -> Iterator[Path]:
    """Yield the folders of processes that are gone; each is ours until the next."""
    for home in homes:
        held = _held(home)
        if held is not None:
            yield home
            os.close(held)


def _claimed(prefix: str) -> tuple[Path, int]:
    """Make a folder and hold its lock."""
    while True:
        home = Path(tempfile.mkdtemp(prefix=prefix))
        held = _held(home)
        if held is not None:
            return home, held
        # Somebody who looks for what is left behind was quicker.


def _held(home: Path) -> int | None:
    """Return a descriptor that holds a folder's lock; None where it cannot be had."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        held = os.open(home, flags)
    except OSError:
        return None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(held), home.stat()):
            return held
    except OSError:
        pass
    os.close(held)
    return None
