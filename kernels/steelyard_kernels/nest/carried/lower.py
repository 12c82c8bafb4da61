"""The lowering of programs that carry state, and of small values of any shapes.

On a CPU threads share the chains, of which each is one thread's or one lane's; what does
not differ by chain is computed once for each share. On a GPU a block has some chains,
each a group of threads; how many chains there are is a runtime parameter, and in which
order a thread does its work is `order`'s.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from steelyard_kernels.expression.expr import Program, loops
from steelyard_kernels.expression.structure import everywhere
from steelyard_kernels.ir.builder import Builder
from steelyard_kernels.ir.loops import INDEX, Type, Var
from steelyard_kernels.nest.carried.gpu_lanes import GpuLanes
from steelyard_kernels.nest.carried.lanes import ChainLanes, Lanes
from steelyard_kernels.nest.carried.order import ordered
from steelyard_kernels.nest.carried.program import ProgramEmitter
from steelyard_kernels.schedule import gpu, parameters
from steelyard_kernels.schedule.carries import Knobs, check, knobs_of
from steelyard_kernels.schedule.gpu import Gpu
from steelyard_kernels.schedule.model import Machine
from steelyard_kernels.schedule.parameters import Lowered, arguments
from steelyard_kernels.schedule.schedule import Schedule

MOST_ITERATIONS: Final = 1 << 30  # that an int32 index surely counts


def lower(program: Program, schedule: Schedule, device: Machine | Gpu) -> Lowered:
    """Return the loop-level kernel for a device.

    Raises KernelError for a schedule that does not fit the program, and Unsupported for
    values that no chain can hold.
    """
    check(program, schedule, "cuda" if isinstance(device, Gpu) else "cpu")
    knobs = knobs_of(schedule)
    if isinstance(device, Gpu):
        return _on_gpu(program, schedule, knobs, device.multiprocessors)
    return _on_cpu(program, schedule, knobs)


def _on_cpu(program: Program, schedule: Schedule, knobs: Knobs) -> Lowered:
    args, b = arguments(program), Builder()
    across = ChainLanes(b, knobs.across) if knobs.across > 1 else None
    lanes = across or Lanes(b, knobs.width, knobs.ahead)
    emitter = ProgramEmitter(program, args, lanes, knobs)
    if not program.chains:
        emitter.once()
        emitter.chain(b.number(0))
        return Lowered(b.kernel("kernel", args.order), args.slots, 1)
    extent = Var("extent", INDEX)
    with b.parallel(extent, schedule.cuts[0].size, schedule.threads) as (low, high):
        emitter.once()
        with b.loop(low, high, knobs.across) as chain, emitter.scope():
            if across is not None:
                across.place(chain.var, high)
            emitter.chain(chain.var)
    kernel = b.kernel("kernel", (*args.order, extent))
    slots = (*args.slots, parameters.extent_slot(program.chains))
    return Lowered(kernel, slots, schedule.threads)


def _on_gpu(
    program: Program, schedule: Schedule, knobs: Knobs, multiprocessors: int
) -> Lowered:
    args, b = arguments(program), Builder(_index(program))
    extent = Var("extent", b.index) if program.chains else None
    lanes = GpuLanes(b, knobs, extent)
    emitter = ProgramEmitter(program, args, lanes, knobs)
    emitter.once()
    emitter.chain(lanes.chain)
    threads = knobs.threads
    made = b.kernel(
        "kernel",
        args.order if extent is None else (*args.order, extent),
        threads=threads,
        registers=schedule.registers or gpu.most_registers(threads),
    )
    body = ordered(made.body, knobs.width)
    blocks = -(-max(1, program.chains) // knobs.chains)
    resident = _resident(-(-blocks // multiprocessors), threads)
    kernel = replace(made, body=body, resident=resident)
    if extent is None:
        return Lowered(kernel, args.slots, threads)
    slots = (*args.slots, gpu.extent_slot(b.index, program.chains))
    return Lowered(kernel, slots, threads, knobs.chains)


def _resident(each: int, threads: int) -> int:
    """Return the blocks that a multiprocessor is to hold; 0 leaves it to the compiler.

    They are the `each` that come to one, where they fit whatever registers they take. Told of
    none, ptxas holds a thread at 96 registers or so, that more blocks fit than there
    are, and computes one after another what could wait side by side: on an H200 the
    way forward and back of `library.noisy_mlp` took 4.35 ms so in float64, and takes
    3.28 ms with this.
    """
    fit = gpu.REGISTERS // ((gpu.MOST_REGISTERS + 1) * threads)
    return each if each <= fit else 0


def _index(program: Program) -> Type:
    """Return the type of indices: int32 where it surely counts elements and turns."""
    for loop in loops(everywhere(program.nodes)):
        if not isinstance(loop.length, int) or loop.length > MOST_ITERATIONS:
            return INDEX
    return gpu.index_type(program)
