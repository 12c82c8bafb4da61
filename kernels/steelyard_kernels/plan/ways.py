"""Which way a loop takes: one kernel that holds all in registers, or launches each turn.

The models of schedules say what a turn takes. Building counts too: text that holds values
grows with their elements, and is compiled for seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Final

from steelyard_kernels.dtypes import float32
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import (
    Loop,
    Node,
    Program,
    Result,
    loops,
)
from steelyard_kernels.expression.rows import in_memory
from steelyard_kernels.expression.structure import everywhere
from steelyard_kernels.nest.carried import outline
from steelyard_kernels.nest.carried.layout import elements, spelled
from steelyard_kernels.nest.carried.registers import MOST_ELEMENTS
from steelyard_kernels.plan.launches import Plan
from steelyard_kernels.schedule.gpu import WARP, Gpu
from steelyard_kernels.schedule.model import Machine
from steelyard_kernels.schedule.model_carries import UNKNOWN_LENGTH
from steelyard_kernels.schedule.strategies import best, heuristic, lower

# Of a launch behind another, natively: on a GPU's stream, and on one core.
LAUNCH_NS: Final = 2000.0
CALL_NS: Final = 25.0
# Building takes so long for each statement that holds values in registers, and for a
# kernel that walks memory, which is launched as often as `model.BUILD_NS` says. Of 24
# loops: 0.1 to 0.2 ms on a CPU, 0.5 to 1 ms for a GPU, and far more for thousands of moves.
STATEMENT_NS: Final = 1.2e5
GPU_STATEMENT_NS: Final = 7e5
KERNEL_NS: Final = 2.5e7
GPU_KERNEL_NS: Final = 6e7
LAUNCHES: Final = 5000
MOST_TEXT: Final = 4000
"""Statements of one kernel: twice as many took 3 s for a GPU, six times as many 90."""


def in_registers(program: Program, device: Machine | Gpu) -> float:
    """Return what one kernel that holds all values takes; infinite if there is none."""
    text = _text(program, device)
    if not _is_held(program) or (text > MOST_TEXT and not program.chains):
        return inf  # chains gain more than that: registers take them side by side
    gpu = isinstance(device, Gpu)
    built = text * (GPU_STATEMENT_NS if gpu else STATEMENT_NS) / LAUNCHES
    try:
        found = best(program, device)[1].total + built
        if any(isinstance(n, Result) and n.stacks for n in _inner(program)):
            lower(program, heuristic(program, device), device)  # is there memory for it
    except KernelError:
        return inf
    return found


def _text(program: Program, device: Machine | Gpu) -> int:
    """Return about how many statements one kernel that holds all values has."""
    width = WARP if isinstance(device, Gpu) else device.lanes(float32.bytes)
    every = [node for node in everywhere(program.nodes) if not in_memory(node)]
    return sum([spelled(node, width) for node in every])


def _is_held(program: Program) -> bool:
    """Say whether registers hold each value that is computed with."""
    held = outline.in_registers(program)
    sizes = [elements(n) for n in everywhere(program.nodes) if n.number in held]
    return max(sizes, default=0) <= MOST_ELEMENTS


def _inner(program: Program) -> Iterator[Node]:
    """Yield the nodes of loops' bodies."""
    for loop in loops(program.nodes):
        yield from everywhere(loop.nodes)


def turns_of(loop: Loop) -> int:
    """Return how many turns a loop is taken to have."""
    return loop.length if isinstance(loop.length, int) else UNKNOWN_LENGTH


def least_in_turns(program: Program, device: Machine | Gpu) -> float:
    """Return what launches take at least: one in each turn."""
    launch = LAUNCH_NS if isinstance(device, Gpu) else CALL_NS
    return launch * sum(map(turns_of, loops(program.nodes)))


def in_turns(plan: Plan, device: Machine | Gpu) -> float:
    """Return what launches take, some of which are repeated."""
    gpu, total = isinstance(device, Gpu), 0.0
    launch = LAUNCH_NS if gpu else CALL_NS
    for numbers in plan.distinct:
        times = sum([plan.times(number, UNKNOWN_LENGTH) for number in numbers])
        program = plan.launches[numbers[0]].program
        each = best(program, device)[1].total * (1 if gpu else program.copies)
        built = GPU_KERNEL_NS if gpu else KERNEL_NS
        total += times * (launch + each) + built / LAUNCHES
    return total
