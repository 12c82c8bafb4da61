"""Whether a schedule fits a GPU: its blocks, its vectors, and what these keep."""

from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import Final

from steelyard_kernels.expression.expr import Along, Input
from steelyard_kernels.nest.axes import NAMES, Nest
from steelyard_kernels.nest.keep import has_rows
from steelyard_kernels.schedule import transposition
from steelyard_kernels.schedule.gpu import (
    CLUSTERS,
    MAX_THREADS,
    STATIC_SHARED,
    VECTOR_BYTES,
    WARP,
    registers_problem,
)
from steelyard_kernels.schedule.order import in_order, residue
from steelyard_kernels.schedule.schedule import Cut, Place, Schedule

BLOCKS: Final = range(WARP, MAX_THREADS + 1, WARP)  # of whole warps
LANES: Final = (1, 2, 4, 8, 16)  # of a GPU: up to single bytes of the widest access
MOST_VECTORS: Final = 8  # that a GPU's thread has in flight
MOST_HELD: Final = 16  # that it has of a loop beside others


def gpu_problem(nest: Nest, schedule: Schedule, *, aligned: bool) -> str:
    """Say what of a schedule no GPU has, or what access would not be aligned."""
    threads = schedule.threads
    if schedule.streaming or schedule.prefetch:
        return "stores round the caches, or asks ahead; choose a schedule without"
    if threads not in BLOCKS:
        wanted = f"a multiple of {WARP} up to {MAX_THREADS}"
        return f"has blocks of {threads} threads; choose {wanted}"
    for cut in schedule.cuts:
        lanes, vectors = cut.at(Place.VECTOR), cut.at(Place.REGISTER)
        if lanes not in LANES:
            wanted = f"a power of two up to {LANES[-1]}"
            return f"has vectors of {lanes} elements; choose {wanted}"
        most = MOST_HELD if cut is not schedule.cuts[0] else MOST_VECTORS
        if vectors > most:
            return f"has {vectors} vectors in flight; choose 1 to {most}"
        why = _unaligned(nest, cut, aligned=aligned) if lanes > 1 else ""
        if why and not (aligned and are_behind(nest, schedule)):
            return why
    why = registers_problem(schedule.registers, threads) or _handed(nest, schedule)
    return why or _apart(schedule) or unordered(nest, schedule)


def are_behind(nest: Nest, schedule: Schedule) -> bool:
    """Say whether each thread's rows begin as far behind a vector of memory.

    Then they are walked by such vectors, which the first and the last elements do not
    fill: these are left to the last turn.
    """
    if len(schedule.cuts) != 2 or not has_rows(nest):
        return False
    first, along = schedule.cuts
    lanes, extent, size = along.at(Place.VECTOR), nest.extents[-1], along.size
    step = residue(nest, lanes)
    whole = (extent + lanes - 2) // size * size
    return (
        bool(step)
        and first.at(Place.REGISTER) * first.at(Place.VECTOR) == 1
        and along.at(Place.THREAD) > 1
        and whole <= max(0, extent - lanes)
        and schedule.blocks // schedule.cluster * first.size * (step or 0) % lanes == 0
    )


def tile_problem(nest: Nest, schedule: Schedule) -> str:
    """Say why a tile of arrays read along another axis does not fit."""
    why = transposition.problem(nest, schedule)
    if why:
        return why
    of = transposition.transposed_of(nest)
    apart = of.values if of else ()
    rest = [value for value in nest.values if value not in apart]
    for axis, values in ((of.axis if of else 0, apart), (len(nest.extents) - 1, rest)):
        lanes = schedule.cuts[axis].at(Place.VECTOR)
        if lanes > 1 and not in_order(nest, axis, values):
            return out_of_order(NAMES[axis])
    size = transposition.shared_bytes(nest, schedule)
    if size > STATIC_SHARED:
        return f"keeps {size} bytes in shared memory, of {STATIC_SHARED}; choose less"
    return ""


def resident_problem(nest: Nest, schedule: Schedule) -> str:
    """Say why blocks cannot stay and take one row after another."""
    if len(schedule.cuts) != 2 or not has_rows(nest):
        return f"has {schedule.blocks} blocks take rows in turn, of which there are none; choose 0"
    first, along = schedule.cuts
    if first.at(Place.REGISTER) * first.at(Place.VECTOR) > 1:
        return f"takes {first.label} in turns; choose one row of a thread at a time"
    if any(output.updates is not None for output in nest.program.outputs):
        return "reads rows ahead of those that it overwrites; choose 0 blocks"
    before = along.at(Place.VECTOR) - 1 if are_behind(nest, schedule) else 0
    extent = nest.extents[-1] + before
    if along.size < extent:
        return f"has {along.size} of {extent} elements in a turn; choose more vectors"
    return ""


def cluster_problem(nest: Nest, schedule: Schedule) -> str:
    """Say why blocks of a cluster cannot walk one loop together."""
    first, *inner = schedule.cuts
    (cut, *more) = [c for c in schedule.cuts if c.at(Place.CLUSTER) > 1]
    blocks = cut.at(Place.CLUSTER)
    if cut is first or more or NAMES.index(cut.axes[-1]) < nest.space - len(inner):
        return f"has {cut.label} for a cluster; share one loop that is reduced"
    if blocks not in CLUSTERS or cut.at(Place.THREAD) < max(blocks, 2):
        most = min(CLUSTERS[-1], cut.at(Place.THREAD))
        return f"has a cluster of {blocks} blocks; choose 1 to {most}"
    if schedule.keep or nest.lines or nest.running:
        return f"has a cluster walk {cut.axes} by lines; choose 1 block"
    if schedule.blocks % blocks:
        return (
            f"has {schedule.blocks} blocks in clusters of {blocks}; choose a multiple"
        )
    if schedule.blocks and cut.at(Place.THREAD) <= WARP:
        return f"has no barrier between rows of {cut.label}; choose {2 * WARP} threads"
    if any(output.updates is not None for output in nest.program.outputs):
        return "overwrites what other blocks of a cluster may read; choose 1 block"
    return ""


def _unaligned(nest: Nest, cut: Cut, *, aligned: bool) -> str:
    """Say which access would not be aligned, and what to choose instead."""
    lanes, axis = cut.at(Place.VECTOR), NAMES.index(cut.axes[-1])
    if not aligned:
        return (
            f"needs arrays that start at multiples of {VECTOR_BYTES} bytes, and one "
            "does not; align it, choose 1 element a vector"
        )
    for rows, begin in _begins(nest, axis):
        if rows % lanes or begin % lanes:
            return (
                f"has vectors of {lanes} elements in rows of {rows}; "
                "choose a divisor of the row"
            )
    return ""


@lru_cache(maxsize=2)  # many schedules are checked
def _begins(nest: Nest, axis: int) -> list[tuple[int, int]]:
    """Return, of arrays in order along an axis, what its walks begin at multiples of.

    And how far behind; 0 for those that begin once.
    """
    read = [v.offset for v in nest.values if isinstance(v.source, Along | Input)]
    alone = {axis, *[k for k, extent in enumerate(nest.extents) if extent == 1]}
    return [
        (gcd(*[s for term, s in offset.terms if term not in alone]), offset.constant)
        for offset in (*read, *[output.offset for output in nest.outputs])
        if offset.step(axis) == 1
    ]


def _handed(nest: Nest, schedule: Schedule) -> str:
    """Say why blocks cannot hand over what they come to, one behind the other."""
    first, *inner = schedule.cuts
    if nest.handed is None or (
        first.size == 1
        and not schedule.blocks
        and all(cut.at(Place.THREAD) > 1 for cut in inner)
    ):
        return ""
    return (
        f"takes {first.size} of {first.axes} a block, which hands over the total of one; "
        "choose one, which all threads of the block walk"
    )


def _apart(schedule: Schedule) -> str:
    """Say which reduction's threads no shuffles and slots bring together."""
    for cut in schedule.cuts[1:]:
        count = cut.at(Place.THREAD)
        if count > 1 and count & (count - 1) and count % WARP:
            return (
                f"has {count} threads along {cut.axes}; choose a power of two or a "
                f"multiple of {WARP}"
            )
    return ""


def unordered(nest: Nest, schedule: Schedule) -> str:
    """Say which array would be overwritten before every thread has read it."""
    updated = {output.updates for output in nest.program.outputs} - {None}
    if not updated:
        return ""
    for cut in schedule.cuts[1:]:
        axis, count = NAMES.index(cut.axes), cut.at(Place.THREAD)
        for value in nest.values if 1 < count <= WARP else ():
            source = value.source
            if (
                isinstance(source, Input)
                and source.index in updated
                and axis not in value.axes
            ):
                return (
                    f"has no barrier before {source.name} is overwritten, which all "
                    f"threads along {cut.axes} read; choose {2 * WARP} threads or more"
                )
    return ""


def out_of_order(axis: str) -> str:
    """Say that vectors along an axis fit no array, and what to choose instead."""
    return (
        f"walks {axis} by vectors, along which an array does not lie in order; "
        "choose 1 lane"
    )
