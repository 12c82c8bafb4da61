"""What tiled weighted sums are predicted to take on an H200: terms in nanoseconds.

Terms are those of attention. Their rates were fitted to 131 kernels of 6 programs with
16384 tokens in float16 on an H200, heads of 64 and 128 columns in sequences of 2048,
measured warm: the choice takes 1.03 times the best of the measured in the mean, 1.09 at
most.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

from steelyard_kernels.schedule.attention_tiling import tiling_of
from steelyard_kernels.schedule.gpu import Gpu
from steelyard_kernels.schedule.model import Prediction
from steelyard_kernels.schedule.model_attention import (
    CLOCK,
    CORE_PEAK,
    RAMP_NS,
)
from steelyard_kernels.schedule.product_tiling import ROWS
from steelyard_kernels.schedule.weighted import weighted_of
from steelyard_kernels.schedule.weighted_tiling import WeightedTiling, registers

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard_kernels.nest.axes import Nest
    from steelyard_kernels.schedule.schedule import Schedule

CORE_RATE: Final = CORE_PEAK / 1.45  # of many products
SCORE: Final = 0.051  # cycles of a score, and twice those of a weight
EACH_STEP: Final = 707.0  # cycles of one warpgroup's step beside its products
EACH_BLOCK: Final = 1409.0  # cycles of a block beside its steps
OVERLAP: Final = 2.94  # the power of the mean of what goes on at a time


def model(nest: Nest, gpu: Gpu) -> Callable[[Schedule], Prediction]:
    """Return what predicts one launch of weighted sums under a schedule of tiles."""

    def predict(schedule: Schedule) -> Prediction:
        return _predicted(_tiling(nest, schedule), gpu)

    return predict


def _tiling(nest: Nest, schedule: Schedule) -> WeightedTiling:
    whole = weighted_of(nest)
    assert not isinstance(whole, str)
    tiling = tiling_of(whole, schedule, WeightedTiling)
    assert isinstance(tiling, WeightedTiling)
    return tiling


def _predicted(tiling: WeightedTiling, gpu: Gpu) -> Prediction:
    whole = tiling.weighted
    held = gpu.blocks_resident(tiling.threads, registers(tiling), tiling.shared)
    held = 1 if tiling.hands_over else max(1, held)
    blocks = prod(tiling.tiles)
    beside = min(held, -(-blocks // gpu.multiprocessors)) * tiling.groups
    taken = [whole.scores[k] for each in whole.passes for k in each.scores]
    deep = sum(tiling.depths[score.depth] for score in taken)
    deep += tiling.columns * len(whole.every)
    operations = ROWS * tiling.keys * deep * 2
    each = ROWS * tiling.keys * SCORE * (len(taken) + len(whole.every) / 2)
    alone = EACH_STEP * len(whole.passes) + operations / CORE_PEAK
    at_once = beside * operations / CORE_RATE, beside * each, alone
    step = sum(x**OVERLAP for x in at_once) ** (1 / OVERLAP)
    steps, keys = float(tiling.steps), whole.extents[3]
    if whole.seen is not None:  # of half of all keys, and of an edge
        steps = min(
            steps, (keys + ROWS * tiling.groups + tiling.keys) / 2 / tiling.keys
        )
    block = EACH_BLOCK + steps * step
    waves = max(1.0, blocks / (gpu.multiprocessors * held))
    return Prediction((("ramp", RAMP_NS), ("steps", block * waves / CLOCK)))


def estimate_registers(nest: Nest, schedule: Schedule) -> int:
    """Return about how many registers a thread will use."""
    return registers(_tiling(nest, schedule))
