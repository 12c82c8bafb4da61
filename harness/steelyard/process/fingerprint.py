"""Fingerprint of the Python environment, to compare two sides of a gate.

What a compiler in Python takes depends on more than on what it makes: on the
interpreter, on every package it may import, and on the sources it was imported from.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

CODE: Final = (".py", ".so")
"""How files end that Python runs. Of the others some have a path in them."""

OWN: Final = ("..", "/", "__editable__")
"""How files of a distribution begin that differ with the folder it is installed in."""


def digest() -> str:
    """Return a hash of the interpreter, all that is installed, and what is imported.

    Of an installed distribution it has what its installer wrote down of its files; what
    is imported from elsewhere, such as from a checkout, is read. Where files lie is not
    in it.
    """
    found = hashlib.blake2b(f"{sys.version} {sys.flags}".encode(), digest_size=16)
    for text in (*_installed(), *sorted(map(_content, {*_imported()}))):
        found.update(f"{text}\n".encode())
    return found.hexdigest()


@functools.cache
def _installed() -> tuple[str, ...]:
    """Return every distribution with the hashes of its files."""
    return tuple(sorted({_said(one) for one in metadata.distributions()}))


def _said(one: metadata.Distribution) -> str:
    lines = (one.read_text("RECORD") or "").splitlines()
    code = sorted(line for line in lines if _is_code(line.partition(",")[0]))
    return f"{one.metadata['Name']} {one.version} {code}"


def _is_code(path: str) -> bool:
    return path.endswith(CODE) and not path.startswith(OWN)


def _imported() -> Iterator[str]:
    """Yield the packages and files of modules that were not installed with something."""
    known = tuple(_homes())
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and not file.startswith(known):
            package = sys.modules.get(name.partition(".")[0])
            yield from getattr(package, "__path__", None) or [file]


def _homes() -> Iterable[str]:
    """Return the folders of the standard library and of what is installed."""
    own = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    places = {place for place in sys.path if place.endswith("site-packages")}
    return {f"{place.rstrip('/')}/" for place in (own | places) if place}


@functools.cache
def _content(place: str) -> str:
    """Return the hash of a file, or of all code in a folder; the name of what is gone."""
    path = Path(place)
    try:
        if not path.is_dir():
            return _hash(path.read_bytes())
        found = sorted(_code(path, ""))
        return _hash(*(f"{name} {_hash(text)}".encode() for name, text in found))
    except OSError:
        return place


def _code(folder: Path, prefix: str) -> Iterator[tuple[str, bytes]]:
    """Yield what is under a folder; nothing hidden, such as an environment of its own."""
    for each in folder.iterdir():
        if each.name.startswith("."):
            continue
        if each.is_dir():
            yield from _code(each, f"{prefix}{each.name}/")
        elif each.name.endswith(CODE):
            yield f"{prefix}{each.name}", each.read_bytes()


def _hash(*texts: bytes) -> str:
    return hashlib.blake2b(b"\n".join(texts), digest_size=16).hexdigest()
