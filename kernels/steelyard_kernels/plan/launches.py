"""What a partition is: launches in order, and where each array of one lies.

plan   = (Launch* launches, Buffer* buffers, int size, int bound, Part* parts,
    Repeat* repeats)
launch = (program, home* reads, home* writes, reason)
home   = str      -- an array of the whole program, by name
| int      -- a buffer, by number
| Walk     -- another place in each turn of a repeat
buffer = (bytes, first, last, offset, reason)    -- live from launch to launch
repeat = (first, last, length, index, test)      -- launches that a loop repeats
"""

from __future__ import annotations

from math import prod
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from steelyard_kernels.expression.expr import Program
from steelyard_kernels.expression.structure import described, structure
from steelyard_kernels.schedule.parameters import Slot
from steelyard_kernels.schedule.schedule import Part, Schedule

WORKSPACE: Final = ".workspace"
"""The array that has all buffers; no parameter has such a name."""

ALIGNED: Final = 64
"""Bytes: steps of a multiple keep an array as aligned as launches want it."""


class Walk(Struct, frozen=True):
    """Where an array is in turn i of a repeat: `first` + i * `step` bytes behind `home`.

    Of two homes that change places in each turn, `other` is that of odd turns.
    """

    home: Home
    other: Home
    repeat: int
    first: int = 0
    step: int = 0


Home: TypeAlias = str | int | Walk


def roots(home: Home) -> set[str | int]:
    """Return the arrays and buffers that a home is in."""
    if isinstance(home, Walk):
        return roots(home.home) | roots(home.other)
    return {home}


class Launch(Struct, frozen=True):
    """One kernel of a program: `reads` are its inputs' homes, `writes` its outputs'."""

    program: Program
    reads: tuple[Home, ...]
    writes: tuple[Home, ...]
    reason: str

    @property
    def aligned(self) -> bool:
        """Whether its arrays are as aligned in each turn as they begin."""
        pending = [*self.reads, *self.writes]
        while pending:
            home = pending.pop()
            if isinstance(home, Walk):
                if home.first % ALIGNED or home.step % ALIGNED:
                    return False
                pending += [home.home, home.other]
        return True


class Repeat(Struct, frozen=True):
    """Launches `first` to `last` are run in each of `length` turns of a loop.

    Or in as many as it is `given`: a runtime scalar's name, or an int64 in memory. In
    kernels the turn is the scalar `index`. `test` is the launch before which a loop ends
    where the bool in a home is false. `odd` says that they run once, after another repeat
    that had odd turns.
    """

    first: int
    last: int = 0
    length: int = 1
    given: Home | None = None
    index: str = ""
    test: tuple[int, Home] | None = None
    odd: int | None = None

    def text(self, number: int) -> str:
        """Return a line that says what is repeated."""
        every = f"repeat {number}: launches {self.first} to {self.last}"
        if self.odd is not None:
            return f"{every} once if repeat {self.odd} had odd turns"
        length = self.length if self.given is None else _shown(self.given)
        while_ = f" while {_shown(self.test[1])}" if self.test else ""
        return f"{every}, {length} times{while_}"


class Buffer(Struct, frozen=True):
    """Memory between launches: written by `first`, read by `last` at the latest."""

    nbytes: int
    first: int
    last: int
    offset: int
    reason: str


class Plan(Struct, frozen=True):
    """The launches of a program, and its workspace of `size` bytes.

    `bound` is the most bytes of buffers that are live during one launch. `parts` are the
    partition that the launches follow from: of equal ones side by side each is one.
    """

    launches: tuple[Launch, ...]
    buffers: tuple[Buffer, ...]
    size: int
    bound: int
    parts: tuple[Part, ...] = ()
    repeats: tuple[Repeat, ...] = ()

    @property
    def schedule(self) -> Schedule:
        """The partition, as builds are given it."""
        return Schedule((), launches=self.parts)

    @property
    def distinct(self) -> list[list[int]]:
        """The launches of each kernel: equal programs are one, whatever they are named."""
        found: dict[tuple[str, bool], list[int]] = {}
        for number, each in enumerate(self.launches):
            known = described(each.program), each.aligned
            found.setdefault(known, []).append(number)
        return list(found.values())

    def around(self, number: int) -> list[int]:
        """Return the repeats that a launch is in, the outermost first."""
        pairs = enumerate(self.repeats)
        found = [n for n, each in pairs if each.first <= number <= each.last]
        return sorted(found, key=lambda n: self.repeats[n].first - self.repeats[n].last)

    def times(self, number: int, unknown: int = 1) -> int:
        """Return how often a launch is run; a length that a call says is `unknown`."""
        every = [self.repeats[n] for n in self.around(number)]
        return prod([e.length if e.given is None else unknown for e in every])

    @property
    def key(self) -> tuple[object, ...]:
        """All that it says but names of kernels: equal keys are equal work."""
        every = [(structure(e.program), e.reads, e.writes) for e in self.launches]
        places = [(each.nbytes, each.offset) for each in self.buffers]
        return *every, *places, *self.repeats

    def text(self) -> str:
        """Return a line for each launch and buffer: what it is and why."""
        lines = [
            f"{number} {_homes(each.writes)} = {each.reason} ({_homes(each.reads)})"
            for number, each in enumerate(self.launches)
        ]
        lines += [
            f"[{number}]: {each.nbytes} bytes at {each.offset}, launches {each.first} to "
            f"{each.last}; {each.reason}"
            for number, each in enumerate(self.buffers)
        ]
        lines += [each.text(number) for number, each in enumerate(self.repeats)]
        lines += [
            f"workspace: {self.size} bytes, at least {self.bound} are live at once",
            self.schedule.label,
        ]
        return "\n".join(lines) + "\n"


def placed(slot: Slot, launch: Launch, plan: Plan) -> Slot:
    """Return a launch's slot as one of the whole program's.

    In the workspace an address is `index` bytes behind its start.
    """
    if slot.kind not in {"input", "output", "tensor"}:
        return slot
    home = home_of(slot, launch)
    while isinstance(home, Walk):  # each turn says where
        home = home.home
    if isinstance(home, str):
        return replace(slot, index=0, name=home)
    return replace(slot, index=plan.buffers[home].offset, name=WORKSPACE)


def home_of(slot: Slot, launch: Launch) -> Home:
    """Return where the array of a launch's slot is."""
    homes = launch.writes if slot.kind == "output" else launch.reads
    return homes[int(slot.name[1:])]  # x0, x1 and y0, y1: see `pieces`


def _homes(homes: tuple[Home, ...]) -> str:
    return ", ".join(map(_shown, homes))


def _shown(home: Home) -> str:
    if isinstance(home, Walk):
        if home.step:
            return f"{_shown(home.home)} by {home.step} bytes"
        return f"{_shown(home.home)} or {_shown(home.other)}"
    return home if isinstance(home, str) else f"[{home}]"
