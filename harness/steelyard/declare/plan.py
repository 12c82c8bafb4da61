"""Which cases can be measured here, and the order of all turns, before anything runs.

`Settings` say how they are measured: everything that numbers depend on but the machine.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line and the configuration decide."""

    seed: int = 0
    budget: float | None = None
    """Seconds for the whole run."""
    precision: float = 0.005
    """Half-width of the interval at which a trial stops, as a fraction."""
    timeout: float = 60.0
    """Seconds after which a silent worker is taken for hung."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Files instead of generated data, by the names of handles."""
    flush_bytes: int | None = None
    """What a flush walks; calibrated if it is not known yet."""
    gpu: int = 0
    """Which GPU cases on ``cuda`` use, as CUDA numbers them."""
    clock: str = "auto"
    """Which clock reads the kernel on a GPU: its id, ``auto`` for the best there is, or
    ``all``, where every other one reads the same case beside it."""
    scratch: str = ""
    """A folder that the blocks of one run share, such as for rows of references."""
    check: bool = True
    audit: bool = True
    """Whether work that is checked is also audited, and its numbers are confirmed by
    another process: once a run, for longer than some trials take."""
    allocations: bool = False
    energy: bool = False
    """Whether the energy of a launch on a GPU is metered, which takes 0.4 s a case."""
    role: str = ""
    """Whether this trial's windows are taken in turn with another worker's, which waits
    on a clock of the host's: it may lead or follow; see `interleave`."""
