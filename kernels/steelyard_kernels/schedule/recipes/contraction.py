"""The recipe of matrix products for a GPU: tiles, stages, clusters that divide k."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, product
from typing import Final

from msgspec.structs import replace

from steelyard_kernels.nest.axes import Nest
from steelyard_kernels.schedule import product_tiling
from steelyard_kernels.schedule.contraction import Product, product_of
from steelyard_kernels.schedule.cores import Cores
from steelyard_kernels.schedule.gpu import SYSTEM_SHARED, Gpu
from steelyard_kernels.schedule.product_tiling import ROWS, SWIZZLED, Tiling, problem
from steelyard_kernels.schedule.schedule import Schedule, Sought, legal

COLUMNS: Final = (16, 32, 48, 64, 96, 128, 192, 256)
MORE_COLUMNS: Final = (80, 112, 160, 224)  # not likely
SLICES: Final = (1, 2, 4)  # of a block's threads
SHARED: Final = (2, 4)  # blocks
SPLITS: Final = (1, 2, 3, 4, 6, 8)
GROUPS: Final = (1, 2)
MORE_GROUPS: Final = (1, 2, 3)  # of windows, which all threads load
EXACT_GROUPS: Final = (1, 2, 4)  # whose turns of copies are whole patches of rows
WIDE: Final = 128  # columns of these
# Steps on their way at a time: each its own stage up to these, or the most that fit.
MOST_OWN: Final = 16
STAGES: Final = (8, 7, 6, 5, 4, 3)
FEW_STAGES: Final = (4, 3, 2)  # by FMA, whose steps take longer than copies
EVERY_STAGE: Final = range(2, 13)  # likely or not


def on_gpu(nest: Nest, gpu: Gpu, sought: Sought) -> Iterator[Schedule]:
    """Yield the legal schedules of a product: none where the nest is no such product.

    Those `likely` to be best have as many stages as fit, and no rows of 32 bytes.
    """
    whole = product_of(nest)
    if isinstance(whole, str) or not sought.aligned or not gpu.cores:
        return iter(())
    if not (whole.exact or gpu.multiplies(whole.dtype)):
        return iter(())
    if sought.likely:
        return (tiling.schedule for tiling in _likely(whole, gpu))
    every = _grid(whole, gpu)
    return legal(
        every, lambda each: _too_large(each) or problem(each, gpu), sought.refuse
    )


def _grid(whole: Product, gpu: Gpu) -> Iterator[Tiling]:
    """Yield all tilings of every number of stages; blocks stay where some would wait."""
    groups = EXACT_GROUPS if whole.exact else product_tiling.GROUPS
    sizes = groups, sorted((*COLUMNS, *MORE_COLUMNS))
    multipliers = gpu.multipliers(exact=whole.exact)
    every = [_tiles(whole, cores, *sizes) for cores in multipliers]
    for tiling in chain.from_iterable(every):
        own = (tiling.steps,) if tiling.steps <= MOST_OWN else ()
        for stages in sorted({*EVERY_STAGE, *own}):
            yield replace(tiling, stages=stages)
            if _stays(tiling, gpu):
                yield replace(tiling, stages=stages, blocks=gpu.multiprocessors)


def _stays(tiling: Tiling, gpu: Gpu) -> bool:
    """Say whether blocks may stay, since some would wait: not beside what FMA takes."""
    waits = tiling.grid > gpu.multiprocessors
    return waits and tiling.split == 1 and not tiling.cores.exact


def _tiles(
    whole: Product, cores: Cores, groups: Iterable[int], columns: Iterable[int]
) -> Iterator[Tiling]:
    """Yield tilings of one stage: tiles of all sizes, divided as the cores can."""
    if whole.sums.reduces:
        columns = [whole.extents[2]]
    for tall, wide, split, repeats, threads in product(
        groups, columns, SPLITS, range(1, cores.repeats + 1), (False, True)
    ):
        tiling = Tiling(whole, tall, wide, 1, split, 0, cores, repeats, threads)
        # Blocks that share columns gained where clusters of them divide the depth too.
        if tiling.cluster > 1 and tall == 1 and wide >= WIDE and whole.is_bulk:
            yield from [replace(tiling, sharing=n) for n in SHARED]
        # Warpgroups of a block gained nothing from dividing the depth of windows.
        few = (1,) if cores.bulk and whole.has_window else SLICES
        alike = threads and replace(tiling, threads_copy=False).bulk is tiling.bulk
        if not alike and (tiling.bulk or split in few):
            yield tiling


def _likely(whole: Product, gpu: Gpu) -> Iterator[Tiling]:
    """Yield the legal tilings: blocks that take one tile each, and blocks that stay."""
    groups = MORE_GROUPS if whole.has_window else GROUPS
    first, *_ = gpu.multipliers(exact=whole.exact)
    for tiling in _tiles(whole, first, groups, COLUMNS):
        if _too_large(tiling) or tiling.chunk == SWIZZLED[-1]:
            continue
        if tiling.groups not in GROUPS and tiling.columns < WIDE:
            continue  # slower than predicted
        if tiling.threads_copy and whole.is_bulk:
            continue
        rooms = (gpu.most_shared, gpu.shared_bytes // 2 - SYSTEM_SHARED)  # of one, two
        stage = replace(tiling, stages=2).shared - tiling.shared
        found = [_deepest(tiling, gpu, room, stage) for room in rooms]
        if tiling.sharing > 1:  # few first copies, which wait for the others' barriers
            found = [one for one in found if one and 2 * one.stages < one.steps]
        yield from {one.stages: one for one in found if one}.values()
        if _stays(tiling, gpu):
            staying = replace(tiling, blocks=gpu.multiprocessors)
            if one := _deepest(staying, gpu, gpu.most_shared, stage):
                yield one


def _too_large(tiling: Tiling) -> str:
    """Say which half of a tile would be enough."""
    _, m, n, _ = tiling.product.extents
    tall, wide = tiling.tall, tiling.columns
    if tall - ROWS >= m or (wide > COLUMNS[0] and wide // 2 >= n):
        return f"has tiles of {tall} x {wide} for {m} x {n}; choose smaller ones"
    return ""


def _deepest(tiling: Tiling, gpu: Gpu, room: int, stage: int) -> Tiling | None:
    """Return a tiling of one stage with as many, of so many bytes, as fit some room."""
    steps = tiling.steps
    own = (steps,) if steps <= MOST_OWN else ()
    several = tiling.product.is_bulk or not tiling.bulk
    stages = FEW_STAGES if tiling.cores.exact else STAGES
    most = room // stage
    for count in (*own, *(stages if several else ())):
        if count > most:
            continue
        deeper = replace(tiling, stages=count)
        if deeper.shared <= room and not problem(deeper, gpu):
            return deeper
    return None
