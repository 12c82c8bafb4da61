"""Data of users: ``.npy`` files, looked at without reading them whole."""

from __future__ import annotations

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
    try:
        if not Path(path).exists():
            raise BenchmarkError(f"{path} does not exist. Name a .npy file.")
        data = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise BenchmarkError(
            f"{path} cannot be read as .npy: {' '.join(str(error).split())}. Save it "
            "with numpy.save."
        ) from None
    if not isinstance(data, np.ndarray):
        raise BenchmarkError(f"{path} is an archive. Save one array with numpy.save.")
    return data
