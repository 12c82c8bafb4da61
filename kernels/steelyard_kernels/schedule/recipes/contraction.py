"""The recipe of matrix products for tensor cores: tiles, stages, clusters that divide k."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Final

from steelyard_kernels.nest.axes import Nest
from steelyard_kernels.schedule.contraction import ROWS, Tiling, problem, product_of
from steelyard_kernels.schedule.gpu import SYSTEM_SHARED, Gpu
from steelyard_kernels.schedule.schedule import Schedule

COLUMNS: Final = (16, 32, 48, 64, 96, 128, 192, 256)
SPLITS: Final = (1, 2, 3, 4, 6, 8)
GROUPS: Final = (1, 2)
# Steps on their way at a time: each its own stage up to these, or the most that fit.
MOST_OWN: Final = 16
STAGES: Final = (8, 7, 6, 5, 4, 3)


def on_gpu(nest: Nest, gpu: Gpu, *, aligned: bool) -> Iterator[Schedule]:
    """Yield the legal schedules of a product: none where the nest is no such product."""
    for tiling in tilings(nest, gpu, aligned=aligned):
        yield tiling.schedule


def tilings(nest: Nest, gpu: Gpu, *, aligned: bool) -> Iterator[Tiling]:
    """Yield the legal tilings: blocks that take one tile each, and blocks that stay."""
    whole = product_of(nest)
    if isinstance(whole, str) or not aligned or not gpu.wgmma:
        return
    _, m, n, _ = whole.extents
    for groups, columns, split in product(GROUPS, COLUMNS, SPLITS):
        wide = columns > COLUMNS[0] and columns // 2 >= n
        if wide or (groups > 1 and m <= ROWS):
            continue  # half of it is enough
        tiling = Tiling(whole, groups, columns, 1, split)
        rooms = (gpu.most_shared, gpu.shared_bytes // 2 - SYSTEM_SHARED)  # of one, two
        found = [_deepest(tiling, gpu, room) for room in rooms]
        yield from {one.stages: one for one in found if one}.values()
        if split == 1 and tiling.grid > gpu.multiprocessors:
            staying = Tiling(whole, groups, columns, 1, 1, gpu.multiprocessors)
            if one := _deepest(staying, gpu, gpu.most_shared):
                yield one


def _deepest(tiling: Tiling, gpu: Gpu, room: int) -> Tiling | None:
    """Return a tiling with as many stages as fit so many bytes."""
    steps = tiling.steps
    own = (steps,) if steps <= MOST_OWN else ()
    for stages in (*own, *(STAGES if tiling.product.is_bulk else ())):
        deeper = Tiling(
            tiling.product,
            tiling.groups,
            tiling.columns,
            stages,
            tiling.split,
            tiling.blocks,
        )
        if deeper.shared <= room and not problem(deeper, gpu):
            return deeper
    return None
