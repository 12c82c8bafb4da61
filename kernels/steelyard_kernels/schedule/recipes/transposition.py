"""The recipe of tiles: arrays that are read along another axis than they are written."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Final

from msgspec.structs import replace

from steelyard_kernels.nest.axes import NAMES, Nest
from steelyard_kernels.schedule.gpu import VECTOR_BYTES, Gpu
from steelyard_kernels.schedule.legality import problem, stores_aligned
from steelyard_kernels.schedule.model import LINE, Machine, traffic
from steelyard_kernels.schedule.schedule import Cut, Place, Schedule, Sought
from steelyard_kernels.schedule.transposition import Tile, cuts_of, joins, transposed_of

SIDES: Final = (128, 256)  # bytes of a tile's rows and columns
SHORT_SIDES: Final = (32, 64, 128)  # of an axis that has no more
THREADS: Final = (64, 128, 256, 512)
# On a CPU: squares side by side, tiles for each thread, and bytes that are asked for ahead.
# Of 4096 x 4096 float32 in huge pages an EPYC (Zen 5) reached 0.72 of a copy by 8 squares
# and 0.65 by 3, of float16 0.73 and 0.6, when its memory was least busy. They write whole
# lines: two threads share those of 3 squares of 32 int8, which took up to 8 times as long.
# Squares of less than half a line ask for nothing: of 3 x 1,000,000 they took half the time.
BESIDE: Final = (8, 4, 1)
SHARES: Final = 4
TILE: Final = 4096  # elements of a tile at least: columns may be short
AHEAD: Final = 512
MOST_AHEAD: Final = (
    256  # elements: int8 of 16 x 1024 x 1024 took 1.3 to 1.9 times as long
)
# Of a square: 64 bytes a row are a whole line, in twice the build time of 32, and 4096 x
# 4096 int8 took a third of the time. What stays in cache is written by any vectors.
MOST_LANES: Final = 64
SMALL_LANES: Final = 32


def on_cpu(nest: Nest, machine: Machine, sought: Sought) -> Iterator[Schedule]:
    """Yield the legal schedules of a CPU: squares of a cache line each way.

    Only whole lines go round the caches: of 4100 x 4104 float32, whose rows begin at
    multiples of 16 bytes, that took 1.9 times as long as stores that stay. Where a vector
    is half a line (AVX2), two make one: of 4096 x 4096 float32 and float64 that took 0.76
    and 0.61 of the time on an EPYC (Zen 3).
    """
    of = transposed_of(nest)
    if of is None:
        return
    last, resident = nest.extents[-1], traffic(nest.program).resident
    full = min(machine.lanes(of.element), SMALL_LANES if resident else MOST_LANES)
    line = LINE // of.element
    stays = resident or not sought.aligned or last % line
    if full < line <= SMALL_LANES and not stays:
        full = line
    joined = last < full * BESIDE[0] and joins(nest, of)
    row = nest.axes[-1 - joined :]
    down, across = nest.extents[of.axis], nest.extent_of(row)
    lanes = min(full, 1 << max(1, min(down, across).bit_length() - 1))
    most = min(AHEAD, MOST_AHEAD * of.element)
    ahead = most if 2 * lanes * of.element >= LINE else 0
    for beside, place in product(BESIDE, (Place.CORE, Place.SERIAL)):
        squares = -(-down // lanes)
        strips = -(-prod(nest.extents) // (down * lanes * beside))
        parts = max(1, min(squares, machine.threads * SHARES // max(1, strips)))
        most = strips // (machine.threads * SHARES)
        turns = max(1, min(TILE // (down * lanes * beside), most))
        wide = (lanes, Place.VECTOR)
        cuts = [Cut(axis, ((1, place),)) for axis in nest.axes[: -len(row)]]
        cuts[of.axis] = Cut(NAMES[of.axis], (wide, (-(-squares // parts), place)))
        cuts.append(Cut(row, (wide, (beside, Place.REGISTER), (turns, place))))
        schedule = Schedule(tuple(cuts), False, ahead, keep=Place.REGISTER)
        whole = stores_aligned(nest, schedule) == LINE
        for streaming in (True, False) if whole else (False,):
            schedule = replace(schedule, streaming=streaming)
            if not problem(nest, schedule, "cpu", aligned=sought.aligned):
                yield schedule


def on_gpu(nest: Nest, gpu: Gpu, sought: Sought) -> Iterator[Schedule]:
    """Yield the legal schedules of a GPU, with the widest vectors along both axes."""
    of = transposed_of(nest)
    if of is None:
        return
    widest = VECTOR_BYTES // of.element
    widths = [width for width in (16, 8, 4, 2, 1) if width <= widest]
    for lanes, wide in product(widths, widths):
        found = []
        sides = [_sides(nest.extents[k] * of.element) for k in (of.axis, -1)]
        for rows, columns, threads in product(*sides, THREADS):
            across = min(columns // (wide * of.element), threads)
            tile = Tile(
                rows // of.element,
                columns // of.element,
                *(lanes, wide, threads // across, across),
                of.element,
            )
            if tile.rows % (lanes * tile.down) == 0:
                schedule = Schedule(cuts_of(nest, of, tile), keep=Place.SHARED)
                if not problem(nest, schedule, "cuda", aligned=sought.aligned):
                    found.append(schedule)
        if found:
            yield from [s for s in found if gpu.blocks_resident(s.threads, 0)]
            return


def _sides(size: int) -> tuple[int, ...]:
    """Return the sides of tiles along an axis of so many bytes."""
    return next(((side,) for side in SHORT_SIDES if size <= side), SIDES)
