"""Problems: new data of a case many times over, and what its results should be.

The data is drawn by seeds that the process which launches never learns. A file that two
processes map holds it, and what the launches leave.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import thread_time
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from steelyard.declare import dtypes
from steelyard.declare.benchmark import Description
from steelyard.declare.handles import Handle
from steelyard.machine.alive import SIGNS
from steelyard.prepare import checking, inputs
from steelyard.prepare.buffers import from_file
from steelyard_device import memory

Array = NDArray[Any]

FEW: Final = 2
"""Problems at least: one for what is loaded at first, and one that is timed."""

SECONDS: Final = 0.05
"""Seconds of a processor after which no more problems are posed."""


@dataclass(frozen=True, slots=True)
class Area:
    """Where ``count`` problems of a case lie: an array of all of them for each handle."""

    given: Mapping[str, Array]
    """What inputs and in-place arguments hold before a launch."""
    left: Mapping[str, Array]
    """What in-place arguments and outputs hold after it."""

    @classmethod
    def opened(cls, path: Path, handles: Sequence[Handle], count: int) -> Area:
        """Map a file, which is made or grown to the size that it needs.

        Raises:
            OSError: the disk refuses.
        """
        wanted = [(h, h.role != "output", h.role != "input") for h in handles]
        size = sum((g + w) * _bytes(h, count) for h, g, w in wanted)
        with path.open("ab") as file:
            # Reserved: a disk that is full is an error now, and no signal later.
            os.posix_fallocate(file.fileno(), 0, max(1, size))
        # A plain array: a slice of a `memmap` costs microseconds, each launch has some.
        raw = np.memmap(path, np.uint8, "r+").view(np.ndarray)
        raw[:: memory.PAGE] |= 0  # every page is mapped now, and not while it is timed
        given: dict[str, Array] = {}
        left: dict[str, Array] = {}
        first = 0
        for handle, is_given, is_left in wanted:
            for side in (given,) * is_given + (left,) * is_left:
                part = raw[first : first + count * _size(handle)]
                shape = (count, *handle.shape)
                side[handle.name] = part.view(dtypes.named(handle.dtype)).reshape(shape)
                first += _bytes(handle, count)
        return cls(given, left)


def needed(handles: Sequence[Handle]) -> int:
    """Return the bytes that a problem takes, about."""
    return sum(_bytes(h, 1) * (1 + (h.role == "inout")) for h in handles)


def pose(
    description: Description, area: Area, files: Mapping[str, str], seeds: Sequence[int]
) -> tuple[int, list[Array]]:
    """Draw the data of problems; return how many, and what each result should be.

    They are fewer than the seeds, but `FEW`, where that takes longer than `SECONDS`.
    There are no results of a case without a reference.

    Raises:
        BenchmarkError: the data cannot be drawn, or the reference cannot be asked.
    """
    handles = {h.name: from_file(h, files) for h in description.handles}
    answers: list[list[Array]] = []
    began = thread_time()
    for number, seed in enumerate(seeds):
        if number >= FEW and thread_time() - began > SECONDS:
            break
        data = {name: inputs.draw(handles[name], seed) for name in area.given}
        for name, all_of_it in area.given.items():
            all_of_it[number] = data[name]
        answers.append(checking.expected_of(description, data))
    return len(answers), [np.stack(each) for each in zip(*answers, strict=True)]


def _size(handle: Handle) -> int:
    return handle.size * dtypes.named(handle.dtype).itemsize


def _bytes(handle: Handle, count: int) -> int:
    """Return the bytes of an array of problems, up to a whole line."""
    return -(-count * _size(handle) // memory.LINE) * memory.LINE


def solve(
    numbers: Iterable[int],
    area: Area,
    write: Callable[[str, Array], None],
    launch: Callable[[], Any],
    read: Callable[[str], Any],
) -> None:
    """Launch on some problems, and keep what each launch left."""
    for number in numbers:
        SIGNS.step()
        for name, data in area.given.items():
            write(name, np.asarray(data[number]))
        launch()
        for name, place in area.left.items():
            place[number] = read(name)
