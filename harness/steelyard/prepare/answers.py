"""Rows of what references expect, kept for the blocks of a run.

A block is a fresh process, and a reference in float64 may take seconds: the first
block checks whole results, later ones the rows that it kept.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of an expected result; of a scalar, the scalar and none."""

    indices: NDArray[np.intp]
    wanted: Array

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether they can be rows of a result of this shape."""
        if not shape:
            return self.wanted.shape == () and not self.indices.size
        inside = bool(((self.indices >= 0) & (self.indices < shape[0])).all())
        return inside and self.wanted.shape == (self.indices.size, *shape[1:])


def keep(path: Path, rows: Sequence[Rows]) -> None:
    """Write rows aside and then to their place; a disk that is full keeps none."""
    arrays = {f"indices{n}": each.indices for n, each in enumerate(rows)}
    arrays |= {f"wanted{n}": each.wanted for n, each in enumerate(rows)}
    aside = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        aside.replace(path)
    except OSError:
        with suppress(OSError):
            aside.unlink(missing_ok=True)


def kept(path: Path, shapes: Sequence[tuple[int, ...]]) -> tuple[Rows, ...] | None:
    """Return rows of results of these shapes; None if they are not whole."""
    from zipfile import BadZipFile  # as NumPy does, for what it keeps alone

    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            rows = tuple(
                Rows(stored[f"indices{n}"], stored[f"wanted{n}"])
                for n in range(len(shapes))
            )
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None
    whole = all(each.fits(shape) for each, shape in zip(rows, shapes, strict=True))
    return rows if whole else None
