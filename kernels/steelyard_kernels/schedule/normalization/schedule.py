"""Knobs of the normalization strategy, and what a program must be for them."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import ClassVar, Final

from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import Program
from steelyard_kernels.schedule.model import LINE, STREAM_BYTES
from steelyard_kernels.schedule.normalization.passes import Rows, analyse, rewalked
from steelyard_kernels.schedule.variance import expand_variance

# Scratch lives on the stack of pool threads, of which half a megabyte is nothing to
# worry about and more no longer fits beside the rows in a core's second-level cache.
SCRATCH_BYTES: Final = 512 << 10


@dataclass(frozen=True, slots=True, order=True)
class Normalization:
    """The knobs of one normalization lowering.

    `rows` a block, `unroll` vectors of `lanes` elements an iteration; `statistics`
    "plain" (mean and variance in one pass, a second if it cancelled), "shifted" (the
    same about the row's first element: cancels less often) or "two_pass";
    `keep` "scratch" or "recompute" what later passes need; `hoist` computed columns
    (a widened bias) out of the launch's loops; `streaming` stores round the caches; `prefetch` of
    the next block in the last pass; `chunk` rows a thread takes at a time; `threads`
    1 or 0 (all).
    """

    strategy: ClassVar[str] = "normalization"

    lanes: int
    rows: int
    unroll: int
    statistics: str
    keep: str
    hoist: bool
    streaming: bool
    prefetch: bool
    chunk: int
    threads: int

    @property
    def label(self) -> str:
        """A short name for tables."""
        who = "all" if self.threads == 0 else "one"
        hoisted = " hoist" if self.hoist else ""
        stores = " stream" if self.streaming else ""
        ahead = " ahead" if self.prefetch else ""
        return (
            f"r{self.rows} v{self.lanes}x{self.unroll} {self.statistics} {self.keep} "
            f"{who} c{self.chunk}{hoisted}{stores}{ahead}"
        )


def passes_of(
    program: Program, statistics: str, keep: str, *, corrected: bool = True
) -> Rows:
    """Cut the program into passes as the knobs of a schedule say."""
    if statistics == "two_pass":
        program = expand_variance(program, corrected=corrected)
    return analyse(program, keep=keep)


def store_alignment(rows: Rows, lanes: int) -> int:
    """Return what the address of every vector store is a multiple of, in bytes."""
    alignment = LINE
    for each in rows.passes:
        for place in each.outputs:
            size = rows.program.outputs[place].value.dtype.bytes
            alignment = gcd(alignment, lanes * size, rows.extent * size)
    return alignment


def check_streaming(
    program: Program, schedule: Normalization, rows: Rows, *, aligned: bool
) -> None:
    """Raise KernelError where a streaming store could not state its alignment."""
    if not schedule.streaming:
        return
    if not aligned:
        raise KernelError(
            f"{program.name}: schedule {schedule.label} streams, but an output does not "
            f"start at a multiple of {LINE} bytes; align it, or choose a schedule without "
            "streaming."
        )
    alignment = store_alignment(rows, schedule.lanes)
    if alignment < STREAM_BYTES:
        raise KernelError(
            f"{program.name}: schedule {schedule.label} streams to rows aligned to "
            f"{alignment} bytes, at least {STREAM_BYTES} are needed; choose a schedule "
            "without streaming."
        )


def check_order(rows: Rows, schedule: Normalization) -> None:
    """Raise KernelError where a row may be walked again once it is overwritten."""
    if rewalked(rows):
        raise KernelError(
            f"{rows.program.name}: schedule {schedule.label} may walk a row again that "
            "it has overwritten; choose two_pass statistics."
        )


def check_scratch(rows: Rows, schedule: Normalization) -> None:
    """Raise KernelError where the scratch rows of a block are too large to be near."""
    size = schedule.rows * scratch_bytes(rows)
    if size > SCRATCH_BYTES:
        raise KernelError(
            f"{rows.program.name}: schedule {schedule.label} keeps {size} bytes in "
            f"scratch rows, at most {SCRATCH_BYTES} stay near the core; keep fewer "
            "rows, or recompute."
        )


def scratch_bytes(rows: Rows) -> int:
    """Return the scratch bytes of one row."""
    return sum(dtype.bytes for dtype in rows.slots) * rows.extent
