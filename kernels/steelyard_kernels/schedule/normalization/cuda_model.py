"""Candidates of the normalization strategy on a GPU, and what each is predicted to cost.

A launch is its ramp, then memory traffic that overlaps instructions and what comes from
caches for the most part, then the end of the last blocks. Memory is as fast as the rows
in flight let it be (Little's law): a block's bytes are on their way for its whole life,
which is a load's latency, its reductions and its instructions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import gcd, hypot
from typing import Final

from steelyard_kernels import dtypes
from steelyard_kernels.cost import bytes_moved
from steelyard_kernels.expr import Apply, Cast, Input, Node, Program, Reduce
from steelyard_kernels.schedule.gpu import (
    MAX_THREADS,
    VECTOR_BYTES,
    WARP,
    Gpu,
    most_registers,
)
from steelyard_kernels.schedule.model import Prediction
from steelyard_kernels.schedule.normalization.cuda import (
    KEEPS,
    CudaNormalization,
    Demand,
    allowance,
    batches,
    crowded,
    demand,
    registers,
    reload_unroll,
    unordered,
)
from steelyard_kernels.schedule.normalization.outline import COLUMN, ELEMENT, outline
from steelyard_kernels.schedule.normalization.passes import Rows, cut
from steelyard_kernels.schedule.normalization.schedule import passes_of
from steelyard_kernels.schedule.normalization.variance import expand_variance
from steelyard_kernels.schedule.pointwise.cuda_model import (
    IDLE_NS,
    ISSUE_RATE,
    LATENCY_NS,
    RAMP_NS,
)

# Threads of a row that are always worth trying; others fit a number of vectors each.
THREADS: Final = (32, 64, 128, 256, 512, 1024)
FITTED: Final = (1, 2, 3, 4, 5, 6, 7, 8, 12)
# Warps side by side in a block: one for few rows, four as quack has, and more.
SIDES: Final = (1, 2, 4, 8, 16)
UNROLLS: Final = (1, 2)
# Elements that a thread holds of all its rows at most: code grows with them, and the
# compiler takes 0.3 s. And how many of the best schedules are worth trying.
MOST_ELEMENTS: Final = 80
MOST_AGAIN: Final = 32  # words held beside a second walk over full words
MOST_OF_A_WARP: Final = 40  # of two rows
LEAST_BUSY: Final = 0.8  # of a row's threads, in all turns
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
# on an H200 (1600 candidates), where the chosen is within 5 % of the best in the mean and
# 11 % at most; on the other half 5 %, and 17 % at most (3.7 of 3.2 us, for 7 x 33).
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
_COSTS: Final = {"exp": 8.0, "log": 8.0, "divide": 8.0, "sqrt": 8.0, "rsqrt": 8.0}


@dataclass(frozen=True, slots=True)
class Work:
    """What a cut program does for each element of a row, whatever the other knobs.

    Bytes: `columns` of what rows share, `again` of inputs read more than once.
    Instructions: `elements`, and `shared` for columns. `reductions` are passes that
    have any.
    """

    columns: int
    again: int
    elements: float
    shared: float
    accesses: int
    reductions: int


@dataclass(frozen=True, slots=True)
class Cut:
    """One way to cut a program: the knobs it follows from, and what comes of it.

    `doubled`: a wide cut holds more, but where no barrier stands between passes the
    compiler makes the same code of both.
    """

    statistics: str
    keep: str
    rows: Rows
    work: Work
    demand: Demand
    doubled: bool = False


def cuts(program: Program, keeps: Sequence[str] = KEEPS) -> Iterator[Cut]:
    """Yield every way to cut a program."""
    variance = any(isinstance(n, Reduce) and n.op == "var" for n in program.nodes)
    expanded = expand_variance(program) if variance else program
    yield from _cuts(expanded, ("two_pass",), keeps)
    if variance:
        updates = any(output.updates is not None for output in program.outputs)
        kinds = ("plain",) if updates else ("plain", "shifted")
        yield from _cuts(program, kinds, keeps)


def _cuts(
    program: Program, statistics: tuple[str, ...], keeps: Sequence[str]
) -> Iterator[Cut]:
    """Yield the cuts of a program; what is packed need not be wide as well."""
    found = outline(program)
    made = {keep: cut(found, keep=keep) for keep in keeps}
    packed, wide = made.get("packed"), made.get("wide")
    doubled = packed is not None and wide is not None
    if packed and wide and set(packed.scratch) == set(wide.scratch):
        del made["wide"]
        doubled = False
    for keep, rows in made.items():
        wanted = demand(rows)
        for each in statistics:
            same = doubled and keep == "packed"
            yield Cut(each, keep, rows, work(rows, each), wanted, same)


def work(rows: Rows, statistics: str) -> Work:
    """Count what all passes do for an element."""
    columns = again = accesses = reductions = 0
    elements = shared = 0.0
    read: set[int] = set()
    for each in rows.passes:
        elements += sum(map(_cost, each.walk.elements))
        for item in each.sums:
            elements += item.accumulators + (statistics == "shifted")
        shared += sum(map(_cost, each.walk.columns))
        columns += sum(n.dtype.bytes for n in each.walk.columns if isinstance(n, Input))
        for node in each.walk.elements:
            if isinstance(node, Input) and node.number not in each.walk.loads:
                again += node.dtype.bytes * (node.number in read)
                accesses += 1
                read.add(node.number)
        accesses += len(each.outputs)
        reductions += bool(each.sums)
    return Work(columns, again, elements, shared, accesses, reductions)


def _cost(node: Node) -> float:
    """Return a node's instructions an element."""
    if isinstance(node, Input):
        return 0.0
    if isinstance(node, Cast) and node.dtype in dtypes.HALVES:
        return 0.5  # two at once
    return _COSTS.get(node.op, 1.0) if isinstance(node, Apply) else 1.0


def lane_choices(rows: Rows, *, aligned: bool) -> tuple[int, ...]:
    """Return the lanes of vectors of 16 and of 8 bytes, the widest first."""
    if not aligned or rows.extent == 0:
        return (1,)
    places = rows.places
    read = [n for n in rows.program.nodes if isinstance(n, Input)]
    sizes = [n.dtype.bytes for n in read if places[n.number] in {COLUMN, ELEMENT}]
    outputs = [place for each in rows.passes for place in each.outputs]
    sizes += [rows.program.outputs[place].value.dtype.bytes for place in outputs]
    widest = max(sizes, default=8)
    wanted = {gcd(rows.extent, size // widest) for size in (VECTOR_BYTES, 8)}
    return tuple(sorted(wanted, reverse=True))


def thread_choices(extent: int, lanes: int) -> tuple[int, ...]:
    """Return how many threads may share a row, so that most have a vector each turn.

    Where a fifth more than need be had none, they came within 2 % of the best of 20
    sizes on an H200, and a vector behind a condition is code once more.
    """
    vectors = extent // lanes
    most = min(MAX_THREADS, max(2 * WARP, -(-vectors // WARP) * WARP))
    fitted = {-(-vectors // (count * WARP)) * WARP for count in FITTED}
    found = [t for t in sorted(fitted | set(THREADS)) if WARP <= t <= most]
    room = {t: t * batches(extent, lanes, t) for t in found}
    least = min(room.values()) if vectors > 2 * WARP else 0  # short: a warp, or two
    return tuple(t for t in found if not least or least >= LEAST_BUSY * room[t])


def variants(
    each: Cut,
    gpu: Gpu,
    lanes: int,
    sides: Sequence[int] = SIDES,
    unrolls: Sequence[int] = UNROLLS,
) -> Iterator[CudaNormalization]:
    """Yield the legal schedules of one cut and width of vectors."""
    rows = each.rows
    for threads in thread_choices(rows.extent, lanes):
        count = batches(rows.extent, lanes, threads)
        for side, unroll in product(sides if threads == WARP else (1,), unrolls):
            if side * unroll > 1 and rows.rows < side * unroll * gpu.multiprocessors:
                continue
            if each.keep == "reload":
                if unroll > 1:
                    continue
            elif count * lanes * unroll > MOST_ELEMENTS:
                continue
            if _spills(each, count * lanes * unroll):
                continue
            schedule = CudaNormalization(
                lanes, threads, count, side, unroll, each.statistics, each.keep
            )
            if not (
                _wasted(each, schedule)
                or crowded(each.demand, schedule)
                or unordered(rows, schedule)
            ):
                yield schedule


def _wasted(each: Cut, schedule: CudaNormalization) -> bool:
    """Say whether a schedule is another's code, or more code that never was best.

    Two packed rows, or two of many elements in a warp, came within 1 % and 5 % of the
    best at 20 sizes on an H200, and take the compiler half as long again.
    """
    alone, two = schedule.threads == WARP, schedule.unroll > 1
    single = schedule.batches == 1  # and its input in registers anyway
    size = schedule.batches * schedule.lanes * schedule.unroll
    if alone and two and size > MOST_OF_A_WARP:
        return True
    if single and schedule.keep == "reload" and schedule.statistics != "two_pass":
        return True
    return each.doubled and (alone or two or single)


def _spills(each: Cut, size: int) -> bool:
    """Say whether a second walk would find too many registers taken.

    ptxas spilled beside 44 words of float32 rows; rows of halves had room with 80.
    """
    words = each.demand.held * size
    full = each.keep == "packed" and each.demand.held >= 1
    return each.demand.again and full and words >= MOST_AGAIN


def estimate_registers(program: Program, schedule: CudaNormalization) -> int:
    """Return about how many registers a thread needs."""
    return registers(
        demand(passes_of(program, schedule.statistics, schedule.keep)), schedule
    )


def model(program: Program, schedule: CudaNormalization, gpu: Gpu) -> Prediction:
    """Predict one launch."""
    rows = passes_of(program, schedule.statistics, schedule.keep)
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

    Those with the widest vectors of which all threads of a warp
    have one, and only where no row fits the registers at those that reload it.
    """
    moved = bytes_moved(program)
    best: tuple[float, CudaNormalization] | None = None
    for keeps in (KEEPS[:2], KEEPS[2:]):
        for each in cuts(program, keeps):
            widths = lane_choices(each.rows, aligned=aligned)
            busy = [lanes for lanes in widths if each.rows.extent >= lanes * WARP]
            lanes = (busy or widths[-1:])[0]
            for schedule in variants(each, gpu, lanes, SIDES[:3:2]):
                total = predict(moved, schedule, each, gpu).total
                if best is None or (total, schedule) < best:
                    best = total, schedule
        if best is not None:
            break
    assert best is not None
    return best[1]
