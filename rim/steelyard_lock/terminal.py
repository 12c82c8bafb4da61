"""What both commands say on a terminal, or to a file."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from rich.console import RenderableType

CLEAR: Final = "\r\x1b[K"
"""Back to the start of the line, and erase it (ECMA-48, EL)."""


def show(parts: Iterable[RenderableType]) -> None:
    """Print parts, tables apart."""
    from steelyard.report import tables

    console = tables.console()
    for place, part in enumerate(parts):
        if place and not isinstance(part, str):
            console.print()
        console.print(part, markup=False)


def progress(what: str, done: int, total: int) -> None:
    """Show on standard error how far something is, where that is a terminal."""
    if sys.stderr.isatty():
        line = f"{what} {done} of {total}" if done < total else ""
        click.echo(f"{CLEAR}{line}", nl=False, err=True)
