"""Which cases can be measured here, and the order of all turns, before anything runs."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

from steelyard.declare.benchmark import Case
from steelyard.declare.handles import CUDA
from steelyard.declare.mode import Mode
from steelyard.errors import BenchmarkError, SteelyardError


def needs_gpu(case: Case) -> bool:
    """Tell whether a case runs on a GPU; one that cannot be described fails later."""
    try:
        return case.device() == CUDA
    except BenchmarkError:
        return False


def able(cases: Sequence[Case]) -> tuple[list[Case], str]:
    """Return the cases that can run here, and a sentence on those that cannot."""
    from steelyard.machine import gpu_choice

    asking = [case for case in cases if needs_gpu(case)]
    why = gpu_choice.missing() if asking else None
    if why is None:
        return list(cases), ""
    left = {id(case) for case in asking}
    words = "1 case needs" if len(asking) == 1 else f"{len(asking)} cases need"
    return [c for c in cases if id(c) not in left], f"{words} a GPU: {why}"


@dataclass(frozen=True, slots=True)
class PlannedTrial:
    """One case in one mode in one block."""

    position: int
    block: int
    case: Case
    mode: Mode


class Plan(Sequence[PlannedTrial]):
    """All turns, of which a block is made when somebody looks at it."""

    def __init__(
        self, families: Sequence[Sequence[tuple[Case, Mode]]], blocks: int, seed: int
    ) -> None:
        self._families = families
        self._seed = seed
        self.block_length = sum(map(len, families))
        """Turns of each block."""
        self._length = blocks * self.block_length
        self._made: tuple[int, list[PlannedTrial]] = (-1, [])

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, at: int) -> PlannedTrial: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[PlannedTrial]: ...
    def __getitem__(self, at: int | slice) -> PlannedTrial | Sequence[PlannedTrial]:
        if isinstance(at, slice):
            return tuple(self[one] for one in range(self._length)[at])
        position = range(self._length)[at]
        block, place = divmod(position, self.block_length)
        return self._block(block)[place]

    def _block(self, number: int) -> list[PlannedTrial]:
        if self._made[0] != number:
            made = list(self._turns(number))
            self._made = number, made
        return self._made[1]

    def _turns(self, block: int) -> Iterator[PlannedTrial]:
        shuffle = random.Random(f"{self._seed} {block}")  # noqa: S311 # an order, not a secret
        position = block * self.block_length
        for family in shuffle.sample(self._families, len(self._families)):
            for case, mode in shuffle.sample(family, len(family)):
                yield PlannedTrial(position, block, case, mode)
                position += 1


def require_able(cases: Sequence[Case]) -> tuple[list[Case], str]:
    """Return the same.

    Raises:
        SteelyardError: no case can run here.
    """
    here, left = able(cases)
    if not here:
        raise SteelyardError(left)
    return here, left


def once(turns: Sequence[PlannedTrial]) -> Sequence[PlannedTrial]:
    """Return every case in every mode, once where that is known: a plan's first block."""
    return turns[: turns.block_length] if isinstance(turns, Plan) else turns


def plan(
    cases: Sequence[Case], modes: Sequence[Mode] | None, blocks: int, seed: int
) -> Plan:
    """Return the turns of ``blocks`` blocks, each holding every case and mode once.

    Within a block the order is random, but cases that differ only in ``impl`` stand
    next to each other: their ratio is what people read, and the machine drifts.
    ``modes`` replaces what the cases ask for.
    """
    pairs = ((case, mode) for case in cases for mode in modes or case.modes())
    return of_pairs(pairs, blocks, seed)


def of_pairs(pairs: Iterable[tuple[Case, Mode]], blocks: int, seed: int) -> Plan:
    """Return the turns of `plan` for cases that are not all in the same modes."""
    families: dict[Any, list[tuple[Case, Mode]]] = defaultdict(list)
    for case, mode in pairs:
        shared = tuple((n, v) for n, v in case.axes.items() if n != "impl")
        families[case.benchmark.name, shared, mode].append((case, mode))
    return Plan(list(families.values()), blocks, seed)
