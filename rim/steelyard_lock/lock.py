"""Record the code size and registers of each kernel in a file, or check that file.

    Case* x target --trace, schedule, emit--> text --compile--> Entry* --> kernels.lock

The whole lock is on disk by the hash of our sources and the builds of the compilers, so
that sources that did not change cost nothing; below that each text's code is, and a lock
file says what its own texts come to.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import click

from steelyard.commands import _options as common
from steelyard.errors import FAILED, USAGE, BenchmarkError, SteelyardError
from steelyard.machine import files
from steelyard_device.errors import DeviceError
from steelyard_kernels.artifact import digest
from steelyard_kernels.building import keys
from steelyard_kernels.building.cache import disk
from steelyard_kernels.errors import KernelError
from steelyard_lock import code, file
from steelyard_lock.cases import TARGETS, cases
from steelyard_lock.changes import GONE, Difference, differences
from steelyard_lock.file import AGAIN, WRITE, Foreign, Lock, Unreadable

FILE: Final = "ci/kernels.lock"
ELSEWHERE: Final = "Name a file elsewhere."
CHANGED: Final = 1
"""The exit code of a check that found the file out of date."""


def made(before: Lock | None = None) -> Lock:
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
    found = code.compiled(code.sources(cases(), TARGETS), known)
    lock = Lock(compilers, {entry.key: entry for entry in found})
    disk().put(believed, file.text(lock).encode())
    return lock


def _key(compilers: Mapping[str, str], before: Lock | None) -> str:
    """Return where a lock is kept; one that believed a file is kept by that too."""
    believed = file.text(before) if before is not None else ""
    what = [file.FORMAT, keys.sources("steelyard_lock"), compilers, believed]
    return digest(json.dumps(what).encode())


def _recalled(key: str) -> Lock | None:
    """Return a lock that is kept whole."""
    kept = disk().get(key)
    try:
        return file.read(kept.decode(), "cache") if kept is not None else None
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
        new, found = _held(content, name, believed=True)
    except code.BuildError as error:
        return {"problem": str(error), "exit_code": FAILED}
    except (KernelError, DeviceError) as error:
        return {"problem": str(error), "exit_code": USAGE}
    said = {(each.case, each.target): each.changes for each in found}
    return {
        "same": [key for key in new.entries if key not in said],
        "changed": [(*key, words) for key, words in said.items() if words != (GONE,)],
        "gone": [key for key, words in said.items() if words == (GONE,)],
    }


def _held(
    content: str | None, name: str, *, believed: bool
) -> tuple[Lock, tuple[Difference, ...]]:
    """Return the lock of our sources and what differs from a file's content."""
    if content is None:
        raise Unreadable(f"there is no {name}: {WRITE} and commit it.")
    old = file.read(content, name)
    check_comparable(old.compilers, code.compilers(), name)
    new = made(before=old if believed else None)
    return new, differences(old, new)


@click.command(name="lock")
@click.argument("path", metavar="FILE", default=FILE, type=common.FILE)
@common.option(
    "--check", "Write nothing; exit with 1 if FILE is out of date.", is_flag=True
)
def command(path: Path, *, check: bool) -> int:
    """Write what the code of every kernel of the library takes to FILE.

    Code for GPUs that need not be here, and for processors of two feature levels: by
    case and target its hash, registers, spills, shared memory, instructions, bytes,
    operations and launches. Nothing is launched. What changed is said in words.
    """
    try:
        return _check(path) if check else _write(path)
    except code.BuildError as error:
        raise BenchmarkError(str(error)) from error
    except (KernelError, DeviceError) as error:
        raise SteelyardError(str(error)) from error


def _check(path: Path) -> int:
    """Say what a file has no longer right."""
    new, found = _held(_content(path), str(path), believed=False)
    _print(found)
    if found:
        click.echo(f"{path} is out of date: write it anew with `steelyard lock`.")
        return CHANGED
    click.echo(f"{path} is up to date: {len(new.entries)} entries.")
    return 0


def _write(path: Path) -> int:
    """Write a file, whole or not at all, and say what changed in it."""
    content = _content(path)
    new = made()
    if content is not None:
        _say_changes(content, path, new)
    text = file.text(new)
    if text != content:
        files.folder(path.parent, str(path), ELSEWHERE)
        files.save(path, text, hint=ELSEWHERE)
    click.echo(f"{path}: {len(new.entries)} entries.")
    return 0


def _say_changes(content: str, path: Path, new: Lock) -> None:
    """Say what changes in a file that is to be replaced; only our own are."""
    try:
        old = file.read(content, str(path))
        check_comparable(old.compilers, new.compilers, str(path))
    except Foreign:
        raise
    except (Incomparable, Unreadable) as error:
        click.echo(f"note: {error.args[0].partition(': ')[0]}; all of it is new.")
    else:
        _print(differences(old, new))


def _content(path: Path) -> str | None:
    """Return a file's text, None if there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or "it is no text"
        raise KernelError(f"{path} cannot be read: {said}; name another.") from error


def _print(found: Iterable[Difference]) -> None:
    """Print what changed; targets of a case that changed alike share a line."""
    alike: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for each in found:
        alike.setdefault((each.case, each.changes), []).append(each.target)
    for (case, changes), targets in alike.items():
        click.echo(f"{case} {joined(targets)}: {', '.join(changes)}")


def joined(targets: Iterable[str]) -> str:
    """Name targets in one word, as `--target` reads them: ``cuda:sm_80,sm_90a``."""
    words, before = [], ""
    for target in targets:
        kind, _, name = target.partition(":")
        words.append(name if kind == before else target)
        before = kind
    return ",".join(words)
