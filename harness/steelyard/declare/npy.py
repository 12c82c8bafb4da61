"""Data of users: ``.npy`` files, looked at without reading them whole."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import BenchmarkError


def header(path: str) -> tuple[tuple[int, ...], str]:
    """Return shape and dtype of a ``.npy`` file without reading its data.

    Raises:
        BenchmarkError: the file cannot be read.
    """
    data = read(path)
    return tuple(data.shape), str(data.dtype)


def read(path: str) -> NDArray[Any]:
    """Map a ``.npy`` file into memory.

    Raises:
        BenchmarkError: it is missing, damaged, or no single array.
    """
    if not Path(path).is_file():
        what = "is no file" if Path(path).exists() else "does not exist"
        raise BenchmarkError(f"{path} {what}. Name a .npy file.")
    try:
        with warnings.catch_warnings(action="ignore"):  # of headers by Python 2
            return np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # noqa: BLE001 # NumPy has Python's own parser read headers
        raise BenchmarkError(
            f"{path} cannot be read as .npy: {_reason(error)}. Save it with numpy.save."
        ) from None


def repeats(data: NDArray[Any]) -> bool:
    """Tell whether all of several elements are the same, or none is a number."""
    if data.size < 2:
        return False
    first = data.flat[0]
    return bool((data == first).all() or (first != first and (data != data).all()))  # noqa: PLR0124 # only NaN differs from itself


def _reason(error: Exception) -> str:
    """Say what is wrong with a file in words of files."""
    if "Python objects" in str(error) or "Array can't be memory-mapped" in str(error):
        return "it holds Python objects, not numbers"
    if "magic string" in str(error):
        return "it begins with something else than a .npy file"
    if "mmap" in str(error):  # its header promises more than it has
        return "its data is cut short"
    text = getattr(error, "strerror", None) or str(error)
    return " ".join(text.split()).rstrip(".")
