"""The command line: one command a file of this folder, loaded when it is used.

A file is named like its command, its docstring says in a line what that does, and its
``command`` does it. It also gives every way to end its exit code: see `errors`.
"""

from __future__ import annotations

import errno
import functools
import importlib
import importlib.util
import io
import os
import pkgutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import click

from steelyard.errors import USAGE, SteelyardError, suggestion
from steelyard.machine.printable import open_closed_streams, printable
from steelyard_device.entries import entry_points

SISTERS: Final[Mapping[str, str]] = MappingProxyType(
    {name: f"steelyard_lock.{name}:command" for name in ("compile", "lock", "tune")}
)
"""Commands of packages that come with this one, which must not import them."""

ENTRY_POINTS: Final = "steelyard.commands"
"""Entry points of this group are commands of other distributions."""

INTERRUPTED: Final = 130
"""128 + SIGINT, as shells report it."""

BROKEN_PIPE: Final = 141
"""128 + SIGPIPE: the reader of our output went away."""

MOST: Final = 20_000
"""Characters of a mistake's sentence; it may end in a build's log."""

NEWLINE: Final = "\n"

NOWHERE: Final = "the current folder was deleted. Change to one that exists."

BUG: Final = 70
"""EX_SOFTWARE of sysexits.h: Python's own 1 would read as a regression."""


class Deferred(click.Command):
    """A command known by its name until somebody uses it."""

    def __init__(self, name: str, target: str) -> None:
        super().__init__(name)
        self._target = target

    def get_short_help_str(self, limit: int = 45) -> str:  # noqa: ARG002 # click wraps it
        """Return the first line of its file, which is not imported."""
        try:
            spec = importlib.util.find_spec(self._target.partition(":")[0])
        except ImportError:
            spec = None
        if spec is None or spec.origin is None:
            return "Not installed."
        first = Path(spec.origin).read_text(encoding="utf-8").partition("\n")[0]
        return first.strip('"')

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Load the real command and hand over to it."""
        return self._load().make_context(info_name, args, parent, **extra)

    def _load(self) -> click.Command:
        module, _, attribute = self._target.partition(":")
        try:
            command = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise SteelyardError(
                f"command {self.name} cannot be loaded from {self._target} ({error}); "
                "install or upgrade the package that brings it."
            ) from error
        assert isinstance(command, click.Command)
        return command


class Lazy(click.Group):
    """The group of all commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of all commands."""
        return sorted(_entry_points() | _ours())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, which is not imported for that."""
        del ctx
        target = _ours().get(cmd_name) or _entry_points().get(cmd_name)
        return Deferred(cmd_name, target) if target else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; where there is none, name the nearest."""
        word = args[0] if args else "-"
        if not word.startswith("-") and word not in _ours():
            self._require(word, self.list_commands(ctx))
        return super().resolve_command(ctx, args)

    def _require(self, word: str, known: list[str]) -> None:
        if word not in known:
            raise SteelyardError(
                f"there is no command {word!r}; {suggestion(word, known)}"
            )

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run a command; every way to end has its exit code."""
        if not standalone_mode:
            return self._plainly(*args, **extra)
        open_closed_streams()
        _never_fail_to_print()
        code = self._exit_code(*args, **extra)
        sys.exit(_unwritten() or code)

    def _plainly(self, *arguments: Any, **extra: Any) -> Any:
        """Run click's own main, which then raises instead of ending the process."""
        plain: Callable[..., Any] = super().main
        return plain(*arguments, standalone_mode=False, **extra)

    def _exit_code(self, *arguments: Any, **extra: Any) -> int:
        try:
            result = self._plainly(*arguments, **extra)
        except click.ClickException as error:
            error.show()
            return USAGE
        except (click.Abort, KeyboardInterrupt):
            click.echo("interrupted", err=True)
            return INTERRUPTED
        except SystemExit:  # click's and rich's answer to a reader who has gone
            return BROKEN_PIPE
        except Exception as error:  # noqa: BLE001 # the last line of defence
            if _is_of_output(error):
                return _full(error)
            if isinstance(error, UnicodeEncodeError) and _is_of_names(error):
                return _report(
                    SteelyardError(
                        f"{error.object!a} is not UTF-8. Rename what is called so."
                    )
                )
            if isinstance(error, FileNotFoundError) and _is_nowhere():
                return _report(SteelyardError(NOWHERE))
            return _report(error)
        return result if isinstance(result, int) else 0


def _never_fail_to_print() -> None:
    """Print what the terminal's encoding lacks as a question mark."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _unwritten() -> int:
    """Write what is left of standard output; return the exit code if that fails."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        return BROKEN_PIPE
    except OSError as error:
        return _full(error)
    return 0


def _is_of_names(error: UnicodeEncodeError) -> bool:
    """Tell whether a text has bytes of a file's or a folder's name (PEP 383)."""
    return any("\udc80" <= c <= "\udcff" for c in error.object)


def _is_nowhere() -> bool:
    """Tell whether the folder that this process is in is gone."""
    try:
        os.getcwd()  # noqa: PTH109 # nothing heavy for it
    except OSError:
        return True
    return False


def _is_of_output(error: Exception) -> bool:
    """Tell whether a stream took no more: an error of a named file has its own."""
    full = {errno.ENOSPC, errno.EDQUOT, errno.EIO}
    return isinstance(error, OSError) and not error.filename and error.errno in full


def _full(error: Exception) -> int:
    _discard_output()
    click.echo(
        f"error: standard output cannot be written: {getattr(error, 'strerror', error)}."
        " Send it elsewhere; what was measured is in the store.",
        err=True,
    )
    return USAGE


def _discard_output() -> None:
    """Let Python's own flush at exit succeed."""
    try:
        output = sys.stdout.fileno()
    except (OSError, ValueError):  # a stream in memory, or a closed one
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, output)
    os.close(null)


def _report(error: Exception) -> int:
    """Print a user's mistake as one sentence, ours with everything we need."""
    code = getattr(error, "exit_code", None)
    if isinstance(code, int):
        click.echo(f"error: {printable(str(error), MOST, keep=NEWLINE)}", err=True)
        return code
    import traceback

    from steelyard.machine.facts import versions

    traceback.print_exception(error)
    known = ", ".join(f"{name} {version}" for name, version in versions().items())
    click.echo(
        f"this is a bug in steelyard, not in your benchmark. Please report it with the "
        f"lines above, the command and the versions: {known}.",
        err=True,
    )
    return BUG


def _ours() -> dict[str, str]:
    """Return where our commands are, as ``module:attribute``."""
    return dict(SISTERS) | _own()


@functools.cache
def _own() -> dict[str, str]:
    """Look into this folder, once: 1 ms."""
    return {
        module.name.strip("_"): f"{__name__}.{module.name}:command"
        for module in pkgutil.iter_modules(__path__)
        if not module.name.startswith("_")
    }


@functools.cache
def _entry_points() -> dict[str, str]:
    """Look at every installed distribution, once."""
    return {point.name: point.value for point in entry_points(ENTRY_POINTS)}


@click.group(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="steelyard", message="steelyard %(version)s")
def main() -> None:
    """Measure kernels: the kernel and nothing else.

    `run` and `list` take files, folders or modules with benchmarks. Without any they take
    `suites` of [tool.steelyard] or STEELYARD_SUITES, else ./suites, else a small built-in
    suite, and say which.
    """
