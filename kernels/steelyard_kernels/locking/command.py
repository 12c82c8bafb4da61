"""`steelyard lock`: write what every kernel's code takes, or say whether that changed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from steelyard_device.errors import DeviceError
from steelyard_kernels.errors import KernelError

if TYPE_CHECKING:
    from steelyard_kernels.locking.changes import Difference
    from steelyard_kernels.locking.entries import Lock

FILE: Final = "ci/kernels.lock"
CHANGED: Final = 1
"""The exit code of a check that found the file out of date."""


class _BuildFailed(click.ClickException):
    exit_code = 2


@click.command(name="lock")
@click.argument("file", default=FILE, type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--check", is_flag=True, help="Write nothing; exit with 1 if FILE is out of date."
)
def lock(file: Path, *, check: bool) -> int:
    """Write what the code of every kernel of the library takes to FILE.

    Code for GPUs that need not be here, and for processors of two feature levels: by
    case and target its hash, registers, spills, shared memory, instructions, bytes,
    operations and launches. Nothing is launched. What changed is said in words.
    """
    from steelyard_kernels.locking.code import BuildError

    try:
        return _check(file) if check else _write(file)
    except BuildError as error:
        failed = _BuildFailed(str(error))
        raise failed from error
    except (KernelError, DeviceError) as error:
        raise click.ClickException(str(error)) from error


def _check(file: Path) -> int:
    """Say what a file has no longer right."""
    from steelyard_kernels.locking import code, entries, run
    from steelyard_kernels.locking.changes import differences

    content = _content(file)
    if content is None:
        raise KernelError(f"there is no {file}: {entries.WRITE} and commit it.")
    old = entries.read(content, str(file))
    run.check_comparable(old.compilers, code.compilers(), str(file))
    new = run.made(_progress)
    found = differences(old, new)
    _print(found)
    if found:
        click.echo(f"{file} is out of date: write it anew with `steelyard lock`.")
        return CHANGED
    click.echo(f"{file} is up to date: {len(new.entries)} entries.")
    return 0


def _write(file: Path) -> int:
    """Write a file, whole or not at all, and say what changed in it."""
    from steelyard_kernels.locking import entries, run

    content = _content(file)
    new = run.made(_progress)
    if content is not None:
        _told(content, file, new)
    text = entries.text(new)
    if text != content:
        _replace(file, text)
    click.echo(f"{file}: {len(new.entries)} entries.")
    return 0


def _told(content: str, file: Path, new: Lock) -> None:
    """Say what changes in a file that is to be replaced; only our own are."""
    from steelyard_kernels.locking import entries, run
    from steelyard_kernels.locking.changes import differences

    try:
        old = entries.read(content, str(file))
        run.check_comparable(old.compilers, new.compilers, str(file))
    except run.Incomparable as error:
        click.echo(f"note: {error.args[0].partition(': ')[0]}; all of it is new.")
    except entries.Foreign:
        raise
    except entries.Unreadable as error:
        click.echo(f"note: {error.args[0].partition(': ')[0]}; all of it is new.")
    else:
        _print(differences(old, new))


def _content(file: Path) -> str | None:
    """Return a file's text, None if there is none."""
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or "it is no text"
        raise KernelError(f"{file} cannot be read: {said}; name another.") from error


def _replace(file: Path, text: str) -> None:
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(file)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise KernelError(
            f"{file} cannot be written: {error.strerror}; name a file elsewhere."
        ) from error


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


def _progress(done: int, total: int) -> None:
    """Show how far the compilers are, on a terminal."""
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        click.echo(f"\rcompiled {done} of {total}{end}", nl=False, err=True)
