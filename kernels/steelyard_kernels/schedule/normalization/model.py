"""Candidates of the normalization strategy, and what each is predicted to cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final, TypeAlias

from steelyard_kernels import dtypes
from steelyard_kernels.expression.expr import Apply, Cast, Node, Program, Reduce
from steelyard_kernels.ops import OPERATIONS
from steelyard_kernels.schedule.model import (
    BUILD_NS,
    COLD_SHARE,
    DRAIN_SHARE,
    OPERATION_NS,
    PAGE_BYTES,
    PAGE_STALL,
    PREFETCH_SAVING,
    ROW_STALL,
    SHORT_ROW_BYTES,
    STREAM_BYTES,
    Machine,
    Prediction,
    Traffic,
    cached_term,
    cold_term,
    sharing_terms,
    together,
    traffic,
)
from steelyard_kernels.schedule.normalization.outline import outline
from steelyard_kernels.schedule.normalization.passes import (
    Pass,
    Rows,
    rewalked,
)
from steelyard_kernels.schedule.normalization.passes import (
    cut as into_passes,
)
from steelyard_kernels.schedule.normalization.schedule import (
    SCRATCH_BYTES,
    Normalization,
    passes_of,
    scratch_bytes,
    store_alignment,
)
from steelyard_kernels.schedule.normalization.scratch import hoistable
from steelyard_kernels.schedule.variance import expand_variance

# Rows a thread takes at a time; 32 was the best of 4-64 with two threads (FACTS.md 2),
# 4 shares out few rows.
CHUNKS: Final = (4, 32)
# Row blocks and unrolls whose accumulators fit: 32 vector registers, half for values.
BLOCKS: Final = (1, 2, 4)
UNROLLS: Final = (1, 2)
ACCUMULATORS: Final = 16

# Rows are assumed to be centred, as what is normalised mostly is: "plain" then walks a
# row twice no more often than "shifted" does, and subtracts once less.
STATISTICS: Final = ("plain", "shifted", "two_pass")

# Four cycles from one addition to the next of a chain, at 3 GHz; and about ten such
# steps for a reduction across lanes with the scalar arithmetic behind it.
CHAIN_NS: Final = 1.3
ACROSS_NS: Final = 13.0


@dataclass(frozen=True, slots=True)
class Work:
    """What one walk costs in vector operations, whatever the schedule."""

    elements: int  # of a row
    columns: int  # of what the rows of a block share
    loads: int  # what is left of `columns` when they are hoisted
    reductions: int  # horizontal ones


Cut: TypeAlias = tuple[str, str, Rows, Work]


def cuts(program: Program) -> Iterator[Cut]:
    """Yield each way to cut the program: statistics, keep, its passes, their work."""
    variance = any(isinstance(n, Reduce) and n.op == "var" for n in program.nodes)
    one_pass = list(_kept_or_not(program)) if variance else []
    two_pass = list(_kept_or_not(expand_variance(program) if variance else program))
    for statistics in STATISTICS if variance else STATISTICS[-1:]:
        for keep, rows in two_pass if statistics == STATISTICS[-1] else one_pass:
            if not rewalked(rows):
                yield statistics, keep, rows, work(rows, statistics)


def _kept_or_not(program: Program) -> Iterator[tuple[str, Rows]]:
    """Yield the passes with scratch rows if they fit, without if they differ."""
    found = outline(program)
    kept = into_passes(found, keep="scratch")
    if scratch_bytes(kept) <= SCRATCH_BYTES:
        yield "scratch", kept
    if kept.slots:
        yield "recompute", into_passes(found, keep="recompute")


def candidates(
    program: Program, machine: Machine, *, aligned: bool = True
) -> tuple[Normalization, ...]:
    """Return every legal schedule worth trying, in order."""
    found: list[Normalization] = []
    for cut in cuts(program):
        found += variants(cut, machine, aligned=aligned)
    return tuple(found)


def variants(cut: Cut, machine: Machine, *, aligned: bool) -> Iterator[Normalization]:
    """Yield the schedules of one cut."""
    stores = tuple(stores_of(cut[2], machine, aligned=aligned))
    for shape in shapes(cut):
        yield from variants_of_shape(cut, machine, shape, stores)


def variants_of_shape(
    cut: Cut,
    machine: Machine,
    shape: tuple[int, int, bool],
    stores: tuple[tuple[bool, bool], ...],
) -> Iterator[Normalization]:
    """Yield the schedules of one cut and shape."""
    for how in stores:
        for chunk, threads in ((CHUNKS[0], 0), (CHUNKS[1], 0), (CHUNKS[1], 1)):
            if threads == 0 or how == (False, False):
                yield _schedule(cut, machine, shape, how, (chunk, threads))


def _schedule(
    cut: Cut,
    machine: Machine,
    shape: tuple[int, int, bool],
    stores: tuple[bool, bool],
    sharing: tuple[int, int],
) -> Normalization:
    statistics, keep, _, _ = cut
    lanes = machine.lanes(4)
    return Normalization(
        lanes, *shape[:2], statistics, keep, shape[2], *stores, *sharing
    )


def shapes(cut: Cut) -> Iterator[tuple[int, int, bool]]:
    """Yield (rows a block, unroll, hoist) for blocks that fit registers and scratch."""
    _, _, rows, _ = cut
    most = max(accumulators(each) for each in rows.passes)
    room = SCRATCH_BYTES // max(1, scratch_bytes(rows))
    hoists = (False, True) if hoistable(rows) else (False,)
    for block, unroll, hoist in product(BLOCKS, UNROLLS, hoists):
        few = block * unroll == 1 or block * unroll * most <= ACCUMULATORS
        if few and block <= min(room, max(1, rows.rows)):
            yield block, unroll, hoist


def stores_of(
    rows: Rows, machine: Machine, *, aligned: bool
) -> Iterator[tuple[bool, bool]]:
    """Yield (streaming, prefetch)."""
    streams = aligned and store_alignment(rows, machine.lanes(4)) >= STREAM_BYTES
    streams = streams and any(each.outputs for each in rows.passes)
    yield from product((False, True) if streams else (False,), (False, True))


def accumulators(each: Pass) -> int:
    """Return how many vectors a row's sums carry."""
    return sum(item.accumulators for item in each.sums)


def work(rows: Rows, statistics: str) -> Work:
    """Count the vector operations of all passes."""
    shifts = statistics == "shifted"
    hoisted = {node.number for node in hoistable(rows)}
    elements = columns = loads = reductions = 0
    for each in rows.passes:
        elements += sum(_cost(node) for node in each.walk.elements)
        elements += accumulators(each) + len(each.stores) + len(each.outputs)
        elements += shifts * sum(item.kind == "moments" for item in each.sums)
        columns += sum(_cost(node) for node in each.walk.columns)
        loads += sum(node.number in hoisted for node in each.walk.columns)
        reductions += len(each.sums)
    return Work(elements, columns, loads if hoisted else columns, reductions)


def _cost(node: Node) -> int:
    """Return a node's vector operations; conversions of halves take two cycles."""
    if isinstance(node, Apply):
        return OPERATIONS[node.op].cost.cpu
    narrow = isinstance(node, Cast) and (
        node.dtype in dtypes.HALVES or node.arg.dtype in dtypes.HALVES
    )
    return 3 if narrow else 1


def model(program: Program, schedule: Normalization, machine: Machine) -> Prediction:
    """Predict one launch."""
    rows = passes_of(program, schedule.statistics, schedule.keep)
    each = work(rows, schedule.statistics)
    return predict(traffic(program), schedule, (rows, each), machine)


def walking_time(
    moved: Traffic,
    schedule: Normalization,
    rows: Rows,
    machine: Machine,
    computing: float,
) -> float:
    """Return the nanoseconds of memory traffic and arithmetic of all walks."""
    row_bytes = moved.moved / max(1, rows.rows) / 2  # read and written
    stall = ROW_STALL / schedule.rows
    if row_bytes < PAGE_BYTES:
        stall = PAGE_STALL if schedule.rows > 1 else 0.0
    ahead = 1.0
    if schedule.prefetch:
        helps = not moved.resident or row_bytes < SHORT_ROW_BYTES
        gains = helps and schedule.rows > 1
        ahead = 1 - PREFETCH_SAVING if gains else 1 + PREFETCH_SAVING
    cold = cold_term(moved, schedule, machine) * (1 + stall)
    cold = together(cold * ahead, computing)
    if not moved.resident:
        return cold
    warm, drained = cached_term(moved, schedule, machine)
    warm *= ahead
    warm = max(together(warm, computing), drained) + DRAIN_SHARE * drained
    return warm + COLD_SHARE * cold


def computing_time(
    schedule: Normalization, cut: tuple[Rows, Work], machine: Machine
) -> float:
    """Return the nanoseconds of arithmetic of all walks."""
    rows, each = cut
    threads = machine.threads if schedule.threads == 0 else 1
    across = max(1.0, rows.extent / schedule.lanes)  # vectors a row
    walked = rows.rows / threads
    columns = each.loads if schedule.hoist else each.columns
    computing = walked * across * (each.elements + columns / schedule.rows)
    hoisting = across * each.columns if schedule.hoist else 0.0
    computing = (computing + hoisting) * OPERATION_NS
    # A chain of additions takes longer than arithmetic unless others run beside it; the
    # loop itself hides behind the body of a block.
    chains = walked * each.reductions * across * CHAIN_NS
    return max(computing, chains / (schedule.rows * schedule.unroll))


def predict(
    moved: Traffic,
    schedule: Normalization,
    cut: tuple[Rows, Work],
    machine: Machine,
) -> Prediction:
    """Predict one launch of a program that is already cut."""
    rows, each = cut
    threads = machine.threads if schedule.threads == 0 else 1
    walked = rows.rows / threads
    columns = each.loads if schedule.hoist else each.columns
    computing = computing_time(schedule, cut, machine)
    shared = walking_time(moved, schedule, rows, machine, computing)
    reducing = walked * each.reductions * ACROSS_NS / schedule.rows
    ragged = rows.rows % schedule.rows > 0
    bodies = (schedule.rows + ragged) * (schedule.unroll + (schedule.unroll > 1) + 1)
    chunks = max(1, -(-rows.rows // schedule.chunk))
    return Prediction(
        (
            ("memory and arithmetic", shared),
            ("reductions", reducing),
            ("build share", bodies * (each.elements + columns) * BUILD_NS),
            *sharing_terms(schedule, machine, chunks, shared),
        )
    )


def rank(
    program: Program, machine: Machine, *, aligned: bool = True
) -> list[tuple[Normalization, Prediction]]:
    """Return every candidate with its prediction, in order."""
    found = []
    moved = traffic(program)
    for cut in cuts(program):
        for schedule in variants(cut, machine, aligned=aligned):
            prediction = predict(moved, schedule, cut[2:], machine)
            found.append((schedule, prediction))
    return found


def heuristic(
    program: Program, machine: Machine, *, aligned: bool = True
) -> Normalization:
    """Return the best predicted candidate, as `rank` would, looking at fewer.

    A shape and its stores whose walks alone would take longer than the best so far are
    not looked at any closer; large blocks come first, being mostly best.
    """
    best: tuple[float, Normalization] | None = None
    moved = traffic(program)
    for cut in cuts(program):
        stores = tuple(stores_of(cut[2], machine, aligned=aligned))
        for shape in sorted(shapes(cut), reverse=True):
            alike = (CHUNKS[1], 0)
            first = _schedule(cut, machine, shape, stores[0], alike)
            computing = computing_time(first, cut[2:], machine)
            hopes = stores
            if best is not None and machine.threads > 1:
                if computing >= best[0]:
                    continue
                hopes = tuple(
                    how
                    for how in stores
                    if walking_time(
                        moved,
                        _schedule(cut, machine, shape, how, alike),
                        cut[2],
                        machine,
                        computing,
                    )
                    < best[0]
                )
            for one in variants_of_shape(cut, machine, shape, hopes):
                total = predict(moved, one, cut[2:], machine).total
                if best is None or (total, one) < best:
                    best = total, one
    assert best is not None
    return best[1]
