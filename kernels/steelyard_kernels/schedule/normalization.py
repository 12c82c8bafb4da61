"""The normalization strategy: persistent rows, reduced and used again in one kernel.

A block of rows is walked once for every level of reductions; what later passes need
stays in a scratch row close to the core, or is computed again. The number of rows is
a runtime parameter: one binary serves every number that the block divides equally.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import gcd
from typing import Final

from steelyard_kernels import dtypes
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expr import Apply, Cast, Node, Program, Reduce
from steelyard_kernels.schedule.model import (
    ITERATION_NS,
    OPERATION_NS,
    PREFETCH_SAVING,
    Machine,
    Prediction,
    memory_term,
    sharing_terms,
    together,
)
from steelyard_kernels.schedule.parameters import Lowered, arguments, extent_slot
from steelyard_kernels.schedule.passes import Pass, Rows, analyse
from steelyard_kernels.schedule.pointwise import LINE, STREAM_BYTES
from steelyard_kernels.schedule.row_emit import Knobs, RowEmitter
from steelyard_kernels.schedule.variance import expand_variance

# Scratch lives on the stack of pool threads, of which half a megabyte is nothing to
# worry about and more no longer fits beside the rows in a core's second-level cache.
SCRATCH_BYTES: Final = 512 << 10


@dataclass(frozen=True, slots=True, order=True)
class Normalization:
    """The knobs of one normalization lowering.

    `rows` a block, `unroll` vectors of `lanes` elements an iteration; `statistics`
    "shifted" (mean and variance in one pass, a second if it cancelled) or "two_pass";
    `keep` "scratch" or "recompute"; `streaming` stores round the caches; `prefetch` of
    the next block in the last pass; `chunk` rows a thread takes at a time; `threads`
    1 or 0 (all).
    """

    lanes: int
    rows: int
    unroll: int
    statistics: str
    keep: str
    streaming: bool
    prefetch: bool
    chunk: int
    threads: int

    @property
    def label(self) -> str:
        """A short name for tables."""
        who = "all" if self.threads == 0 else "one"
        stores = " stream" if self.streaming else ""
        ahead = " ahead" if self.prefetch else ""
        return (
            f"r{self.rows} v{self.lanes}x{self.unroll} {self.statistics} {self.keep} "
            f"{who} c{self.chunk}{stores}{ahead}"
        )


def lower(
    program: Program, schedule: Normalization, *, aligned: bool = True
) -> Lowered:
    """Return the loop-level kernel; `aligned`: every output starts on a cache line."""
    rows = passes_of(program, schedule)
    check_streaming(program, schedule, rows, aligned=aligned)
    check_scratch(rows, schedule)
    block = schedule.rows
    knobs = Knobs(
        schedule.lanes,
        block,
        schedule.unroll,
        schedule.threads,
        -(-schedule.chunk // block) * block,
        store_alignment(rows, schedule.lanes) if schedule.streaming else 0,
        schedule.prefetch,
    )
    args = arguments(rows.program, LINE if aligned else 0)
    kernel = RowEmitter(rows, args, knobs).kernel()
    return Lowered(kernel, (*args.slots, extent_slot(rows.rows)), schedule.threads)


def passes_of(program: Program, schedule: Normalization) -> Rows:
    """Cut the program into passes as the schedule says."""
    if schedule.statistics == "two_pass":
        program = expand_variance(program)
    return analyse(program, keep=schedule.keep == "scratch")


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
    alignment = store_alignment(rows, schedule.lanes) if aligned else 1
    if alignment < STREAM_BYTES:
        raise KernelError(
            f"{program.name}: schedule {schedule.label} streams to addresses aligned "
            f"to {alignment} bytes, at least {STREAM_BYTES} are needed; align outputs "
            f"to {LINE} bytes and rows to {STREAM_BYTES}, or choose a schedule without "
            "streaming."
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


# Rows a thread takes at a time; 32 was the best of 4-64 with two threads (FACTS.md 2),
# 4 shares out few rows.
CHUNKS: Final = (4, 32)
# Row blocks and unrolls whose accumulators fit: 32 vector registers, half for values.
BLOCKS: Final = (1, 2, 4)
UNROLLS: Final = (1, 2, 4)
ACCUMULATORS: Final = 16


def candidates(
    program: Program, machine: Machine, *, aligned: bool = True
) -> tuple[Normalization, ...]:
    """Return every legal schedule worth trying, in order."""
    return tuple(s for s, _ in _cut_candidates(program, machine, aligned=aligned))


def _cut_candidates(
    program: Program, machine: Machine, *, aligned: bool
) -> list[tuple[Normalization, Rows]]:
    """Return every candidate with the passes it walks (shared by its variants)."""
    variance = any(isinstance(n, Reduce) and n.op == "var" for n in program.nodes)
    found: list[tuple[Normalization, Rows]] = []
    for statistics in ("shifted", "two_pass") if variance else ("two_pass",):
        for keep in ("scratch", "recompute"):
            base = Normalization(
                machine.lanes(4), 1, 1, statistics, keep, False, False, CHUNKS[-1], 0
            )
            rows = passes_of(program, base)
            if keep == "scratch" or found[-1][1].slots:
                variants = _variants(base, rows, aligned=aligned)
                found += [(schedule, rows) for schedule in variants]
    return found


def _variants(
    base: Normalization, rows: Rows, *, aligned: bool
) -> Iterator[Normalization]:
    """Yield the schedules that differ from `base` only in how rows are walked."""
    streams = aligned and store_alignment(rows, base.lanes) >= STREAM_BYTES
    streams = streams and any(each.outputs for each in rows.passes)
    most = max(_accumulators(each) for each in rows.passes)
    room = SCRATCH_BYTES // max(1, scratch_bytes(rows))
    for block, unroll in product(BLOCKS, UNROLLS):
        if block > max(1, min(room, rows.rows)) or (
            block * unroll > 1 and block * unroll * most > ACCUMULATORS
        ):
            continue
        for streaming, prefetch, chunk, threads in product(
            (False, True) if streams else (False,), (False, True), CHUNKS, (0, 1)
        ):
            if threads == 0 or chunk == CHUNKS[-1]:  # one thread takes all rows
                yield Normalization(
                    base.lanes,
                    block,
                    unroll,
                    base.statistics,
                    base.keep,
                    streaming,
                    prefetch,
                    chunk,
                    threads,
                )


def _accumulators(each: Pass) -> int:
    return sum(2 if item.kind == "moments" else 1 for item in each.sums)


@dataclass(frozen=True, slots=True)
class _Work:
    """What one row costs in vector operations, however it is walked."""

    elements: int  # operations a vector of elements
    columns: int  # ... that a block of rows shares
    reductions: int  # horizontal ones


def _work(rows: Rows) -> _Work:
    elements = columns = reductions = 0
    for each in rows.passes:
        elements += sum(_cost(node) for node in each.walk.elements)
        elements += 2 * _accumulators(each) + len(each.stores) + len(each.outputs)
        columns += sum(_cost(node) for node in each.walk.columns)
        reductions += len(each.sums)
    return _Work(elements, columns, reductions)


def _cost(node: Node) -> int:
    """Return a node's vector operations: exp and log are polynomials of about 20."""
    if isinstance(node, Apply):
        return {"exp": 20, "log": 24, "divide": 4, "sqrt": 4, "rsqrt": 8}.get(
            node.op, 1
        )
    narrow = isinstance(node, Cast) and (
        node.dtype in dtypes.HALVES or node.arg.dtype in dtypes.HALVES
    )
    return 2 if narrow else 1


def model(program: Program, schedule: Normalization, machine: Machine) -> Prediction:
    """Predict one launch."""
    rows = passes_of(program, schedule)
    memory = memory_term(program, schedule, machine)
    return _predict(schedule, rows, _work(rows), memory, machine)


def _predict(
    schedule: Normalization, rows: Rows, work: _Work, memory: float, machine: Machine
) -> Prediction:
    threads = machine.threads if schedule.threads == 0 else 1
    walked = rows.rows / threads
    vectors = walked * max(1.0, rows.extent / schedule.lanes)
    if schedule.prefetch and rows.rows > schedule.rows:
        memory *= 1 - PREFETCH_SAVING
    operations = work.elements + work.columns / schedule.rows
    computing = vectors * operations * OPERATION_NS
    steps = vectors / schedule.unroll / schedule.rows * len(rows.passes)
    # A chain of additions or a horizontal reduction waits unless others run beside it.
    beside = min(8, schedule.rows * schedule.unroll)
    waiting = vectors * work.reductions * CHAIN_NS / beside
    across = walked * work.reductions * ACROSS_NS / schedule.rows
    ragged = rows.rows % schedule.rows / max(1, rows.rows) * computing
    chunks = max(1, -(-rows.rows // schedule.chunk))
    shared = together(memory, computing)
    return Prediction(
        (
            ("memory and arithmetic", shared),
            ("loops", steps * ITERATION_NS),
            ("chains", waiting + across),
            ("ragged rows", ragged),
            *sharing_terms(schedule, machine, chunks, shared),
        )
    )


# Four cycles from one addition to the next of a chain, at 3 GHz; and about ten such
# steps for a reduction across lanes with the scalar arithmetic behind it.
CHAIN_NS: Final = 1.3
ACROSS_NS: Final = 13.0


def rank(
    program: Program, machine: Machine, *, aligned: bool = True
) -> list[tuple[Normalization, Prediction]]:
    """Return every candidate with its prediction, in order."""
    found = []
    works: dict[int, _Work] = {}
    memories: dict[tuple[int, bool], float] = {}
    for schedule, rows in _cut_candidates(program, machine, aligned=aligned):
        if id(rows) not in works:
            works[id(rows)] = _work(rows)
        key = schedule.threads, schedule.streaming
        if key not in memories:
            memories[key] = memory_term(program, schedule, machine)
        work = works[id(rows)]
        found.append((schedule, _predict(schedule, rows, work, memories[key], machine)))
    return found
