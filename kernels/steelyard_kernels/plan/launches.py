"""What a partition is: launches in order, and where each array of one lies.

plan   = (Launch* launches, Buffer* buffers, int size, int bound, Part* parts)
launch = (program, home* reads, home* writes, reason)
home   = str      -- an array of the whole program, by name
| int      -- a buffer, by number
buffer = (bytes, first, last, offset, reason)    -- live from launch to launch
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from steelyard_kernels.expression.expr import Program
from steelyard_kernels.expression.structure import described, structure
from steelyard_kernels.schedule.parameters import Slot
from steelyard_kernels.schedule.schedule import Part, Schedule

WORKSPACE: Final = ".workspace"
"""The array that has all buffers; no parameter has such a name."""

Home: TypeAlias = str | int


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel of a program: `reads` are its inputs' homes, `writes` its outputs'."""

    program: Program
    reads: tuple[Home, ...]
    writes: tuple[Home, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory between launches: written by `first`, read by `last` at the latest."""

    nbytes: int
    first: int
    last: int
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The launches of a program, and its workspace of `size` bytes.

    `bound` is the most bytes of buffers that are live during one launch. `parts` are the
    partition that the launches follow from: of equal ones side by side each is one.
    """

    launches: tuple[Launch, ...]
    buffers: tuple[Buffer, ...]
    size: int
    bound: int
    parts: tuple[Part, ...]

    @property
    def schedule(self) -> Schedule:
        """The partition, as builds are given it."""
        return Schedule((), launches=self.parts)

    @property
    def distinct(self) -> list[list[int]]:
        """The launches of each kernel: equal programs are one, whatever they are named."""
        found: dict[str, list[int]] = {}
        for number, each in enumerate(self.launches):
            found.setdefault(described(each.program), []).append(number)
        return list(found.values())

    @property
    def key(self) -> tuple[object, ...]:
        """All that it says but names of kernels: equal keys are equal work."""
        every = [(structure(e.program), e.reads, e.writes) for e in self.launches]
        return *every, *[(each.nbytes, each.offset) for each in self.buffers]

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
    homes = launch.writes if slot.kind == "output" else launch.reads
    home = homes[int(slot.name[1:])]  # x0, x1 and y0, y1: see `pieces`
    if isinstance(home, str):
        return replace(slot, index=0, name=home)
    return replace(slot, index=plan.buffers[home].offset, name=WORKSPACE)


def _homes(homes: tuple[Home, ...]) -> str:
    return ", ".join(home if isinstance(home, str) else f"[{home}]" for home in homes)
