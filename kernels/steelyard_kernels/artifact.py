"""What builds end at: data. An artifact with its code, or why there is none."""

from __future__ import annotations

from copy import copy
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from steelyard_device.cpu import Function
from steelyard_device.errors import CompileError
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import Program
from steelyard_kernels.plan.launches import Plan
from steelyard_kernels.schedule.parameters import Slot
from steelyard_kernels.schedule.schedule import Schedule

if TYPE_CHECKING:
    from steelyard_device.cubin import Resources


def digest(data: bytes) -> str:
    """Return 128 bits of BLAKE2b, in hex."""
    return blake2b(data, digest_size=16).hexdigest()


Times = tuple[tuple[str, int], ...]
"""Phases of a build in order, each with its nanoseconds."""


class Code(Struct, frozen=True):
    """What a compiler made of one text.

    `image` is an object file or a cubin, in which other entries may lie too;
    `code_hash` is of this entry's instructions alone and depends on no name.
    `nanoseconds` are the compiler's for this entry. Resources are a cubin's, spills
    (bytes a thread) from the compiler's log. `function` is there once it is loaded for
    this machine's own target.
    """

    image: bytes
    entry: str
    code_hash: str
    compiler: str
    nanoseconds: int
    resources: Resources | None = None
    spill_stores: int = 0
    spill_loads: int = 0
    phases: Times = ()
    function: Function | None = None


NO_CODE: Final = Code(b"", "", "", "", 0)


class Artifact(Struct, frozen=True):
    """A program under a schedule as a compiler's text, and its code once it is built.

    On a CPU `threads` of the pool run a launch (0: all). On a GPU they make a block, and
    a launch has one for every `per_block` of the last slot's extent, with `shared` bytes
    of dynamic shared memory each. `phases` are those
    of the build; one that a cache saved is missing. A program that is several launches
    has a `plan`, and a build of each as `parts`, whose slots are behind one another, and
    behind these those of their `order` if some are repeated (`steelyard_device.turns`).
    `chosen_by` says where the schedule is from: the "caller", the "heuristic", or
    "tuning" (`building.tuned`).
    """

    program: Program
    schedule: Schedule
    target: str
    text: str
    slots: tuple[Slot, ...]
    threads: int
    per_block: int
    shared: int = 0
    code: Code = NO_CODE
    phases: Times = ()
    plan: Plan | None = None
    parts: tuple[Artifact, ...] = ()
    order: tuple[tuple[int, ...], ...] = ()
    chosen_by: str = "caller"

    def __repr__(self) -> str:
        """Return what was built in a line; its text and code take pages."""
        name, label = self.program.name, self.schedule.label
        return (
            f"<artifact {name} for {self.target}: {label}, chosen by {self.chosen_by}>"
        )

    @property
    def strategy(self) -> str:
        """The family of schedules."""
        from steelyard_kernels.schedule.strategies import strategy  # few ask

        return "launches" if self.plan else strategy(self.program)

    @property
    def code_hash(self) -> str:
        """The hash of the entry's instructions."""
        return self.code.code_hash

    @property
    def blocks(self) -> int:
        """How many blocks a launch on a GPU has: as many as cover the extent."""
        return -(-self.slots[-1].index // self.per_block) if self.per_block else 1

    @property
    def grid(self) -> int | tuple[int, int]:
        """The blocks of a launch, of one copy or of all side by side."""
        copies = self.program.copies
        return self.blocks if copies == 1 else (self.blocks, copies)


class Failure(Struct, frozen=True):
    """A build that came to nothing: in which phase, and why in one sentence."""

    name: str
    schedule: Schedule | None
    target: str
    phase: str
    error: str
    cause: BaseException
    phases: Times = ()

    @property
    def lasting(self) -> bool:
        """Whether the program is to blame, and not what a machine lacked."""
        return isinstance(self.cause, (KernelError, CompileError))

    def remembered(self) -> Failure:
        """Return what may be kept: without the frames, which hold a caller's arrays."""
        return replace(self, cause=copy(self.cause))

    def raised(self) -> BaseException:
        """Return an exception to raise: a new one, since each raise adds frames to it."""
        fresh = copy(self.cause) if self.lasting else self.cause
        return fresh.with_traceback(self.cause.__traceback__)
