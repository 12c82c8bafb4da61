"""The order of all turns, made before anything runs."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from steelyard.benchmark import Case
from steelyard.mode import Mode


@dataclass(frozen=True, slots=True)
class Turn:
    """One case in one mode in one block."""

    position: int
    block: int
    case: Case
    mode: Mode


def plan(
    cases: Sequence[Case], modes: Sequence[Mode] | None, blocks: int, seed: int
) -> tuple[Turn, ...]:
    """Return the turns of ``blocks`` blocks, each holding every case and mode once.

    Within a block the order is random, but cases that differ only in ``impl`` stand
    next to each other: their ratio is what people read, and the machine drifts.
    ``modes`` replaces what the cases ask for.
    """
    shuffle = random.Random(seed)  # noqa: S311 # an order, not a secret
    families = _families(cases, modes)
    turns: list[Turn] = []
    for block in range(blocks):
        shuffle.shuffle(families)
        for family in families:
            shuffle.shuffle(family)
            for case, mode in family:
                turns.append(Turn(len(turns), block, case, mode))
    return tuple(turns)


def _families(
    cases: Sequence[Case], modes: Sequence[Mode] | None
) -> list[list[tuple[Case, Mode]]]:
    families: dict[Any, list[tuple[Case, Mode]]] = defaultdict(list)
    for case in cases:
        shared = tuple((n, v) for n, v in case.axes.items() if n != "impl")
        for mode in modes or case.modes():
            families[case.benchmark.name, shared, mode].append((case, mode))
    return list(families.values())
