"""Lowering of loops with state to a CPU: a chain is one thread's, its values in SIMD.

Chains are shared by threads; a program without them is one thread's. What does not
differ by chain is computed once for each chunk of chains.
"""

from __future__ import annotations

from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import Program
from steelyard_kernels.ir.builder import Builder
from steelyard_kernels.ir.loops import INDEX, Var
from steelyard_kernels.schedule.parameters import (
    Arguments,
    Lowered,
    arguments,
    extent_slot,
)
from steelyard_kernels.schedule.scan.chain_lanes import ChainLanes
from steelyard_kernels.schedule.scan.lanes import CpuLanes
from steelyard_kernels.schedule.scan.looping import Turns
from steelyard_kernels.schedule.scan.schedule import (
    Scan,
    check,
    steps_together,
)
from steelyard_kernels.schedule.scan.walker import Walker
from steelyard_kernels.schedule.variance import expand_variance


def lower(program: Program, schedule: Scan, *, aligned: bool = True) -> Lowered:
    """Return the loop-level kernel; `aligned` makes no difference."""
    del aligned
    check(program.name, schedule)
    program = expand_variance(program)
    args = arguments(program)
    b = Builder()
    if schedule.across:
        return _across(program, schedule, args, b)
    lanes = CpuLanes(b, schedule.lanes, schedule.ahead)
    turns = Turns(schedule.unroll, schedule.ahead > 1)
    walker = Walker(program, args, lanes, turns, "cpu")
    if not program.chains:
        walker.once()
        walker.chain(b.number(0))
        return Lowered(b.kernel("kernel", args.order), args.slots, 1)
    extent = Var("extent", INDEX)
    with b.parallel(extent, schedule.chunk, schedule.threads) as (low, high):
        walker.once()
        with b.loop(low, high, 1) as chain, walker.scope():
            walker.chain(chain.var)
    kernel = b.kernel("kernel", (*args.order, extent))
    slots = (*args.slots, extent_slot(program.chains))
    return Lowered(kernel, slots, schedule.threads)


def _across(program: Program, schedule: Scan, args: Arguments, b: Builder) -> Lowered:
    """Return the kernel whose lanes are chains."""
    if not steps_together(program):
        raise KernelError(
            f"{program.name}: schedule {schedule.label} gives each lane a chain, but "
            "there are none, or they go to different rows; leave the schedule out."
        )
    lanes = ChainLanes(b, schedule.lanes)
    walker = Walker(program, args, lanes, Turns(schedule.unroll, ahead=False), "cpu")
    extent = Var("extent", INDEX)
    chunk = -(-schedule.chunk // schedule.lanes) * schedule.lanes
    with b.parallel(extent, chunk, schedule.threads) as (low, high):
        walker.once()
        with b.loop(low, high, schedule.lanes) as first, walker.scope():
            lanes.place(first.var, high)
            walker.chain(first.var)
    kernel = b.kernel("kernel", (*args.order, extent))
    slots = (*args.slots, extent_slot(program.chains))
    return Lowered(kernel, slots, schedule.threads)
