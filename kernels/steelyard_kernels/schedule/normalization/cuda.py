"""Knobs of the normalization strategy on a GPU, and what a program must be for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import Input
from steelyard_kernels.schedule.gpu import (
    MAX_THREADS,
    REGISTER_UNIT,
    VECTOR_BYTES,
    WARP,
    most_registers,
    registers_problem,
)
from steelyard_kernels.schedule.normalization.outline import ROW, UNIFORM
from steelyard_kernels.schedule.normalization.passes import Rows, rewalked

STATISTICS: Final = ("plain", "shifted", "two_pass")
KEEPS: Final = ("packed", "wide", "reload")
# Registers of any schedule (addresses, scalars, one vector's values) and for each held
# element, or each of a vector that is read again in every pass.
BASE: Final = 27
HELD: Final = 1.65
COLUMNS: Final = 2.1
RELOADED: Final = 5.5
AGAIN: Final = 16  # registers of a second walk's loop
ALLOWED: Final = 1.1  # times the estimate
LEAST: Final = 32
# Vectors of a rolled loop on their way at once, where it turns often: few turns would
# become none, and a reloaded row so short is no winner worth the compiler's time.
RELOAD_UNROLL: Final = 2
OFTEN: Final = 8


@dataclass(frozen=True, slots=True, order=True)
class CudaNormalization:
    """The knobs of one normalization lowering for a GPU.

    `lanes` elements a vector; `threads` of a row, one warp or several; `batches`
    vectors that a thread takes of a row; `rows` side by side in a block, each of one
    warp; `unroll` rows that a thread holds at once; `statistics` "plain" (mean and
    variance in one pass, a second if it cancelled), "shifted" (the same about the row's
    first element: cancels less often) or "two_pass"; `keep` what later passes need in
    registers, "packed" as the fewest bytes or "wide" as it is used, or "reload" it;
    `registers` the most of a thread (0: the compiler's choice).
    """

    strategy: ClassVar[str] = "normalization"

    lanes: int
    threads: int
    batches: int
    rows: int
    unroll: int
    statistics: str
    keep: str
    registers: int = 0

    @property
    def label(self) -> str:
        """A short name for tables."""
        most = f" max{self.registers}" if self.registers else ""
        return (
            f"t{self.threads} v{self.lanes} b{self.batches} r{self.rows} "
            f"u{self.unroll} {self.statistics} {self.keep}{most}"
        )

    @property
    def block(self) -> int:
        """The threads of a block."""
        return self.threads * self.rows

    @property
    def per_block(self) -> int:
        """The rows of a block."""
        return self.rows * self.unroll


def batches(extent: int, lanes: int, threads: int) -> int:
    """Return the vectors that a thread takes of a row."""
    return -(-extent // (lanes * threads))


def reload_unroll(turns: int) -> int:
    """Return how many turns of a loop that reads a row again are spelled out."""
    return RELOAD_UNROLL if turns >= OFTEN else 1


def check(rows: Rows, schedule: CudaNormalization, *, aligned: bool) -> None:
    """Raise KernelError where a schedule does not fit a program or a GPU."""
    why = _out_of_range(schedule) or _unfitting(rows, schedule, aligned=aligned)
    why = why or unordered(rows, schedule) or crowded(demand(rows), schedule)
    if why:
        raise KernelError(
            f"{rows.program.name}: schedule {schedule.label} {why}, or leave the "
            "schedule out."
        )


def _out_of_range(schedule: CudaNormalization) -> str:
    """Say which knob no GPU has, and what to choose instead."""
    if schedule.threads not in range(WARP, MAX_THREADS + 1, WARP):
        wanted = f"a multiple of {WARP} up to {MAX_THREADS}"
        return f"has {schedule.threads} threads a row; choose {wanted}"
    side = range(1, MAX_THREADS // WARP + 1) if schedule.threads == WARP else (1,)
    if schedule.rows not in side:
        wanted = f"1, or up to {MAX_THREADS // WARP} with {WARP} threads a row"
        return f"has {schedule.rows} rows side by side; choose {wanted}"
    if schedule.unroll not in range(1, 9):
        return f"has {schedule.unroll} rows a thread at once; choose 1 to 8"
    if schedule.statistics not in STATISTICS:
        wanted = f"one of {', '.join(STATISTICS)}"
        return f"has statistics {schedule.statistics!r}; choose {wanted}"
    if schedule.keep not in KEEPS:
        return f"keeps {schedule.keep!r}; choose one of {', '.join(KEEPS)}"
    return registers_problem(schedule.registers, schedule.block)


def _unfitting(rows: Rows, schedule: CudaNormalization, *, aligned: bool) -> str:
    """Say how vectors do not fit the rows, and what to choose instead."""
    lanes = schedule.lanes
    if lanes > 1 and not aligned:
        return (
            f"needs arrays that start at multiples of {VECTOR_BYTES} bytes, and one "
            "does not; align it, choose 1 element a vector"
        )
    if lanes not in {1, 2, 4, 8, 16} or rows.extent % lanes:
        return (
            f"has vectors of {lanes} elements in rows of {rows.extent}; choose a power "
            "of two up to 16 that divides the row"
        )
    wanted = batches(rows.extent, lanes, schedule.threads)
    if schedule.batches != wanted:
        return (
            f"has {schedule.batches} vectors a thread in rows of {rows.extent}; "
            f"choose {wanted}"
        )
    return ""


def unordered(rows: Rows, schedule: CudaNormalization) -> str:
    """Say which input would be overwritten before every thread has read it."""
    updated = {output.updates for output in rows.program.outputs} - {None}
    if not updated:
        return ""
    if schedule.statistics == "shifted":
        return (
            "has every thread read a row's first element, which this program may "
            "overwrite meanwhile; choose other statistics"
        )
    if rewalked(rows):
        return (
            "may walk a row again that it has overwritten; choose two_pass statistics"
        )
    scalars = [
        node
        for node in rows.program.inputs
        if node.index in updated and rows.places.get(node.number) in {ROW, UNIFORM}
    ]
    if scalars and schedule.threads == WARP:
        return (
            f"has no barrier before {scalars[0].name} is overwritten, which every "
            f"thread of a row reads; choose {2 * WARP} threads a row or more"
        )
    return ""


def crowded(wanted: Demand, schedule: CudaNormalization) -> str:
    """Say how many registers are too many, and what to choose instead."""
    if schedule.registers:
        return ""
    need, room = allowance(wanted, schedule), most_registers(schedule.block)
    if need <= room:
        return ""
    return (
        f"needs about {need} registers a thread, of which a block of "
        f"{schedule.block} threads leaves {room}; choose more threads a row, reload"
    )


@dataclass(frozen=True, slots=True)
class Demand:
    """What a cut program holds of each element of a row, in registers of 32 bits.

    `held` between passes, or of its inputs; `columns` of those read by several passes,
    which the compiler keeps rather than reads again; `again`: whether a variance may
    walk once more.
    """

    held: float
    columns: float
    again: bool


def demand(rows: Rows) -> Demand:
    """Return what a cut program asks of a thread's registers."""
    kept = sum(max(dtype.bytes, 2) for dtype in rows.slots)
    first = [node for node in rows.passes[0].walk.elements if isinstance(node, Input)]
    staged = sum(max(node.dtype.bytes, 2) for node in first)
    walks = [{n.number: n for n in each.walk.columns} for each in rows.passes]
    several = 0
    for number, node in {k: v for walk in walks for k, v in walk.items()}.items():
        if isinstance(node, Input) and sum(number in walk for walk in walks) > 1:
            several += node.dtype.bytes
    again = any(each.again is not None for each in rows.passes)
    return Demand(max(kept, staged) / 4, several / 4, again)


def registers(wanted: Demand, schedule: CudaNormalization) -> int:
    """Return about how many registers a thread needs.

    Fitted to what NVRTC 13.5 takes for bias_layernorm on sm_90a under `allowance`.
    """
    if schedule.keep == "reload":
        return round(BASE + RELOADED * schedule.lanes * schedule.unroll)
    size = schedule.batches * schedule.lanes * schedule.unroll
    each = HELD * wanted.held + COLUMNS * wanted.columns
    return round(BASE + AGAIN * wanted.again + each * size)


def allowance(wanted: Demand, schedule: CudaNormalization) -> int:
    """Return the registers that a thread may use at most, by the schedule's own need.

    With more ptxas loads further ahead, until few blocks fit a multiprocessor: 249
    registers where 104 did as well. With much less it spills.
    """
    most = -(-registers(wanted, schedule) * ALLOWED // 1)
    return max(LEAST, -(-int(most) // REGISTER_UNIT) * REGISTER_UNIT)
