"""The recipe of weighted sums for tensor cores: rows a block, keys a step, stages."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Final

from steelyard_kernels.nest.axes import Nest
from steelyard_kernels.schedule.attention_tiling import GROUPS, columns_of
from steelyard_kernels.schedule.cores import WGMMA
from steelyard_kernels.schedule.gpu import Gpu
from steelyard_kernels.schedule.product_tiling import ROWS
from steelyard_kernels.schedule.schedule import Refuse, Schedule, legal
from steelyard_kernels.schedule.weighted import weighted_of
from steelyard_kernels.schedule.weighted_tiling import WeightedTiling, problem

KEYS: Final = (32, 64, 96)  # of 128 they were up to an eighth slower
STAGES: Final = (2, 3, 4)


def on_gpu(
    nest: Nest, gpu: Gpu, *, aligned: bool, refuse: Refuse
) -> Iterator[Schedule]:
    """Yield the legal schedules of weighted sums: none where the nest is none."""
    every = _tilings(nest, gpu, aligned=aligned)
    return legal(every, lambda each: problem(each, gpu), refuse)


def _tilings(nest: Nest, gpu: Gpu, *, aligned: bool) -> Iterator[WeightedTiling]:
    """Yield tilings: of few keys one step is enough."""
    if not aligned or WGMMA not in gpu.cores:
        return
    whole = weighted_of(nest)
    if isinstance(whole, str):
        return
    _, m, _, n = whole.extents
    columns, least = columns_of(whole), min(KEYS[1], -(-n // 16) * 16)
    for groups, keys in product(GROUPS, sorted({least, *KEYS})):
        if groups == 1 or m > ROWS * (groups - 1):
            for stages in sorted({min(each, -(-n // keys)) for each in STAGES}):
                yield WeightedTiling(whole, groups, columns, stages, keys=keys)
