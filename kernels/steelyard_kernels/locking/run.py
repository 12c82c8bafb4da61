"""Make the lock, keep it, compare it: `steelyard lock` and a gate's static lane.

The whole lock is on disk by the hash of our sources and the builds of the compilers, so
that sources that did not change cost nothing; below that each
text's code is, and a lock file says what its own texts come to.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from steelyard_device.errors import DeviceError
from steelyard_kernels.building import keys
from steelyard_kernels.building.cache import disk, keeps
from steelyard_kernels.digest import digest
from steelyard_kernels.errors import KernelError
from steelyard_kernels.locking import code
from steelyard_kernels.locking.cases import TARGETS, cases
from steelyard_kernels.locking.changes import GONE, differences
from steelyard_kernels.locking.entries import (
    AGAIN,
    FORMAT,
    WRITE,
    Lock,
    Unreadable,
    read,
    text,
)

USAGE: Final = 4
BUILD_FAILED: Final = 2
"""Exit codes, the harness's."""


def _silent(_done: int, _all: int) -> None:
    """Tell nobody."""


def made(told: code.Told = _silent, before: Lock | None = None) -> Lock:
    """Return the lock of our sources as they are; texts that `before` has are believed.

    Raises:
        BuildError: a kernel cannot be built.
        DeviceError: there is no compiler for GPUs here.
    """
    compilers = code.compilers()
    plain = _key(compilers, None)
    believed = _key(compilers, before) if before is not None else plain
    for key in dict.fromkeys((plain, believed)):
        kept = _recalled(key)
        if kept is not None:
            return kept
    known = code.known(before) if before is not None else {}
    found = code.compiled(code.sources(cases(), TARGETS), told, known)
    lock = Lock(compilers, {entry.key: entry for entry in found})
    if keeps():
        disk().put(believed, text(lock).encode())
    return lock


def _key(compilers: Mapping[str, str], before: Lock | None) -> str:
    """Return where a lock is kept; one that believed a file is kept by that too."""
    file = text(before) if before is not None else ""
    return digest(json.dumps([FORMAT, keys.sources(), compilers, file]).encode())


def _recalled(key: str) -> Lock | None:
    """Return a lock that is kept whole."""
    kept = disk().get(key) if keeps() else None
    try:
        return read(kept.decode(), "cache") if kept is not None else None
    except (UnicodeDecodeError, Unreadable):  # of a development version, say
        return None


class Incomparable(KernelError):  # noqa: N818 - reads as the verdict it is
    """Two locks of other compilers: everything would differ, and nothing be said."""


def check_comparable(old: Mapping[str, str], new: Mapping[str, str], name: str) -> None:
    """Raise Incomparable where the compilers of two locks are not of the same build."""
    for kind in {**old, **new}:
        then, now = old.get(kind, "none"), new.get(kind, "none")
        if then != now:
            raise Incomparable(
                f"{name} is of the {kind} compiler {then}, here is {now}: install that "
                f"one, or {AGAIN} and commit it by itself."
            )


def compare(content: str | None, name: str) -> dict[str, Any]:
    """Hold our sources against a lock file's content, in plain data for others.

    `content` None means that there is no such file. Returns `problem`, why nothing can
    be said, and `exit_code`; or `same`, the (case, target) of every entry that did not
    change, and of the others `changed` and `gone`, with the changes in words.
    """
    try:
        if content is None:
            raise Unreadable(f"there is no {name}: {WRITE} and commit it.")
        old = read(content, name)
        check_comparable(old.compilers, code.compilers(), name)
        new = made(before=old)
    except code.BuildError as error:
        return {"problem": str(error), "exit_code": BUILD_FAILED}
    except (KernelError, DeviceError) as error:
        return {"problem": str(error), "exit_code": USAGE}
    found = differences(old, new)
    gone = [(each.case, each.target) for each in found if each.changes == (GONE,)]
    changed = [
        (each.case, each.target, each.changes)
        for each in found
        if each.changes != (GONE,)
    ]
    told = {(each.case, each.target) for each in found}
    same = [key for key in new.entries if key not in told]
    return {"same": same, "changed": changed, "gone": gone}
