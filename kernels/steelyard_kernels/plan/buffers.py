"""Offsets of buffers in one workspace: the largest first, each where it fits lowest.

Buffers whose lives meet get no common byte. Greedy by size, of Pisarchyk and Lee,
"Efficient Memory Management for Deep Neural Net Inference", 2020.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

ALIGNMENT: Final = 256
"""Bytes: of a GPU's allocations, and of what vectors and bulk copies begin at."""


class Life(NamedTuple):
    """Bytes that are live from a launch to another, both included."""

    nbytes: int
    first: int
    last: int


def placed(lives: Sequence[Life]) -> tuple[list[int], int]:
    """Return an offset for each, all multiples of `ALIGNMENT`, and the bytes in all."""
    offsets = [0] * len(lives)
    done: list[int] = []
    for number in sorted(range(len(lives)), key=lambda n: (-lives[n].nbytes, n)):
        own, at = lives[number], 0
        beside = [n for n in done if _meet(own, lives[n])]
        for other in sorted(beside, key=lambda n: offsets[n]):
            if at + own.nbytes <= offsets[other]:
                break
            at = max(at, _up(offsets[other] + lives[other].nbytes))
        offsets[number] = at
        done.append(number)
    ends = [at + life.nbytes for at, life in zip(offsets, lives, strict=True)]
    return offsets, max(ends, default=0)


def bound(lives: Sequence[Life]) -> int:
    """Return the most bytes that are live at once: no workspace has fewer."""
    return max(
        (
            sum(each.nbytes for each in lives if each.first <= now <= each.last)
            for now in {life.first for life in lives}
        ),
        default=0,
    )


def _meet(a: Life, b: Life) -> bool:
    return a.first <= b.last and b.first <= a.last


def _up(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
