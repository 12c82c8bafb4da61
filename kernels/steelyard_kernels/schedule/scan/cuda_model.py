"""Candidates of the scan strategy on a GPU, and what each is predicted to cost.

A chain takes the longest way through its iterations, or the instructions of all warps
of a scheduler, whichever is longer: see `cuda_cycles`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import ceil
from typing import Final

from steelyard_kernels.expression.expr import (
    Apply,
    Dot,
    Node,
    Program,
    Reduce,
    Result,
    everywhere,
    loops,
)
from steelyard_kernels.schedule.gpu import RAMP_NS, SIDES, WARP, Gpu, most_registers
from steelyard_kernels.schedule.model import Prediction
from steelyard_kernels.schedule.scan.cuda import GROUPS, CudaScan, check
from steelyard_kernels.schedule.scan.cuda_cycles import Cycles, vectors
from steelyard_kernels.schedule.scan.outline import in_memory
from steelyard_kernels.schedule.scan.schedule import equally_often

CYCLE_NS: Final = 1 / 1.98  # of an H200 that has little to do
BLOCK_THREADS: Final = (WARP, 4 * WARP, 8 * WARP)
UNROLLS: Final = (1, 4)
# Registers of a thread besides its values, and what an operation needs on its way.
OWN_REGISTERS: Final = 24
MOST_HELD: Final = 200
# Building takes about 0.25 ms an operation on a vector, for perhaps 5000 launches.
BUILD_NS: Final = 50.0


def held(program: Program, group: int) -> int:
    """Return about how many registers a thread's values need."""
    most = 0
    outside = 0
    for node in program.nodes:
        if isinstance(node, Result):
            outside += _registers(node, group)
    for loop in loops(everywhere(program.nodes)):
        kept = sum(_registers(n, group) for n in (*loop.free, *loop.carries))
        inside = max((_registers(n, group) for n in loop.nodes), default=0)
        most = max(most, kept + 2 * inside)
    alone = max((_registers(n, group) for n in program.nodes), default=0)
    return OWN_REGISTERS + max(most, 2 * alone)


def _registers(node: Node, group: int) -> int:
    """Return the registers of a node's elements; what only rows are read of has none."""
    if in_memory(node):
        return 0
    return vectors(node, group) * max(1, node.dtype.bytes // 4)


def estimate_registers(program: Program, schedule: CudaScan) -> int:
    """Return about how many registers a thread will use."""
    return _at_most(schedule, held(program, schedule.group))


def _at_most(schedule: CudaScan, registers: int) -> int:
    return min(registers, schedule.registers or most_registers(schedule.threads))


def widest(program: Program) -> int:
    """Return the longest lane axis of what a body, or the program, computes."""
    nodes = [
        node
        for node in everywhere(program.nodes)
        if isinstance(node, Apply | Dot | Reduce) and node.shape
    ]
    return max((max(node.shape) for node in nodes), default=1)


def groups(program: Program, cycles: Cycles | None = None) -> list[int]:
    """Return the threads a chain that are worth trying: no more than it has lanes."""
    lanes, cycles = widest(program), cycles or Cycles()
    fitting = [g for g in GROUPS if g < 2 * lanes or g == 1]
    small = [g for g in fitting if cycles.count(held, program, g) <= MOST_HELD]
    return small[:6] if small else fitting[-1:]


def candidates(
    program: Program,
    gpu: Gpu,  # noqa: ARG001 - the same for all
    *,
    aligned: bool = True,  # noqa: ARG001 - elements go one by one
) -> tuple[CudaScan, ...]:
    """Return every schedule worth trying, in order; Unsupported where there is none."""
    return tuple(_candidates(program, Cycles()))


def _candidates(program: Program, cycles: Cycles) -> Iterator[CudaScan]:
    some = program.chains > 1 and equally_often(program)
    turns = UNROLLS if loops(everywhere(program.nodes)) else UNROLLS[:1]
    aheads = (True, False) if len(turns) > 1 else (False,)
    for group in groups(program, cycles):
        sizes = {1}
        if some and group <= WARP:
            full = {threads // group for threads in BLOCK_THREADS}
            sizes |= {count for count in full if count < 2 * program.chains}
        for chains, unroll, ahead in product(sorted(sizes), turns, aheads):
            yield CudaScan(group, chains, unroll, ahead)


def predict(
    program: Program, schedule: CudaScan, gpu: Gpu, cycles: Cycles | None = None
) -> Prediction:
    """Predict one launch, in nanoseconds; `cycles` are shared by a program's."""
    check(program, schedule)
    cycles, group = cycles or Cycles(), schedule.group
    chain = cycles.nodes(program.nodes, schedule)
    blocks = ceil(max(1, program.chains) / schedule.chains)
    need = _at_most(schedule, cycles.count(held, program, group))
    resident = max(1, gpu.blocks_resident(schedule.threads, need))
    waves = ceil(blocks / (resident * gpu.multiprocessors))
    beside = min(resident, ceil(blocks / gpu.multiprocessors))
    warps = ceil(beside * schedule.threads / WARP / SIDES)
    one = chain.way * CYCLE_NS
    both = hypot4(one, warps * chain.issued * CYCLE_NS)
    operations = cycles.count(text, program, group)
    return Prediction(
        (
            ("ramp", RAMP_NS),
            ("one chain", one * waves),
            ("other warps", (both - one) * waves),
            ("build share", operations * max(1, schedule.unroll) * BUILD_NS),
        )
    )


def hypot4(a: float, b: float) -> float:
    """Return what two times take that hide behind each other, but for the ends."""
    return float((a**4 + b**4) ** 0.25)


def text(program: Program, group: int) -> int:
    """Return about how many operations on a vector the text of one iteration has."""
    nodes = everywhere(program.nodes)
    return sum(vectors(n, group) for n in nodes if isinstance(n, Apply | Dot))


def rank(
    program: Program,
    gpu: Gpu,
    *,
    aligned: bool = True,  # noqa: ARG001 - as of `candidates`
) -> list[tuple[CudaScan, Prediction]]:
    """Return every candidate with its prediction, in order."""
    cycles = Cycles()
    return [
        (schedule, predict(program, schedule, gpu, cycles))
        for schedule in _candidates(program, cycles)
    ]


def heuristic(program: Program, gpu: Gpu, *, aligned: bool = True) -> CudaScan:
    """Return the best predicted candidate."""
    ranked = rank(program, gpu, aligned=aligned)
    return min(ranked, key=lambda row: (row[1].total, row[0]))[0]
