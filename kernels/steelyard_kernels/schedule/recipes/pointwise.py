"""The recipe of one pass over the outputs' elements."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import gcd, prod
from typing import Final

from steelyard_kernels.nest.axes import Nest
from steelyard_kernels.schedule.gpu import MOST_REGISTERS, VECTOR_BYTES, Gpu
from steelyard_kernels.schedule.legality import stores_in_parts, streaming_problem
from steelyard_kernels.schedule.legality_gpu import LANES, MOST_VECTORS, gpu_problem
from steelyard_kernels.schedule.model import Machine
from steelyard_kernels.schedule.model_gpu import SPARE_REGISTERS, Facts
from steelyard_kernels.schedule.order import in_order
from steelyard_kernels.schedule.schedule import Cut, Place, Schedule, Sought

# Elements that a core takes at a time: large enough to hide the claim, small enough that
# two threads end together; the lowest of seen optima.
CHUNKS: Final = (1 << 12, 1 << 14, 1 << 16)

THREADS: Final = (128, 256, 512, 1024)
UNROLLS: Final = (1, 2, 3, 4, 6, MOST_VECTORS)
# What a thread holds of the narrowest array at a time: four of the widest accesses.
# More fills no pipe that is not full yet.
MOST_BYTES: Final = 4 * VECTOR_BYTES


def on_cpu(nest: Nest, machine: Machine, sought: Sought) -> Iterator[Schedule]:
    """Yield the legal schedules of a CPU, whose own prefetching is enough."""
    size = prod(nest.extents)
    wide = [
        node.dtype.bytes
        for node in nest.program.nodes
        if node.dtype.bytes > 2 and prod(node.shape) == size
    ]
    full = machine.lanes(max(wide, default=4))
    streams = [False]
    for lanes, unroll, cores, chunk in product(
        (full, 2 * full), (1, 2, 4), (Place.CORE, Place.SERIAL), CHUNKS
    ):
        if cores is Place.SERIAL and chunk != CHUNKS[0]:
            continue  # one thread takes everything at once
        cuts = cpu_cuts(nest, lanes, unroll, cores, chunk)
        if chunk == CHUNKS[0] and cores is Place.CORE:
            wanted = Schedule(cuts, streaming=True)
            stays = streaming_problem(nest, wanted, aligned=sought.aligned)
            parts = stores_in_parts(nest, cuts, machine)
            streams = [False] if stays or parts else [False, True]
        for streaming in streams:
            yield Schedule(cuts, streaming)


def cpu_cuts(
    nest: Nest, lanes: int, unroll: int, cores: Place, chunk: int
) -> tuple[Cut, ...]:
    """Cut the last axis by vectors; cores share it, or all others as one where there are."""
    last, factors = nest.axes[-1], ((lanes, Place.VECTOR), (unroll, Place.REGISTER))
    shared = cores is Place.CORE
    if len(nest.axes) == 1:
        turns = -(-chunk // (lanes * unroll)) if shared else 1
        return (Cut(last, (*factors, (turns, cores))),)
    rows = max(1, chunk // nest.extents[-1]) if shared else 1
    inner = Cut(last, (*factors, (1, Place.SERIAL)))
    return Cut(nest.axes[:-1], ((rows, cores),)), inner


def on_gpu(nest: Nest, gpu: Gpu, sought: Sought) -> Iterator[Schedule]:
    """Yield the legal schedules of a GPU: the widest vectors, half of them, and none.

    Those `likely` to be best have not the largest blocks, which hold their room for
    longer and share nothing here. None stores round the caches: of 20 programs and sizes
    on an H200 one was faster so by 0.5 %, and updates in place were 3 % slower.
    """
    known = Facts.of(nest)
    inner = nest.extents[-1] if len(nest.extents) > 1 else LANES[-1]
    widest = gcd(inner, min(LANES[-1], VECTOR_BYTES // known.narrowest))
    if not in_order(nest, len(nest.extents) - 1):
        widest = 1
    for lanes, unroll in product(sorted({widest, widest // 2 or 1, 1}), UNROLLS):
        registers = known.registers(lanes, unroll) + SPARE_REGISTERS
        needs = f"needs {registers} registers a thread; choose fewer vectors"
        first = Schedule(gpu_cuts(nest, lanes, unroll, THREADS[0]))
        size = lanes * unroll * known.narrowest
        why = f"holds {size} bytes; choose {MOST_BYTES} at most"
        if size <= MOST_BYTES:
            why = needs if registers > MOST_REGISTERS else ""
        if why := why or gpu_problem(nest, first, aligned=sought.aligned):
            sought.refuse(first, why)
            continue
        for threads in THREADS[:3] if sought.likely else THREADS:
            each = Schedule(gpu_cuts(nest, lanes, unroll, threads))
            if gpu.blocks_resident(threads, registers):
                yield each
            else:
                sought.refuse(each, f"{needs}, or threads")


def gpu_cuts(nest: Nest, lanes: int, unroll: int, threads: int) -> tuple[Cut, ...]:
    """Cut all axes as one by vectors, which threads have several of in flight."""
    vectors = (lanes, Place.VECTOR), (unroll, Place.REGISTER)
    return (Cut(nest.axes, (*vectors, (threads, Place.THREAD), (1, Place.GRID))),)
