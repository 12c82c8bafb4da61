"""Knobs of the pointwise strategy on a GPU, and what a program must be for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import Program
from steelyard_kernels.schedule.gpu import (
    MAX_THREADS,
    VECTOR_BYTES,
    WARP,
    registers_problem,
)
from steelyard_kernels.schedule.space import Space

BLOCKS: Final = range(WARP, MAX_THREADS + 1, WARP)  # of whole warps
LANES: Final = (1, 2, 4, 8, 16)  # up to single bytes of the widest access
MOST_VECTORS: Final = 8  # that a thread has in flight


@dataclass(frozen=True, slots=True, order=True)
class CudaPointwise:
    """The knobs of one pointwise lowering.

    A block has `threads`; each has `unroll` vectors of `lanes` elements in flight and
    at most `registers` (0: what a block of so many threads leaves to each). `streaming` stores are the first to
    leave the caches.
    """

    strategy: ClassVar[str] = "pointwise"

    lanes: int
    unroll: int
    threads: int
    registers: int
    streaming: bool

    @property
    def label(self) -> str:
        """A short name for tables."""
        stores = " stream" if self.streaming else ""
        numbers = f"v{self.lanes} u{self.unroll} b{self.threads} r{self.registers}"
        return numbers + stores

    @property
    def per_block(self) -> int:
        """How many elements a block computes."""
        return self.lanes * self.unroll * self.threads


NOTHING: Final = CudaPointwise(1, 1, WARP, 0, streaming=False)  # for no elements


def check(
    program: Program, schedule: CudaPointwise, space: Space, *, aligned: bool
) -> None:
    """Raise KernelError where a schedule does not fit a program or a GPU."""
    why = problem(program, schedule, space, aligned=aligned)
    if why:
        raise KernelError(
            f"{program.name}: schedule {schedule.label} {why}, "
            "or leave the schedule out."
        )


def problem(
    program: Program, schedule: CudaPointwise, space: Space, *, aligned: bool
) -> str:
    """Say why a schedule does not fit, and what to choose instead; "" if it does."""
    return _out_of_range(schedule) or _unaligned(
        program, schedule, space, aligned=aligned
    )


def _out_of_range(schedule: CudaPointwise) -> str:
    """Say which knob no GPU has, and what to choose instead."""
    if schedule.threads not in BLOCKS:
        wanted = f"a multiple of {WARP} up to {MAX_THREADS}"
        return f"has blocks of {schedule.threads} threads; choose {wanted}"
    if schedule.lanes not in LANES:
        wanted = f"a power of two up to {LANES[-1]}"
        return f"has vectors of {schedule.lanes} elements; choose {wanted}"
    if not 1 <= schedule.unroll <= MOST_VECTORS:
        wanted = f"1 to {MOST_VECTORS}"
        return f"has {schedule.unroll} vectors in flight; choose {wanted}"
    return registers_problem(schedule.registers, schedule.threads)


def _unaligned(
    program: Program, schedule: CudaPointwise, space: Space, *, aligned: bool
) -> str:
    """Say which access would not be aligned, and what to choose instead."""
    lanes, inner = schedule.lanes, space.extents[-1]
    if lanes > 1 and not aligned:
        return (
            f"needs arrays that start at multiples of {VECTOR_BYTES} bytes, and one "
            "does not; align it, choose 1 element a vector"
        )
    if len(space.extents) > 1 and inner % lanes:
        return (
            f"has vectors of {lanes} elements in rows of {inner}; "
            "choose a divisor of the row"
        )
    narrowest = min(output.value.dtype.bytes for output in program.outputs)
    if schedule.streaming and lanes * narrowest < VECTOR_BYTES:
        return (
            f"streams vectors of {lanes * narrowest} bytes; choose vectors of "
            f"{VECTOR_BYTES} bytes or more, a schedule without streaming"
        )
    return ""
