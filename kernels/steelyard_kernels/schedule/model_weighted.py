"""What tiled weighted sums are predicted to take on an H200: terms in nanoseconds.

The rates are those of attention, of which these are parts; each of a step's scores is
taken to cost what attention's do, and half as much for each weight besides.
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
    CORE_RATE,
    EACH_BLOCK,
    EACH_STEP,
    OVERLAP,
    RAMP_NS,
    SCORE,
)
from steelyard_kernels.schedule.product_tiling import ROWS
from steelyard_kernels.schedule.weighted import weighted_of
from steelyard_kernels.schedule.weighted_tiling import WeightedTiling, registers

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard_kernels.nest.axes import Nest
    from steelyard_kernels.schedule.schedule import Schedule

MASKED: Final = 0.5  # of the steps, where half of all keys weigh nothing


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
    deep = sum(panel.depth for panel in tiling.keys_of.values())
    deep += tiling.columns * len(whole.every)
    operations = ROWS * tiling.keys * deep * 2
    each = ROWS * tiling.keys * SCORE * (len(whole.scores) + len(whole.every) / 2)
    alone = EACH_STEP + operations / CORE_PEAK + each / 2
    at_once = beside * operations / CORE_RATE, beside * each, alone
    step = sum(x**OVERLAP for x in at_once) ** (1 / OVERLAP)
    share = MASKED if whole.seen is not None else 1.0
    block = EACH_BLOCK + max(1.0, share * tiling.steps) * step
    waves = max(1.0, blocks / (gpu.multiprocessors * held))
    return Prediction((("ramp", RAMP_NS), ("steps", block * waves / CLOCK)))


def estimate_registers(nest: Nest, schedule: Schedule) -> int:
    """Return about how many registers a thread will use."""
    return registers(_tiling(nest, schedule))
