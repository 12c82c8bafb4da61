"""The files that keep what a GPU was measured to do at most: see `analyse.peaks`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from steelyard.analyse.peaks import COPY, METHOD, Table
from steelyard.machine import files


def path(uuid: str, driver: str, cupti: str, clock: str) -> Path:
    """Return the file that keeps the table of a GPU under a driver, read by a clock.

    ``cupti`` is the version of its bindings: where they come or change, the table is
    another one.
    """
    import platformdirs

    text = f"{uuid} {driver} {METHOD} {cupti} {clock}"
    name = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return platformdirs.user_data_path("steelyard") / "peaks" / f"{name}.json"


def kept(place: Path) -> dict[str, Any] | None:
    """Return the table in a file; None where there is none that can be used."""
    try:
        found = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    good = isinstance(found, dict) and found.get("method") == METHOD
    return found if good and COPY in found and "rates" in found else None


def best(places: Iterable[Path]) -> dict[str, Any]:
    """Return the table of the first file that has one; empty where none has."""
    return next((table for table in map(kept, places) if table), {})


def keep(place: Path, table: Table) -> None:
    """Write a table; where nothing can be written, it is not kept."""
    with suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        files.replace(place, json.dumps(dict(table)).encode())
