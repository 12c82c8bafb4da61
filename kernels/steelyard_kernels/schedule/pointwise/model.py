"""Candidates of the pointwise strategy, and what each is predicted to cost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import Program
from steelyard_kernels.schedule.model import (
    BUILD_NS,
    ITERATION_NS,
    OPERATION_NS,
    PREFETCH_SAVING,
    Machine,
    Prediction,
    memory_term,
    sharing_terms,
    traffic,
)
from steelyard_kernels.schedule.pointwise.schedule import (
    Pointwise,
    check_program,
    check_streaming,
    space_of,
)

# Iterations that a thread takes at a time, in elements: large enough to hide the
# claim, small enough that two threads end together; the lowest of seen optima.
CHUNKS = (1 << 12, 1 << 14, 1 << 16)


def candidates(
    program: Program,
    machine: Machine,
    *,
    aligned: bool = True,
    prefetches: Sequence[int] = (0, 512),
) -> tuple[Pointwise, ...]:
    """Return every legal schedule worth trying, in order."""
    check_program(program)
    space = space_of(program)
    size = prod(space.extents)
    widest = max(
        (
            n.dtype.bytes
            for n in program.nodes
            if prod(n.shape) == size and n.dtype.bytes > 2
        ),
        default=4,
    )
    full = machine.lanes(widest)
    found = []
    for knobs in product(
        (full, 2 * full), (1, 2, 4), (0, 1), CHUNKS, (False, True), prefetches
    ):
        schedule = Pointwise(*knobs)
        if schedule.threads == 1 and schedule.chunk != CHUNKS[0]:
            continue  # one thread takes everything at once: the chunk says nothing
        try:
            check_streaming(program, schedule, space, aligned=aligned)
        except KernelError:
            continue
        found.append(schedule)
    return tuple(found)


def model(program: Program, schedule: Pointwise, machine: Machine) -> Prediction:
    """Predict one launch."""
    memory = memory_term(traffic(program), schedule, machine)
    return predict(program, schedule, machine, memory)


def predict(
    program: Program, schedule: Pointwise, machine: Machine, memory: float
) -> Prediction:
    """Predict one launch whose memory traffic takes so many nanoseconds."""
    elements = max(prod(output.value.shape) for output in program.outputs)
    threads = machine.threads if schedule.threads == 0 else 1
    full = machine.lanes(4)
    if schedule.prefetch:
        memory *= 1 + PREFETCH_SAVING  # the hardware already does: only more work
    statements = len(program.nodes) + len(program.outputs)
    vectors = elements / full / threads
    spills = _pressure(schedule, statements, full)
    computing = vectors * (statements * OPERATION_NS + spills)
    computing += vectors * full / (schedule.lanes * schedule.unroll) * ITERATION_NS
    bodies = schedule.unroll + (schedule.unroll > 1) + 1
    chunks = max(1, -(-elements // schedule.chunk))
    work = max(memory, computing)  # no iteration waits for another: all overlaps
    return Prediction(
        (
            ("memory or arithmetic", work),
            ("build share", bodies * statements * schedule.lanes / full * BUILD_NS),
            *sharing_terms(schedule, machine, chunks, work),
        )
    )


def _pressure(schedule: Pointwise, statements: int, full: int) -> float:
    """Return nanoseconds a vector lost to spilling; 32 registers hold what is live."""
    live = statements * schedule.unroll * (schedule.lanes / full) / 2
    return max(0.0, live - 32) * OPERATION_NS / 8


def heuristic(program: Program, machine: Machine, *, aligned: bool = True) -> Pointwise:
    """Return the best predicted candidate; none that prefetches, which only costs."""
    memory: dict[tuple[int, bool], float] = {}  # by what memory traffic depends on
    moved = traffic(program)
    best: tuple[float, Pointwise] | None = None
    for schedule in candidates(program, machine, aligned=aligned, prefetches=(0,)):
        key = schedule.threads, schedule.streaming
        if key not in memory:
            memory[key] = memory_term(moved, schedule, machine)
        total = predict(program, schedule, machine, memory[key]).total
        if best is None or total < best[0]:
            best = total, schedule
    assert best is not None
    return best[1]


def rank(
    program: Program, machine: Machine, *, aligned: bool = True
) -> list[tuple[Pointwise, Prediction]]:
    """Return every candidate with its prediction, in order."""
    memory: dict[tuple[int, bool], float] = {}  # by what memory traffic depends on
    moved = traffic(program)
    found = []
    for schedule in candidates(program, machine, aligned=aligned):
        key = schedule.threads, schedule.streaming
        if key not in memory:
            memory[key] = memory_term(moved, schedule, machine)
        found.append((schedule, predict(program, schedule, machine, memory[key])))
    return found
