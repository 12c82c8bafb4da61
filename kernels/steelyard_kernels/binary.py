"""What builds end at: data. Binaries with their resources, or why there is none."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from steelyard_device.errors import CompileError
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import Program
from steelyard_kernels.schedule.parameters import Slot
from steelyard_kernels.schedule.strategies import Schedule

if TYPE_CHECKING:
    from steelyard_device.cpu import Function
    from steelyard_device.cubin import Resources


@dataclass(frozen=True, slots=True)
class Code:
    """What a compiler made of one candidate.

    `image` is an object file or a cubin, in which other candidates may lie too;
    `code_hash` is of this entry's instructions alone and depends on no name.
    `nanoseconds` are the compiler's for this entry. Resources are a cubin's, spills
    (bytes a thread) from the compiler's log.
    """

    image: bytes
    entry: str
    code_hash: str
    compiler: str
    nanoseconds: int
    resources: Resources | None = None
    spill_stores: int = 0
    spill_loads: int = 0


@dataclass(frozen=True, slots=True)
class Binary:
    """Machine code: its entry, what its slots take, and who runs it.

    On a CPU `threads` of the pool run a launch (0: all). On a GPU they make a block, and
    a launch has one for every `per_block` of the last slot's extent.
    """

    code: bytes
    entry: str
    slots: tuple[Slot, ...]
    threads: int
    per_block: int = 0

    @property
    def blocks(self) -> int:
        """How many blocks a launch on a GPU has: as many as cover the extent."""
        return -(-self.slots[-1].index // self.per_block) if self.per_block else 1


@dataclass(frozen=True, slots=True)
class Built:
    """A kernel that can be launched, once loaded.

    `phases` are (name, nanoseconds) in order; a phase that a cache saved is missing.
    `function` is there for this machine's own target.
    """

    program: Program
    strategy: str
    schedule: Schedule
    target: str
    text: str
    binary: Binary
    made: Code
    phases: tuple[tuple[str, int], ...]
    function: Function | None

    @property
    def code_hash(self) -> str:
        """The hash of the entry's instructions."""
        return self.made.code_hash

    @property
    def compiler(self) -> str:
        """The compiler's build."""
        return self.made.compiler


@dataclass(frozen=True, slots=True)
class Failed:
    """A build that came to nothing: in which phase, and why in one sentence."""

    name: str
    schedule: Schedule | None
    target: str
    phase: str
    error: str
    cause: BaseException
    phases: tuple[tuple[str, int], ...]

    @property
    def lasting(self) -> bool:
        """Whether the program is to blame, and not what a machine lacked."""
        return isinstance(self.cause, (KernelError, CompileError))

    def remembered(self) -> Failed:
        """Return what may be kept: without the frames, which hold a caller's arrays."""
        return replace(self, cause=copy(self.cause))

    def raised(self) -> BaseException:
        """Return an exception to raise: a new one, since each raise adds frames to it."""
        fresh = copy(self.cause) if self.lasting else self.cause
        return fresh.with_traceback(self.cause.__traceback__)
