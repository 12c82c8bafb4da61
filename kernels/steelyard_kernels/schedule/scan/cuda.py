"""Knobs of the scan strategy on a GPU, and what they may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import Program
from steelyard_kernels.schedule.gpu import WARP, registers_problem
from steelyard_kernels.schedule.scan.schedule import equally_often

GROUPS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # threads of a chain
MOST_THREADS: Final = 256  # of a block: what is in step within one has one size
MOST_UNROLL: Final = 16


@dataclass(frozen=True, slots=True, order=True)
class CudaScan:
    """The knobs of one scan lowering for a GPU.

    `group` threads have a chain: one, a part of a warp, a warp, or several warps;
    `chains` are in a block, one where a group is several warps. `unroll` iterations
    are one turn of a loop (0: one). `ahead`: what no carried value is needed for is
    computed for as many iterations at once as the group has lanes, or in every
    iteration. `registers` is the most of a thread (0: the compiler's choice).
    """

    strategy: ClassVar[str] = "scan"

    group: int
    chains: int
    unroll: int
    ahead: bool
    registers: int = 0

    @property
    def label(self) -> str:
        """A short name for tables."""
        ahead = " ahead" if self.ahead else ""
        most = f" max{self.registers}" if self.registers else ""
        return f"g{self.group} c{self.chains} u{self.unroll}{ahead}{most}"

    @property
    def threads(self) -> int:
        """The threads of a block: whole warps, whose rest repeats the last chain."""
        return -(-self.group * self.chains // WARP) * WARP

    @property
    def per_block(self) -> int:
        """The chains of a block."""
        return self.chains

    @property
    def span(self) -> int:
        """How many iterations are computed at once: a warp's lanes, or a group's.

        A chain that has its warp alone uses the lanes of those that repeat it.
        """
        return WARP if self.chains == 1 else min(self.group, WARP)


def check(program: Program, schedule: CudaScan) -> None:
    """Raise KernelError where a schedule does not fit a program or a GPU."""
    why = problem(schedule)
    if schedule.chains > 1 and not program.chains:
        why = (
            why or f"has {schedule.chains} chains a block of a program of one; choose 1"
        )
    if schedule.chains > 1 and not equally_often(program):
        why = why or "has chains side by side whose loops differ in length; choose 1"
    if why:
        raise KernelError(
            f"{program.name}: schedule {schedule.label} {why}, or leave the schedule out."
        )


def problem(schedule: CudaScan) -> str:
    """Say why a schedule fits no GPU, and what to choose instead; "" if it does."""
    group, chains = schedule.group, schedule.chains
    if group not in GROUPS:
        wanted = f"a power of two up to {GROUPS[-1]}"
        return f"has {group} threads a chain; choose {wanted}"
    side = range(1, MOST_THREADS // group + 1) if group <= WARP else (1,)
    if chains not in side:
        wanted = f"1 to {side[-1]}" if len(side) > 1 else "1"
        return f"has {chains} chains of {group} threads a block; choose {wanted}"
    if schedule.unroll not in range(MOST_UNROLL + 1):
        wanted = f"0 to {MOST_UNROLL}"
        return f"has {schedule.unroll} iterations a turn; choose {wanted}"
    return registers_problem(schedule.registers, schedule.threads)
