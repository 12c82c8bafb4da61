"""Schedules of the normalization strategy on a GPU that are worth a prediction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd
from typing import Final

from steelyard_kernels import dtypes
from steelyard_kernels.expression.expr import Apply, Cast, Input, Node, Program, Reduce
from steelyard_kernels.ops import OPERATIONS
from steelyard_kernels.schedule.gpu import (
    MAX_THREADS,
    SLOW_INSTRUCTIONS,
    VECTOR_BYTES,
    WARP,
    Gpu,
)
from steelyard_kernels.schedule.normalization.cuda import (
    KEEPS,
    CudaNormalization,
    Demand,
    batches,
    crowded,
    demand,
    unordered,
)
from steelyard_kernels.schedule.normalization.outline import COLUMN, ELEMENT, outline
from steelyard_kernels.schedule.normalization.passes import Rows, cut
from steelyard_kernels.schedule.variance import expand_variance

# Threads of a row that are always worth trying; others fit a number of vectors each.
THREADS: Final = (32, 64, 128, 256, 512, 1024)
FITTED: Final = (1, 2, 3, 4, 5, 6, 7, 8, 12)
# Warps side by side in a block: one for few rows, four as quack has, and more.
SIDES: Final = (1, 2, 4, 8, 16)
FEW_SIDES: Final = (1, 4)  # that the heuristic looks at
UNROLLS: Final = (1, 2)
# Elements that a thread holds of all its rows at most: code grows with them, and the
# compiler takes 0.3 s.
MOST_ELEMENTS: Final = 80
MOST_AGAIN: Final = 32  # words held beside a second walk over full words
MOST_OF_A_WARP: Final = 40  # of two rows
LEAST_BUSY: Final = 0.8  # of a row's threads, in all turns


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


def cuts(program: Program) -> Iterator[Cut]:
    """Yield every way to cut a program."""
    yield from two_pass_cuts(program, KEEPS)
    yield from one_pass_cuts(program, KEEPS)


def two_pass_cuts(program: Program, keeps: Sequence[str]) -> Iterator[Cut]:
    """Yield the cuts whose variances, if any, take two passes."""
    expanded = program
    if has_variance(program):
        expanded = expand_variance(program, corrected=False)
    yield from _cuts(expanded, ("two_pass",), keeps)


def one_pass_cuts(program: Program, keeps: Sequence[str]) -> Iterator[Cut]:
    """Yield the cuts whose variances take one pass; none where there is none."""
    if has_variance(program):
        updates = any(output.updates is not None for output in program.outputs)
        kinds = ("plain",) if updates else ("plain", "shifted")
        yield from _cuts(program, kinds, keeps)


def has_variance(program: Program) -> bool:
    """Say whether a program has a variance."""
    return any(isinstance(n, Reduce) and n.op == "var" for n in program.nodes)


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
    slow = isinstance(node, Apply) and OPERATIONS[node.op].cost.slow
    return SLOW_INSTRUCTIONS if slow else 1.0


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
