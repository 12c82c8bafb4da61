"""Entry points of installed packages: what adds doubts, clocks, formats, results, commands."""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group.

    `importlib.metadata` takes 20 ms to import, more than all else that most processes
    here need: it is asked only where a package may have some.
    """
    if not _may_have(group):
        return ()
    from importlib.metadata import entry_points as read

    return tuple(read(group=group))


def _may_have(group: str) -> bool:
    """Say whether a folder of `sys.path` names a group, or others than folders may."""
    finders = [each for each in sys.meta_path if each is not PathFinder]
    if any(hasattr(each, "find_distributions") for each in finders):
        return True
    return any(_names(path or ".", f"[{group}]".encode()) for path in sys.path)


def _names(path: str, section: bytes) -> bool:
    if path.endswith(".egg") or Path(path).is_file():
        return True  # it lies in there, if at all
    try:
        with os.scandir(path) as every:
            found = [
                e.path for e in every if e.name.endswith((".dist-info", ".egg-info"))
            ]
    except OSError:
        return False
    return any(section in _text(Path(each, "entry_points.txt")) for each in found)


def _text(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""
