"""The environment of every process that this one starts."""

from __future__ import annotations

import os
from typing import Final

CREDENTIALS: Final = ("STEELYARD_STORE", "PGPASSWORD")
"""Variables that let in to a store: no business of the code that is measured or built,
nor of git's hooks."""


def environment(**changes: str) -> dict[str, str]:
    """Return this process's environment without `CREDENTIALS`, and with ``changes``."""
    kept = {n: value for n, value in os.environ.items() if n not in CREDENTIALS}
    return kept | changes
