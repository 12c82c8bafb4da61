"""The recipe of tiles: arrays that are read along another axis than they are written."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Final

from steelyard_kernels.nest.axes import Nest
from steelyard_kernels.schedule.gpu import VECTOR_BYTES, Gpu
from steelyard_kernels.schedule.legality import problem
from steelyard_kernels.schedule.schedule import Place, Schedule
from steelyard_kernels.schedule.transposition import Tile, cuts_of, transposed_of

SIDES: Final = (128, 256)  # bytes of a tile's rows and columns
SHORT_SIDES: Final = (32, 64, 128)  # of an axis that has no more
THREADS: Final = (64, 128, 256, 512)


def on_gpu(nest: Nest, gpu: Gpu, *, aligned: bool) -> Iterator[Schedule]:
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
                if not problem(nest, schedule, "cuda", aligned=aligned):
                    found.append(schedule)
        if found:
            yield from [s for s in found if gpu.blocks_resident(s.threads, 0)]
            return


def _sides(size: int) -> tuple[int, ...]:
    """Return the sides of tiles along an axis of so many bytes."""
    return next(((side,) for side in SHORT_SIDES if size <= side), SIDES)
