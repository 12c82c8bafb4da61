"""Files of other tools: a format a file, recognised by the keys of its document.

A file's ``FORMAT`` is its `Format`. Packages add formats as entry points of `GROUP`,
whose values name a `Format`.
"""

from __future__ import annotations

import functools
import pkgutil
from hashlib import blake2b
from importlib import import_module
from typing import Any, Final

from steelyard.analyse.trial import Run, Trial
from steelyard.errors import StoreError
from steelyard.machine.decoding import Malformed
from steelyard.machine.printable import cleaned, printable
from steelyard.store import archive, foreign
from steelyard.store.foreign import Format, Source
from steelyard_device.entries import entry_points

GROUP: Final = "steelyard.imports"


@functools.cache
def formats() -> tuple[Format, ...]:
    """Return every format."""
    own = (module.name for module in pkgutil.iter_modules(__path__))
    found = [import_module(f"{__name__}.{name}").FORMAT for name in own]
    return (*found, *(point.load() for point in entry_points(GROUP)))


def known() -> str:
    """Return the tools whose files are read, as sentences have them."""
    return ", ".join(sorted(one.tool for one in formats()))


def of(document: Any) -> Format | None:
    """Return the format of a document: of those whose keys it has the one with most."""
    if not isinstance(document, dict):
        return None
    fitting = [one for one in formats() if one.keys <= document.keys()]
    return max(fitting, key=lambda one: len(one.keys), default=None)


def read(
    data: bytes, source: Source, *, others: bool = False
) -> list[tuple[Run, list[Trial]]]:
    """Return the runs of a file of any format, or of an exported run, with their trials.

    ``others`` says whether files that are of none may be there, and have none.

    Raises:
        StoreError: it is neither, or is damaged.
    """
    try:
        document = archive.document(data)
    except StoreError as error:
        raise StoreError(f"{error} Or name JSON of {known()}.") from error
    format_ = of(document)
    if format_ is None:
        if not isinstance(document, dict) or "steelyard" not in document:
            if others:
                return []
            keys = sorted(document) if isinstance(document, dict) else ()
            raise StoreError(
                f"this is neither an exported run nor JSON of {known()}: its keys are "
                f"{printable(', '.join(keys), 80) or 'none'}. Name another file."
            )
        return [archive.run_of(document)]
    try:
        return foreign.runs(format_, cleaned(document), source)
    except Malformed as error:
        raise StoreError(
            f"these results of {format_.tool} cannot be read: {error}. Nothing was "
            "imported; have it write them again."
        ) from error


def digest(data: bytes) -> str:
    """Return what tells a file from others."""
    return blake2b(data, digest_size=16).hexdigest()
