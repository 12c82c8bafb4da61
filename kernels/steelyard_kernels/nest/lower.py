"""The lowering of a nest under a schedule: its loops, here for CPUs.

On a CPU the first loop is shared by threads, by chunks whose bounds only the launch
knows: one binary serves all extents of its axes. The others are walked in turn. Vectors
are unrolled, then single, then one is masked.
"""

from __future__ import annotations

from steelyard_kernels.expression.expr import Program
from steelyard_kernels.ir.builder import Builder, Index
from steelyard_kernels.ir.loops import INDEX, Operand, Var
from steelyard_kernels.nest import lower_gpu, squares
from steelyard_kernels.nest.axes import Nest
from steelyard_kernels.nest.emitter import Emitter
from steelyard_kernels.nest.places import nest_of
from steelyard_kernels.nest.reduce import Columns, emitter_of
from steelyard_kernels.schedule.gpu import Gpu
from steelyard_kernels.schedule.legality import (
    blocking_for,
    check,
    stores_aligned,
    tiling_for,
)
from steelyard_kernels.schedule.model import LINE, Machine
from steelyard_kernels.schedule.parameters import Lowered, arguments, extent_slot
from steelyard_kernels.schedule.recipes.attention import AttentionTiling
from steelyard_kernels.schedule.recipes.attention_blocks import AttentionBlocking
from steelyard_kernels.schedule.recipes.weighted import WeightedTiling
from steelyard_kernels.schedule.schedule import Place, Schedule
from steelyard_kernels.schedule.tile import Carried, tile_runtime
from steelyard_kernels.schedule.transposition import transposed_of


def nothing(program: Program, threads: int) -> Lowered:
    """Return the kernel of a program that has no element to compute."""
    args = arguments(program)
    kernel = Builder().kernel("kernel", args.order, threads=threads)
    return Lowered(kernel, args.slots, threads or 1)


def lower(
    program: Program, schedule: Schedule, target: str, *, aligned: bool = True
) -> Lowered:
    """Return the loop-level kernel for a kind of target, "cpu" or "cuda".

    `aligned`: every output starts on a cache line, on a GPU every array at 16 bytes.
    Raises KernelError for a schedule that does not fit.
    """
    nest = nest_of(program)
    check(nest, schedule, target, aligned=aligned)
    of = transposed_of(nest) if schedule.keep is Place.REGISTER else None
    if of is not None:
        return squares.lower(nest, schedule, of, aligned=aligned)
    if target == "cpu":
        return _on_cpu(nest, schedule, aligned=aligned)
    return lower_gpu.lower(nest, schedule, aligned=aligned)


def lower_product(
    program: Program, schedule: Schedule, device: Gpu, *, aligned: bool
) -> Lowered:
    """Return the loop-level kernel of matrix products by tiles.

    Raises KernelError for a schedule that does not fit.
    """
    from steelyard_kernels.nest import weighted  # few programs have one
    from steelyard_kernels.nest.attention import Attended
    from steelyard_kernels.nest.attention_threads import ByWarps
    from steelyard_kernels.nest.product_bulk import InBulk
    from steelyard_kernels.nest.product_threads import ByFma, ByThreads

    tiling = tiling_for(nest_of(program), schedule, device, aligned=aligned)
    if isinstance(tiling, WeightedTiling):
        return weighted.lower(tiling)
    if isinstance(tiling, AttentionTiling):
        return (Attended if tiling.bulk else ByWarps)(tiling).emit()
    by = ByFma if tiling.cores.exact else ByThreads
    return (InBulk if tiling.bulk else by)(tiling).emit()


def lower_blocks(program: Program, schedule: Schedule, machine: Machine) -> Lowered:
    """Return the loop-level kernel of products for a CPU's registers.

    Raises KernelError for a schedule that does not fit.
    """
    from steelyard_kernels.nest import attention_blocks, blocks  # few programs have one

    found = blocking_for(nest_of(program), schedule, machine)
    if isinstance(found, AttentionBlocking):
        return attention_blocks.lower(found)
    return blocks.lower(found)


def _columns(emitter: Emitter, loop: int, low: Operand, end: Index) -> None:
    """Emit the columns of a loop in a range, as many at a time as its cut says."""
    b, size = emitter.b, emitter.cuts[loop].size
    with b.loop(low, end, size) as part, emitter.aside():
        high = b.at("minimum", b.at("add", part.var, size), end)
        Columns(emitter, loop).emit(part.var, high)


def _on_cpu(nest: Nest, schedule: Schedule, *, aligned: bool) -> Lowered:
    args = arguments(nest.program, LINE if aligned else 0)
    first, alignment = schedule.cuts[0], stores_aligned(nest, schedule)
    extent = Var("extent" if len(schedule.cuts) == 1 else "rows", INDEX)
    emitter = emitter_of(nest, schedule, args, extent, alignment)
    b = emitter.b
    lanes = first.at(Place.VECTOR)

    columns = schedule.columns

    def inside(at: Operand, vectors: int, mask: Operand | None, _: Carried) -> Carried:
        places = [b.at("add", at, lanes * u) for u in range(vectors)]
        with emitter.opened(0, places, lanes, (mask,) * vectors):
            if columns:
                emitter.level(1)
                _columns(emitter, columns, b.number(0), emitter.extent_of(columns))
            else:
                emitter.inside()
        return ()

    emitter.level(0)
    emitter.hoist()
    step = lanes, first.at(Place.REGISTER)
    with b.parallel(extent, first.size, schedule.threads) as (low, high):
        whole = (
            lanes == 1 and nest.extent_of(first.axes) % first.at(Place.REGISTER) == 0
        )
        if columns == 0:
            _columns(emitter, 0, low, high)
        else:
            tile_runtime(b, low, high, step, inside, whole=whole)
    if schedule.streaming:
        b.fence()
    kernel = b.kernel("kernel", (*args.order, extent))
    slots = (*args.slots, extent_slot(nest.extent_of(first.axes)))
    return Lowered(kernel, slots, schedule.threads)
