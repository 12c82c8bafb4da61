"""The recipe of attention for tensor cores: queries a block, keys a step, stages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import prod
from typing import Final

from steelyard_kernels.nest.axes import Nest
from steelyard_kernels.schedule.attention import attention_of
from steelyard_kernels.schedule.attention_tiling import (
    GROUPS,
    AttentionTiling,
    columns_of,
    problem,
)
from steelyard_kernels.schedule.gpu import Gpu
from steelyard_kernels.schedule.product_tiling import ROWS
from steelyard_kernels.schedule.schedule import Refuse, Schedule, legal

KEYS: Final = (64, 96, 128, 176)
STAGES: Final = (2, 3)
MOST_STAYING: Final = 128  # keys of blocks that stay; with more these were slower
MOST_STAGES: Final = 16  # of which each step has its own


def on_gpu(
    nest: Nest, gpu: Gpu, *, aligned: bool, refuse: Refuse
) -> Iterator[Schedule]:
    """Yield the legal schedules of attention: none where the nest is none."""
    every = _tilings(nest, gpu, aligned=aligned)
    return legal(every, lambda each: problem(each, gpu), refuse)


def _tilings(nest: Nest, gpu: Gpu, *, aligned: bool) -> Iterator[AttentionTiling]:
    """Yield tilings: with a stage for each step, and with some stages."""
    if not aligned or not gpu.cores:
        return
    (cores, *_) = gpu.cores
    whole = attention_of(nest)
    if isinstance(whole, str):
        return
    _, m, _, n = whole.extents
    columns = columns_of(whole, cores)
    least = min(KEYS[0], -(-n // 16) * 16)
    several_keys = (64, 128) if cores.by_warp else sorted({least, *KEYS})
    for groups, keys in product(GROUPS, several_keys):
        if groups > 1 and m <= ROWS * (groups - 1):
            continue
        steps = -(-n // keys)
        every = (steps,) if steps <= MOST_STAGES else ()
        several = {*every, *[s for s in STAGES if s < steps]}
        # Waits of one warpgroup are hidden by others: alone, it has the most stages first.
        for stages in sorted(several, reverse=groups == 1):
            tiling = AttentionTiling(
                whole, groups, columns, stages, cores=cores, keys=keys
            )
            yield tiling
            if cores.by_warp:
                continue
            if prod(tiling.tiles) > gpu.multiprocessors and keys <= MOST_STAYING:
                yield replace(tiling, blocks=gpu.multiprocessors)
