"""Lowering of chains to what one thread of a GPU does, over the walker of all targets.

A block has some chains, each a group of threads; how many chains there are is a
runtime parameter. In which order a thread does its work is `cuda_order`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from steelyard_kernels.expression.expr import Node, Program, everywhere, loops
from steelyard_kernels.ir.builder import Builder
from steelyard_kernels.ir.loops import INDEX, Type, Var
from steelyard_kernels.schedule.gpu import (
    MOST_REGISTERS,
    REGISTERS,
    extent_slot,
    index_type,
    most_registers,
)
from steelyard_kernels.schedule.parameters import Lowered, arguments
from steelyard_kernels.schedule.scan.cuda import CudaScan, check
from steelyard_kernels.schedule.scan.cuda_lanes import CudaLanes
from steelyard_kernels.schedule.scan.cuda_order import ordered
from steelyard_kernels.schedule.scan.looping import Turns
from steelyard_kernels.schedule.scan.walker import Walker
from steelyard_kernels.schedule.variance import expand_variance

MOST_ITERATIONS: Final = 1 << 30  # that an int32 index surely counts
MULTIPROCESSORS: Final = 132  # of an H200; a smaller GPU runs some blocks later


def lower(
    program: Program,
    schedule: CudaScan,
    *,
    aligned: bool = True,  # noqa: ARG001 - elements go one by one
) -> Lowered:
    """Return the loop-level kernel.

    Raises KernelError for a schedule that does not fit the program, and Unsupported
    for values that no chain can hold.
    """
    check(program, schedule)
    program = expand_variance(program)
    args = arguments(program)
    b = Builder(_index(program))
    extent = Var("extent", b.index) if program.chains else None
    lanes = CudaLanes(b, schedule, extent)
    turns = Turns(max(1, schedule.unroll), schedule.ahead)
    walker = CudaWalker(program, args, lanes, turns, "cuda")
    walker.once()
    walker.chain(lanes.chain)
    order = args.order if extent is None else (*args.order, extent)
    registers = schedule.registers or most_registers(schedule.threads)
    threads = schedule.threads
    made = b.kernel("kernel", order, threads=threads, registers=registers)
    kernel = replace(
        made,
        body=ordered(made.body, schedule.group),
        resident=resident(program, schedule),
    )
    if extent is None:
        return Lowered(kernel, args.slots, threads)
    slots = (*args.slots, extent_slot(b.index, program.chains))
    return Lowered(kernel, slots, threads, schedule.per_block)


def resident(program: Program, schedule: CudaScan) -> int:
    """Return the blocks that a multiprocessor is to hold; 0 leaves it to the compiler.

    They are all that come to one, where they fit whatever registers they take. Told of
    none, ptxas holds a thread at 96 registers or so, that more blocks fit than there
    are, and computes one after another what could wait side by side: on an H200 the
    way forward and back of `library.noisy_mlp` took 4.35 ms so in float64, and takes
    3.28 ms with this.
    """
    blocks = -(-max(1, program.chains) // schedule.chains)
    each = -(-blocks // MULTIPROCESSORS)
    fit = REGISTERS // ((MOST_REGISTERS + 1) * schedule.threads)
    return each if each <= fit else 0


class CudaWalker(Walker):
    """Emits a program for a group of threads."""

    def _part(self, nodes: Sequence[Node]) -> None:
        """Emit nodes; where results overwrite inputs all have been read behind them.

        Of a whole block: its last chain may be repeated by another warp of it.
        """
        super()._part(nodes)
        if any(output.updates is not None for output in self.program.outputs):
            self.b.effect("barrier")


def _index(program: Program) -> Type:
    """Return the type of indices: int32 where it surely counts elements and turns."""
    for loop in loops(everywhere(program.nodes)):
        if not isinstance(loop.length, int) or loop.length > MOST_ITERATIONS:
            return INDEX
    return index_type(program)
