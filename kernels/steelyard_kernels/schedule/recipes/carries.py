"""The recipe of programs that carry state, and of small values of any shapes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Final

from msgspec.structs import replace

from steelyard_kernels.expression.expr import Apply, Dot, Program, Reduce, Result, loops
from steelyard_kernels.expression.structure import everywhere
from steelyard_kernels.nest.carried.outline import in_memory, in_registers, of_all
from steelyard_kernels.schedule import carries
from steelyard_kernels.schedule.carries import (
    GROUPS,
    Knobs,
    equally_often,
    steps_together,
)
from steelyard_kernels.schedule.gpu import WARP
from steelyard_kernels.schedule.model import Machine
from steelyard_kernels.schedule.model_carries_gpu import held
from steelyard_kernels.schedule.schedule import Place, Schedule

UNROLLS: Final = (1, 2, 4)
GPU_UNROLLS: Final = (1, 4)
BLOCK_THREADS: Final = (WARP, 4 * WARP, 8 * WARP)
MOST_HELD: Final = 200  # registers of a thread's values
# What chains side by side load and store, an instruction a lane: text of which code
# generation takes the square. 5,900 lines took 4 s.
MOST_APART: Final = 512
CHUNK: Final = 16  # chains that a core takes at a time


def on_cpu(program: Program, machine: Machine) -> Iterator[Schedule]:
    """Yield the legal schedules of a CPU that are worth trying, in order."""
    full = machine.lanes(_element_bytes(program))
    found = loops(program.nodes)
    aheads = (
        (1, full)
        if full > 1 and any(of_all(x, ahead=True).kept for x in found)
        else (1,)
    )
    sharings = [(Place.SERIAL, 1)]
    if program.chains > 1:
        sharings = [(Place.CORE, 1), (Place.CORE, CHUNK), (Place.SERIAL, 1)]
    for lanes in (full // 4, full // 2, full):
        unrolls = (
            UNROLLS[: len(UNROLLS) if found else 1] if lanes >= min(4, full) else ()
        )
        for unroll, ahead in product(unrolls, aheads):
            knobs = Knobs(lanes, ahead=ahead, unroll=unroll)
            yield from (carries.on_cpu(knobs, *sharing) for sharing in sharings)
    if steps_together(program) and full * _apart(program) <= MOST_APART:
        knobs = Knobs(1, across=full)
        yield from (carries.on_cpu(knobs, at) for at in (Place.CORE, Place.SERIAL))


def _apart(program: Program) -> int:
    """Count the elements of a chain that are loaded or stored, lane by lane."""
    computed = in_registers(program)
    moved = [
        n for n in everywhere(program.nodes) if n.number in computed and in_memory(n)
    ]
    for output in program.outputs:
        value = output.each
        if isinstance(value, Result) and value.stacks:
            value = value.loop.stacked[value.place - len(value.loop.nexts)]
        moved.append(value)
    return sum(prod(node.shape) for node in moved)


def _element_bytes(program: Program) -> int:
    """Return the size of the widest floats, of which a register holds fewest."""
    return max(
        (n.dtype.bytes for n in everywhere(program.nodes) if n.dtype.kind == "float"),
        default=4,
    )


def on_gpu(program: Program) -> Iterator[Schedule]:
    """Yield the legal schedules of a GPU that are worth trying, in order."""
    some = program.chains > 1 and equally_often(program)
    turns = GPU_UNROLLS if loops(everywhere(program.nodes)) else (1,)
    for group in _groups(program):
        sizes = {1}
        if some and group <= WARP:
            full = {threads // group for threads in BLOCK_THREADS}
            sizes |= {count for count in full if count < 2 * program.chains}
        for chains, unroll in product(sorted(sizes), turns):
            knobs = Knobs(group, chains=chains, unroll=unroll)
            yield carries.on_gpu(knobs)
            if len(turns) > 1 and knobs.span > 1:
                yield carries.on_gpu(replace(knobs, ahead=knobs.span))


def _groups(program: Program) -> list[int]:
    """Return the threads a chain that are worth trying: no more than it has lanes."""
    computed = (Apply, Dot, Reduce)
    nodes = [n for n in everywhere(program.nodes) if isinstance(n, computed)]
    lanes = max((max(node.shape) for node in nodes if node.shape), default=1)
    fitting = [group for group in GROUPS if group < 2 * lanes or group == 1]
    small = [group for group in fitting if held(program, group) <= MOST_HELD]
    return small[:6] if small else fitting[-1:]
