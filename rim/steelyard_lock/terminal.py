"""What both commands say on a terminal, or to a file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from rich.console import RenderableType

PAGE: Final = 320
"""Columns where there is no terminal to ask: a row stays one line of a file."""

CLEAR: Final = "\r\x1b[K"
"""Back to the start of the line, and erase it (ECMA-48, EL)."""


def show(parts: Callable[[int], Iterator[RenderableType]]) -> None:
    """Print parts that are made for the width of the terminal, tables apart."""
    from steelyard.report import tables

    console = tables.console(page=PAGE)
    for place, part in enumerate(parts(console.width)):
        if place and not isinstance(part, str):
            console.print()
        console.print(part, markup=False)


def progress(what: str, done: int, total: int) -> None:
    """Show on standard error how far something is, where that is a terminal."""
    if sys.stderr.isatty():
        line = f"{what} {done} of {total}" if done < total else ""
        click.echo(f"{CLEAR}{line}", nl=False, err=True)
