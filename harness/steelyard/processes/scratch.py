"""A folder that the processes of one run share; that of a killed run goes with the next.

It says whose it is, so that nobody takes away what somebody still uses.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from steelyard.storing import run

PREFIX: Final = "steelyard-scratch-"
OWNER: Final = "owner.json"

UNSIGNED: Final = 3600.0
"""Seconds after which nobody is about to say that a folder is theirs."""


@contextmanager
def folder() -> Iterator[str]:
    """Give a folder as long as the context lasts; remove those of the dead before."""
    sweep()
    home = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        sign(home)
        yield str(home)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def sign(home: Path) -> None:
    """Write down that a folder is this process's; on a full disk nobody learns it."""
    with suppress(OSError):
        (home / OWNER).write_text(json.dumps(run.process(os.getpid())))


def sweep() -> None:
    """Remove the folders of processes that are gone."""
    for home in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if abandoned(home) or _unsigned(home):
            shutil.rmtree(home, ignore_errors=True)


def abandoned(home: Path) -> bool:
    """Say whether the process that signed a folder is certainly gone."""
    try:
        writer = json.loads((home / OWNER).read_text())
        return run.is_gone(run.Run("", "", "", "", {}, {}, writer=writer))
    except (OSError, ValueError, KeyError, TypeError):
        return False  # it may be about to say whose it is


def _unsigned(home: Path) -> bool:
    """Say whether nobody has signed a folder for long."""
    try:
        old = time.time() - home.stat().st_mtime > UNSIGNED
        return old and not (home / OWNER).exists()
    except OSError:
        return False
