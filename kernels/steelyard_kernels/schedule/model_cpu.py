"""What a schedule of a nest is predicted to cost on a CPU: terms in nanoseconds."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TypeAlias

from steelyard_kernels.expression.expr import Input
from steelyard_kernels.nest.axes import NAMES, Nest, segmented
from steelyard_kernels.schedule.lines import line_ns
from steelyard_kernels.schedule.model import (
    AHEAD_COST,
    BUILD_NS,
    ITERATION_NS,
    LINE,
    OPERATION_NS,
    Machine,
    Prediction,
    memory_term,
    sharing_terms,
    together,
    traffic,
)
from steelyard_kernels.schedule.schedule import LAST, Place, Schedule
from steelyard_kernels.schedule.transposition import Transposed, blocks, transposed_of

Model: TypeAlias = Callable[[Schedule], Prediction]

# How many bytes a segment of a row costs more where rows are walked down by segments: sums
# of 4096 columns of 4096 float32 took 17.4, 13.5 and 10.8 ms by 128, 256 and 512 bytes.
SEGMENT_BYTES = 90
# The same of rows that squares are written to: 4096 x 4096 float32 took 1.15 times as long
# as a copy by 192 bytes and 1.5 by 64. Element by element every one takes a line.
SQUARE_BYTES = 40
# What more is lost where so many rows are read side by side that caches lose some: int8,
# 512 of them against 192.
SQUARE_ROWS = 256
SQUARE_LOSS = 0.2
REGISTERS = 32  # of a vector unit: what is live beyond them is spilled


def model(nest: Nest, machine: Machine) -> Model:
    """Return what predicts one launch of a nest under a schedule."""
    program = nest.program
    moved = traffic(program)
    memory: dict[tuple[int, bool], float] = {}  # by what memory traffic depends on
    elements = prod(nest.extents[: nest.space])
    statements = len(program.nodes) + len(program.outputs)
    again = work(nest) / elements  # how often an element's statements are done
    full = machine.lanes(4)
    reduced = any(value.over for value in nest.values)
    turned, sorting = transposed_of(nest), line_ns(nest)

    def predict(schedule: Schedule) -> Prediction:
        first, threads = schedule.cuts[0], schedule.threads
        lanes = unroll = 1
        for cut in schedule.cuts:
            for factor, place in cut.factors:
                if place is Place.VECTOR:
                    lanes = max(lanes, factor)
                elif place is Place.REGISTER:
                    unroll = max(unroll, factor)
        key = threads, schedule.streaming
        if key not in memory:
            memory[key] = memory_term(moved, schedule, machine)
        moving = memory[key] * _longer(nest, schedule, turned, reduced=reduced)
        vectors = again * elements / full / (1 if threads else machine.threads)
        live = statements * unroll * (lanes / full) / 2
        spills = max(0.0, live - REGISTERS) * OPERATION_NS / 8
        computing = vectors * (statements * OPERATION_NS + spills)
        computing += vectors * full / (lanes * unroll) * ITERATION_NS
        computing += sorting / (1 if threads else machine.threads)
        bodies = unroll + (unroll > 1) + 1
        chunks = max(1, -(-prod(nest.extents[: len(first.axes)]) // first.size))
        if schedule.keep is Place.REGISTER:
            chunks = blocks(nest, schedule)
        # No iteration waits for another: all overlaps, but where segments end.
        longer = together(moving, computing) if reduced else max(moving, computing)
        return Prediction(
            (
                ("memory or arithmetic", longer),
                ("build share", bodies * statements * lanes / full * BUILD_NS),
                *sharing_terms(schedule, machine, chunks, longer),
            )
        )

    return predict


def _longer(
    nest: Nest, schedule: Schedule, turned: Transposed | None, *, reduced: bool
) -> float:
    """Return how many times longer than whole rows, one after another, memory takes."""
    if not nest.space:
        return 1.0
    (cut,) = [cut for cut in schedule.cuts if NAMES[nest.space - 1] in cut.axes]
    beside = prod([n for n, place in cut.factors if place not in LAST])
    if turned is not None:
        if schedule.keep is Place.REGISTER:
            many = SQUARE_LOSS if beside > SQUARE_ROWS else 0.0
            return 1 + SQUARE_BYTES / (beside * turned.element) + many
        return LINE / turned.element
    longer = 1 + AHEAD_COST if schedule.prefetch else 1.0
    if reduced and cut.at(Place.VECTOR) > 1:
        read = [v for v in nest.values if isinstance(v.source, Input)]
        own = [v.node.dtype.bytes for v in read if nest.space - 1 in v.axes]
        longer *= 1 + SEGMENT_BYTES / (max(own, default=4) * beside)
    return longer


def work(nest: Nest) -> float:
    """Return how many elements a nest computes, statements being alike: its largest part."""
    return float(
        max(
            prod(
                [nest.extents[k] for k in {*value.axes, *value.over} - segmented(value)]
            )
            for value in nest.values
        )
    )
