"""What tiled attention is predicted to take on an H200: terms in nanoseconds.

A warpgroup multiplies, computes weights, and waits where nothing else fills the time.
Rates were fitted to 289 kernels of 15 shapes in float16 on an H200, heads of 64 and 128
columns, measured warm, and held for 57 with blocks that stay: the choice takes 1.006
times the best of the measured in the mean, 1.06 times at most.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

from steelyard_kernels.schedule.attention import attention_of
from steelyard_kernels.schedule.attention_tiling import (
    AttentionTiling,
    registers,
    tiling_of,
)
from steelyard_kernels.schedule.gpu import Gpu
from steelyard_kernels.schedule.model import Prediction
from steelyard_kernels.schedule.product_tiling import ROWS

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard_kernels.nest.axes import Nest
    from steelyard_kernels.schedule.schedule import Schedule

CLOCK: Final = 1.7  # cycles a nanosecond
RAMP_NS: Final = 1201.0
CORE_PEAK: Final = 4096.0  # operations of a multiprocessor and cycle
CORE_RATE: Final = CORE_PEAK / 1.254  # of many products
SCORE: Final = 0.106  # cycles from a score to its weight
EACH_STEP: Final = 667.0  # cycles of one warpgroup's step beside its products
EACH_BLOCK: Final = 2154.0  # cycles of a block beside its steps
OVERLAP: Final = 3.1  # the power of the mean of what goes on at a time
TAIL: Final = 0.89  # how far the last blocks leave multiprocessors without work
WAVE: Final = 779.0  # cycles that another wave of blocks begins later


def model(nest: Nest, gpu: Gpu) -> Callable[[Schedule], Prediction]:
    """Return what predicts one launch of attention under a schedule of tiles."""

    def predict(schedule: Schedule) -> Prediction:
        return _predicted(_tiling(nest, schedule), gpu)

    return predict


def _tiling(nest: Nest, schedule: Schedule) -> AttentionTiling:
    whole = attention_of(nest)
    assert not isinstance(whole, str)
    tiling = tiling_of(whole, schedule)
    assert tiling is not None
    return tiling


def _predicted(tiling: AttentionTiling, gpu: Gpu) -> Prediction:
    held = gpu.blocks_resident(tiling.threads, registers(tiling), tiling.shared)
    held = 1 if tiling.hands_over else max(1, held)
    blocks = prod(tiling.tiles)
    beside = min(held, -(-blocks // gpu.multiprocessors)) * tiling.groups
    deep = tiling.panels["keys"].depth + tiling.columns
    share = 1.0  # of what an H200's warpgroups multiply
    if tiling.cores.by_warp:
        share = gpu.product_rate / gpu.multiprocessors / CLOCK / CORE_PEAK
    cores = ROWS * tiling.keys * deep * 2 / (share * CORE_RATE)
    scores = ROWS * tiling.keys * SCORE
    alone = EACH_STEP + ROWS * tiling.keys * deep * 2 / (share * CORE_PEAK)
    at_once = (beside * cores, beside * scores, alone)
    step = sum(x**OVERLAP for x in at_once) ** (1 / OVERLAP)
    steps, longest = _steps(tiling)
    slots = gpu.multiprocessors * held
    waves, whole = blocks / slots, -(-blocks // slots)
    block = EACH_BLOCK + steps * step
    begun = WAVE * (whole - 1)
    if tiling.blocks:
        begun, body = 0.0, block * -(-blocks // tiling.blocks)
    elif whole == 1:
        body = EACH_BLOCK + longest * step
    elif tiling.attention.ahead is None:
        body = block * (TAIL * whole + (1 - TAIL) * waves)
    else:  # the shortest blocks come last
        body = block * (waves + TAIL)
    return Prediction(
        (("ramp", RAMP_NS + begun / CLOCK), ("steps", body / CLOCK)),
    )


def _steps(tiling: AttentionTiling) -> tuple[float, int]:
    """Return how many steps blocks have: in the mean, and at most."""
    ahead, tall = tiling.attention.ahead, ROWS * tiling.groups
    if ahead is None:
        return tiling.steps, tiling.steps
    ends = [(k + 1) * tall + ahead for k in range(tiling.tiles[1])]
    counts = [max(1, min(tiling.steps, -(-end // tiling.keys))) for end in ends]
    return sum(counts) / len(counts), max(counts)


def estimate_registers(nest: Nest, schedule: Schedule) -> int:
    """Return about how many registers a thread will use."""
    return registers(_tiling(nest, schedule))
