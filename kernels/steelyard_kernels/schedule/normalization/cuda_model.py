"""Candidates of the normalization strategy on a GPU, and what each is predicted to cost.

A launch is its ramp, then memory traffic that overlaps instructions and what comes from
caches for the most part, then the end of the last blocks. Memory is as fast as the rows
in flight let it be (Little's law): a block's bytes are on their way for its whole life,
which is a load's latency, its reductions and its instructions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import hypot
from typing import Final

from steelyard_kernels.cost import bytes_moved
from steelyard_kernels.expression.expr import Program
from steelyard_kernels.schedule.gpu import (
    IDLE_NS,
    ISSUE_RATE,
    LATENCY_NS,
    RAMP_NS,
    WARP,
    Gpu,
    most_registers,
)
from steelyard_kernels.schedule.model import Prediction
from steelyard_kernels.schedule.normalization.cuda import (
    KEEPS,
    CudaNormalization,
    allowance,
    demand,
    registers,
    reload_unroll,
)
from steelyard_kernels.schedule.normalization.cuda_space import (
    FEW_SIDES,
    Cut,
    Work,
    cuts,
    lane_choices,
    one_pass_cuts,
    two_pass_cuts,
    variants,
    work,
)
from steelyard_kernels.schedule.normalization.passes import passes_of

# How many of the best schedules are worth trying.
MOST_CANDIDATES: Final = 98
# The best of them are tried with fewer registers as well, if those are enough.
LIMITED: Final = 8
LIMIT_SHARE: Final = 0.8

# Five shuffles with their additions; a barrier with the slots written and read around
# it; and how much later the last warp of a block comes for each that there is.
SHUFFLES_NS: Final = 80.0
BARRIER_NS: Final = 32.0
SKEW_NS: Final = 26.0
# Instructions of a thread in a nanosecond while its warp waits for most results: with the
# barrier, the rates and shares below, fitted to half of 28 sizes of LayerNorm and softmax
# on an H200, where the chosen is within 5 % of the best in the mean and 11 % at most; on
# the other half 5 %, and 17 % at most. In a later sweep of all sizes the
# chosen was 5 % above the best in the mean and 13 % at most.
THREAD_RATE: Final = 0.35
# Instructions of a thread besides its elements: places, a reduction, scalars.
PLACE_INSTRUCTIONS: Final = 60.0
REDUCE_INSTRUCTIONS: Final = 25.0
ACCESS_INSTRUCTIONS: Final = 2.0  # of a vector's load or store, with its address
# From a load's issue to its value out of a cache; from one block's start to the next's.
NEAR_LATENCY_NS: Final = 240.0
START_NS: Final = 23.0
# What a multiprocessor's first-level cache gives, bytes a nanosecond; and how many
# times memory's rate the second level has.
NEAR_RATE: Final = 218.0
L2_SHARE: Final = 4.4
# How much of the shorter times shows beside the longest, and of a block's life at the
# end, where blocks finish one by one.
EXPOSED: Final = 0.1
TAIL_SHARE: Final = 1.1
# How often a row is assumed to lie so far from zero (or its first element) that its
# variance takes a second walk.
AGAIN: Final = {"plain": 0.5, "shifted": 0.001, "two_pass": 0.0}
# The first elements of a row arrive before any other is of use.
SHIFT_NS: Final = 400.0
# Building takes about 40 us an operation on a vector, for perhaps 5000 launches.
BUILD_NS: Final = 8.0
AGAIN_TEXT: Final = 1.5  # of a program's text, what a second walk adds


def estimate_registers(program: Program, schedule: CudaNormalization) -> int:
    """Return about how many registers a thread needs."""
    return registers(
        demand(passes_of(program, schedule.statistics, schedule.keep, corrected=False)),
        schedule,
    )


def model(program: Program, schedule: CudaNormalization, gpu: Gpu) -> Prediction:
    """Predict one launch."""
    rows = passes_of(program, schedule.statistics, schedule.keep, corrected=False)
    does = work(rows, schedule.statistics)
    each = Cut(schedule.statistics, schedule.keep, rows, does, demand(rows))
    return predict(bytes_moved(program), schedule, each, gpu)


def predict(moved: int, schedule: CudaNormalization, each: Cut, gpu: Gpu) -> Prediction:
    """Predict one launch of a program that is already cut, in nanoseconds."""
    does, rows = each.work, each.rows
    blocks = -(-rows.rows // schedule.per_block)
    active = max(1, min(blocks, gpu.multiprocessors))
    need = schedule.registers or allowance(each.demand, schedule)
    resident = max(1, gpu.blocks_resident(schedule.block, need))
    beside = min(resident, -(-blocks // gpu.multiprocessors))
    issued = schedule.rows * row_instructions(schedule, does)
    warps = schedule.threads // WARP
    stage = SHUFFLES_NS + (BARRIER_NS + SKEW_NS * warps if warps > 1 else 0.0)
    rare = AGAIN[schedule.statistics] * each.demand.again
    life = (
        waiting(schedule, does)
        + IDLE_NS
        + SHIFT_NS * (schedule.statistics == "shifted")
        + stage * (does.reductions + rare)
        + issued / min(ISSUE_RATE, schedule.block * THREAD_RATE)
    )
    flight = blocks * life / (active * beside)  # if memory only waited
    arithmetic = blocks * issued / (active * ISSUE_RATE)
    walked = rows.rows * rows.extent
    near = walked * does.columns / schedule.unroll / (active * NEAR_RATE)
    missed = min(1.0, moved / 2 / max(1, blocks) * beside * active / gpu.l2_bytes) ** 2
    near += walked * does.again * (1 - missed) / gpu.memory_rate / L2_SHARE
    read = moved + walked * does.again * missed
    memory = hypot(read / gpu.memory_rate, flight)
    longest = max(memory, arithmetic, near)
    starts = blocks / active * START_NS
    hidden = EXPOSED * (memory + arithmetic + near + starts - longest)
    text = does.elements * schedule.unroll + does.shared
    return Prediction(
        (
            ("ramp", RAMP_NS),
            ("memory", memory),
            ("over memory", longest - memory + hidden),
            ("last blocks", TAIL_SHARE * life),
            ("build share", text * (1 + AGAIN_TEXT * each.demand.again) * BUILD_NS),
        )
    )


def waiting(schedule: CudaNormalization, does: Work) -> float:
    """Return how long a block waits for its loads: once, or again in every turn."""
    if schedule.keep != "reload":
        return LATENCY_NS
    turns = -(-schedule.batches // reload_unroll(schedule.batches))
    return turns * (LATENCY_NS + NEAR_LATENCY_NS * does.reductions)


def row_instructions(schedule: CudaNormalization, does: Work) -> float:
    """Return the instructions of the threads of `unroll` rows."""
    lanes, unroll = schedule.lanes, schedule.unroll
    vector = lanes * (does.elements * unroll + does.shared)
    vector += ACCESS_INSTRUCTIONS * (does.accesses * unroll + does.columns / 2)
    once = PLACE_INSTRUCTIONS + REDUCE_INSTRUCTIONS * does.reductions * unroll
    rare = 1 + 0.5 * AGAIN[schedule.statistics]
    return schedule.threads * (schedule.batches * vector * rare + once)


def rank(
    program: Program, gpu: Gpu, *, aligned: bool = True
) -> list[tuple[CudaNormalization, Prediction]]:
    """Return every candidate with its prediction, the best predicted first."""
    moved = bytes_moved(program)
    made = {(each.statistics, each.keep): each for each in cuts(program)}
    found = [
        (schedule, predict(moved, schedule, each, gpu))
        for each in made.values()
        for lanes in lane_choices(each.rows, aligned=aligned)
        for schedule in variants(each, gpu, lanes)
    ]
    found.sort(key=lambda row: (row[1].total, row[0]))
    limited = []
    for schedule, _ in found[:LIMITED]:
        each = made[schedule.statistics, schedule.keep]
        fewer = denser(schedule, each, gpu)
        if fewer is not None:
            limited.append((fewer, predict(moved, fewer, each, gpu)))
    found = found[: MOST_CANDIDATES - len(limited)] + limited
    return sorted(found, key=lambda row: (row[1].total, row[0]))


def denser(
    schedule: CudaNormalization, each: Cut, gpu: Gpu
) -> CudaNormalization | None:
    """Return the schedule with the registers that let one more block fit, if it may.

    A fifth less than it needs is worth trying, and may spill; no less is the same code.
    """
    need = registers(each.demand, schedule)
    more = gpu.blocks_resident(schedule.block, allowance(each.demand, schedule)) + 1
    most = most_registers(schedule.block * more)
    if need <= most or most < LIMIT_SHARE * need:
        return None
    return replace(schedule, registers=most)


def candidates(
    program: Program, gpu: Gpu, *, aligned: bool = True
) -> tuple[CudaNormalization, ...]:
    """Return the schedules worth trying, in order."""
    return tuple(
        sorted(schedule for schedule, _ in rank(program, gpu, aligned=aligned))
    )


def heuristic(program: Program, gpu: Gpu, *, aligned: bool = True) -> CudaNormalization:
    """Return the best predicted schedule, looking at fewer than `rank` does.

    Two-pass statistics of rows kept in registers as they are used, by vectors of which
    all threads of a warp have one; where no two blocks of that fit a multiprocessor,
    also rows read again, with the registers that let one more block fit too: of what
    waits for memory most, 16384 halves a row took 171 us so and 182 without.
    """
    moved = bytes_moved(program)
    wanted = [each for each in two_pass_cuts(program, KEEPS[:2]) if not each.doubled]
    best = best_of(moved, wanted, gpu, aligned=aligned)
    if best is not None:
        _, schedule, each = best
        need = allowance(each.demand, schedule)
        if gpu.blocks_resident(schedule.block, need) > 1:
            return schedule
    fewest = list(one_pass_cuts(program, KEEPS[2:]))
    again = best_of(moved, fewest, gpu, aligned=aligned)
    if again is None:
        wanted = list(two_pass_cuts(program, KEEPS[2:]))
        again = best_of(moved, wanted, gpu, aligned=aligned)
    found = [each for each in (best, again) if each is not None]
    if again is not None:
        _, schedule, each = again
        fewer = denser(schedule, each, gpu)
        if fewer is not None:
            found.append((predict(moved, fewer, each, gpu).total, fewer, each))
    return min(found, key=lambda row: row[:2])[1]


def best_of(
    moved: int, wanted: Sequence[Cut], gpu: Gpu, *, aligned: bool
) -> tuple[float, CudaNormalization, Cut] | None:
    """Return the best predicted time and schedule of these cuts, None if none fits."""
    best: tuple[float, CudaNormalization, Cut] | None = None
    for each in wanted:
        widths = lane_choices(each.rows, aligned=aligned)
        busy = [lanes for lanes in widths if each.rows.extent >= lanes * WARP]
        for lanes in busy or widths[-1:]:
            for schedule in variants(each, gpu, lanes, FEW_SIDES):
                total = predict(moved, schedule, each, gpu).total
                if best is None or (total, schedule) < best[:2]:
                    best = total, schedule, each
    return best
