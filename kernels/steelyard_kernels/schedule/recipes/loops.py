"""The recipe of any other nest: a loop for each axis, reductions in the innermost.

Axes along which every array lies in order, or not at all, are walked by vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Final

from steelyard_kernels.nest.axes import NAMES, Nest
from steelyard_kernels.nest.keep import has_columns, total_bytes
from steelyard_kernels.schedule.gpu import Gpu
from steelyard_kernels.schedule.model import Machine
from steelyard_kernels.schedule.order import again, in_order, reduced_outside
from steelyard_kernels.schedule.schedule import Cut, Place, Schedule

WORK: Final = 1 << 14  # operations that a core takes at a time, about
# Of a product at a time, which reads the other once, or of merges, which wait for loads.
ROWS: Final = 4
COLUMNS: Final = (
    8  # vectors side by side that are walked down: half a kilobyte of a row
)
# Of columns that are added up on the stack: vectors and rows at a time, bytes that stay in
# a first cache. Of 4096 x 4096 float32 and float16, 4 vectors of 4 rows took 0.87 of the
# time of 8 of 8, by two cores of an EPYC (Zen 5) whose memory was little used, and 1.04
# of it where others used that. Of int8, added up by 8 lanes of 64 bits, 8 of 8 took 0.62.
SQUARE: Final = 4
WIDE_SQUARE: Final = 8
FEWEST: Final = 2
WIDER: Final = 4  # times an element's bytes has what it is added up in
MOST_TOTALS: Final = 16 << 10
THREADS: Final = (128, 256)


def on_cpu(nest: Nest, machine: Machine) -> Iterator[Schedule]:
    """Yield the legal schedules of a CPU."""
    vectors = vector_axes(nest)
    widest = max(
        [v.node.dtype.bytes for v in nest.values if v.node.dtype.bytes > 2] or [4]
    )
    unrolls: tuple[int, ...] = (1,) if _nested(nest) else (2, 1, 4)
    if not _nested(nest) and _shared(nest, vectors) - 1 in vectors:
        unrolls += (COLUMNS,)
    lanes = machine.lanes(widest)
    for unroll, place in product(unrolls, (Place.CORE, Place.SERIAL)):
        yield Schedule(tuple(_cpu_cuts(nest, vectors, lanes, unroll, place)))
    if nest.space - 1 in vectors and has_columns(nest):
        narrow = min([v.node.dtype.bytes for v in nest.values if v.source], default=4)
        down = WIDE_SQUARE if total_bytes(nest) > WIDER * narrow else SQUARE
        for beside in (down, FEWEST):
            cuts = _column_cuts(nest, machine, (lanes, beside, down))
            yield Schedule(tuple(cuts))


def _column_cuts(
    nest: Nest, machine: Machine, block: tuple[int, int, int]
) -> Iterator[Cut]:
    """Cut the columns into parts whose reductions stay on the stack of a thread.

    A block is a vector's lanes, and so many vectors and rows.
    """
    lanes, beside, down = block
    last, step = nest.space - 1, lanes * beside
    shares = 1 if last else machine.threads
    most = MOST_TOTALS // (total_bytes(nest) * step)
    parts = max(1, min(-(-nest.extents[last] // (step * shares)), most))
    if last:
        yield Cut(nest.axes[:last], ((1, Place.CORE),))
    rest = (1, Place.SERIAL if last else Place.CORE)
    vectors = (lanes, Place.VECTOR), (beside, Place.REGISTER)
    yield Cut(NAMES[last], (*vectors, (parts, Place.STACK), rest))
    for axis in range(nest.space, len(nest.extents)):
        rows = down if axis == len(nest.extents) - 1 else 1
        yield Cut(NAMES[axis], ((rows, Place.REGISTER), (1, Place.SERIAL)))


def _cpu_cuts(
    nest: Nest, vectors: frozenset[int], lanes: int, unroll: int, place: Place
) -> Iterator[Cut]:
    """Cut the first axes as one loop that cores share, then each for itself."""
    shared = _shared(nest, vectors)
    alone, nested = _walked_alone(nest), _nested(nest)
    for axis in range(shared - 1, len(nest.extents)):
        first = axis == shared - 1
        wide = axis in vectors
        several = unroll if wide and axis in alone else 1
        held = nested or axis in nest.alone
        beside = axis in nest.merged or _shares(nest, axis, vectors)
        if first and not (wide or held) and beside:
            several = ROWS
        factors = (lanes if wide else 1, Place.VECTOR), (several, Place.REGISTER)
        if not first:
            yield Cut(NAMES[axis], (*factors, (1, Place.SERIAL)))
            continue
        size = factors[0][0] * several
        inner = set(range(shared, len(nest.extents))) - nest.parted
        work = max(1, prod([nest.extents[k] for k in inner])) * size
        turns = max(1, WORK // work) if place is Place.CORE else 1
        yield Cut(NAMES[:shared], (*factors, (turns, place)))


def _shared(nest: Nest, vectors: frozenset[int]) -> int:
    """Return how many axes are one loop that cores share."""
    shared = 1
    while shared < nest.space and shared not in nest.inner:
        if {shared, shared - 1} & vectors:
            break
        shared += 1
    return shared


def _nested(nest: Nest) -> bool:
    """Say whether a reduction is walked inside of another: its text is long already."""
    reduced = {axis for value in nest.values for axis in value.over}
    return any(value.over and value.axes & reduced for value in nest.values)


def _walked_alone(nest: Nest) -> set[int]:
    """Return the axes that no reduction walks together with others."""
    together = {k for value in nest.values if len(value.over) > 1 for k in value.over}
    return set(range(len(nest.extents))) - together


def _shares(nest: Nest, axis: int, vectors: frozenset[int]) -> bool:
    """Say whether a sum reads vectors again for every index of an axis."""
    return any(
        value.source is not None and value.axes & vectors and axis not in value.axes
        for reduction in nest.values
        if reduction.over and axis in reduction.axes
        for value in nest.values
        if value.axes.intersection(reduction.over)
    )


def vector_axes(nest: Nest) -> frozenset[int]:
    """Choose axes to walk by vectors, the last first; no value has two of them."""
    found: set[int] = set()
    every = set(range(len(nest.extents))) - reduced_outside(nest)
    every -= nest.alone | nest.merged
    for axis in sorted(every, key=lambda k: (k >= nest.space, -k)):
        together = {
            k
            for value in nest.values
            if axis in value.axes or axis in value.over
            for k in (*value.axes, *value.over)
        }
        if nest.extents[axis] > 1 and not found & together and in_order(nest, axis):
            found.add(axis)
    for axes in again(nest):
        if not axes <= found:
            found -= axes
    return frozenset(found)


def on_gpu(nest: Nest, gpu: Gpu) -> Iterator[Schedule]:
    """Yield the legal schedules of a GPU: a thread for each index that is not reduced."""
    shared = nest.outer
    inner = [
        Cut(NAMES[axis], ((1, Place.VECTOR), (1, Place.REGISTER), (1, Place.SERIAL)))
        for axis in range(shared, len(nest.extents))
    ]
    for threads in THREADS:
        if gpu.blocks_resident(threads, 0):
            factors = (1, Place.VECTOR), (1, Place.REGISTER), (threads, Place.THREAD)
            first = Cut(NAMES[:shared], (*factors, (1, Place.GRID)))
            yield Schedule((first, *inner))
