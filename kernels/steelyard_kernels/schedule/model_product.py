"""What a tiled matrix product is predicted to take on a GPU: terms in nanoseconds.

A block brings its tiles into its multiprocessor, multiplies them, exchanges partial sums
and stores. Rates were fitted to 436 kernels of 19 shapes, both layouts of the columns,
in float16 and bfloat16 on an H200, measured warm, and what threads load to 9 shapes of
windows and odd rows; `tests/regret.py` says what its choices take over the best of the
measured. By mma.sync the cores' rate is the card's and what warps read of shared memory
counts besides; the other rates are the H200's, unfitted. So is what threads take by FMA:
the rate of such instructions, and a warp's wait for what it reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from steelyard_kernels.expression.expr import Apply
from steelyard_kernels.nest.axes import Nest
from steelyard_kernels.ops import OPERATIONS
from steelyard_kernels.schedule.contraction import HALF, LINE, UNIT, product_of
from steelyard_kernels.schedule.gpu import SIDES, WARP, Gpu
from steelyard_kernels.schedule.model import Prediction
from steelyard_kernels.schedule.product_tiling import (
    REPEATS,
    Tiling,
    registers,
    tiling_of,
)
from steelyard_kernels.schedule.schedule import Schedule

CLOCK: Final = 1.9  # cycles a nanosecond
RAMP_NS: Final = 1211.0
EXCHANGE_NS: Final = 152.0
WAVE_NS: Final = 1094.0  # that another wave of blocks begins later
EACH_STEP: Final = 14.0  # cycles of a step beside its copies and products
ENTER_RATE: Final = 66.1  # bytes a cycle into a multiprocessor
NARROW: Final = 1.65  # times as long for rows of 64 bytes, not of 128
L2_RATE: Final = 9897.0  # bytes a cycle out of the L2
LATENCY: Final = 1375.0  # cycles from a copy's start to its end
COPIED: Final = 4  # bytes that a thread copies at once, or loads and stores
ISSUE: Final = 3.8, 2.4  # cycles of a warp's load and store, or copy
ALONE: Final = 6.5  # that a warp waits for each load besides
EXCHANGE_RATE: Final = 9.9  # bytes a cycle and multiprocessor, between blocks
STORE_RATES: Final = 6.5, 50.6  # by each thread's own columns, by rows
CORE_SHARE: Final = 0.78  # of the tensor cores' peak
FMA_OTHERS: Final = 0.18  # instructions that are issued beside each FMA: not fitted
READ_LATENCY: Final = 45.0  # cycles from loads of shared memory to products of them
BY_WARP: Final = 0.62  # of a warpgroup's rate, where both are: not fitted
ISSUED: Final = 1.25  # cycles of an instruction behind the sums
# Of these more than the cache of instructions holds come so slowly, of one warp or more.
CACHED, FETCHED = 1400, 2.8
LEAST_COLUMNS: Final = 32  # less take no fewer cycles
OVERLAP: Final = 6.8  # the power of the mean of what goes on at a time
MOST_HELD: Final = 8  # blocks of a multiprocessor
READ_RATE: Final = 128.0  # bytes a cycle of a multiprocessor's shared memory
# Clusters that the card runs at a time, by their size, one block a multiprocessor: its
# parts have unlike numbers of multiprocessors.
CLUSTERS: Final = {1: 132, 2: 66, 3: 39, 4: 30, 6: 17, 8: 15}


def model(nest: Nest, gpu: Gpu) -> Callable[[Schedule], Prediction]:
    """Return what predicts one launch of a product under a schedule of tiles."""
    product = product_of(nest)
    assert not isinstance(product, str)

    def predict(schedule: Schedule) -> Prediction:
        tiling = tiling_of(product, schedule)
        assert tiling is not None
        return _predicted(tiling, gpu)

    return predict


def _predicted(tiling: Tiling, gpu: Gpu) -> Prediction:
    split, sums = tiling.split, tiling.tall * tiling.columns
    size = tiling.cluster
    room = size * CLUSTERS.get(size, CLUSTERS[8] * 8 // size)
    room = max(size, room * gpu.multiprocessors // CLUSTERS[1])
    if not tiling.bulk:
        room = gpu.multiprocessors
    held = gpu.blocks_resident(tiling.threads, registers(tiling), tiling.shared)
    held = max(1, min(held, MOST_HELD))
    blocks = tiling.turns * size
    parts = split if tiling.sliced else 1
    waves = -(-blocks // (room * held))
    beside = min(held, -(-blocks // room))
    body = _body(tiling, gpu, beside * parts, min(blocks, room * held) * parts)
    rate = READ_RATE / parts if tiling.sliced else EXCHANGE_RATE
    moved = sums * beside * 4 * (split - 1) / split / rate
    stored = _behind(tiling, beside * parts) + sum(
        sums
        * beside
        * tiling.sharing
        / size
        * o.value.node.dtype.bytes
        / STORE_RATES[tiling.is_staged(o)]
        for o in tiling.product.nest.outputs
    )
    begun = 0.0 if tiling.blocks else (waves - 1) * WAVE_NS
    return Prediction(
        (
            ("ramp", RAMP_NS + begun),
            ("tiles", waves * (body + _loads(tiling, beside * parts)) / CLOCK),
            ("exchange", waves * moved / CLOCK + EXCHANGE_NS * (size > 1)),
            ("stores", waves * stored / CLOCK),
        )
    )


def _behind(tiling: Tiling, working: int) -> float:
    """Return the cycles in which parts of blocks compute what follows from their sums."""
    columns = tiling.product.loops[tiling.product.axes[2]]
    each = sum(
        OPERATIONS[v.node.op].cost.narrow[1]
        for v in tiling.product.sums.behind
        if isinstance(v.node, Apply) and v.axes.intersection(columns)
    )
    instructions = each * tiling.repeats * tiling.owned / 2
    issued = ISSUED * tiling.consumers / WARP / SIDES * working
    return instructions * max(issued, FETCHED if instructions > CACHED else 0.0)


def _body(tiling: Tiling, gpu: Gpu, working: int, every: int) -> float:
    """Return the cycles of a block's steps, where so many parts of blocks work at a time.

    They work on one multiprocessor; `every` are those of the card.
    """
    tall, wide, steps = tiling.tall, tiling.columns, tiling.steps
    narrow = tiling.product.columns.across and wide % 64 > 0
    rows, columns = (
        count if factor.across else min(count, extent)
        for factor, count, extent in (
            (tiling.product.rows, tall, tiling.product.extents[1]),
            (tiling.product.columns, wide, tiling.product.extents[2]),
        )
    )
    brought = (rows + columns * (NARROW if narrow else 1)) * LINE
    enter = steps * brought * working / ENTER_RATE
    l2_rate = L2_RATE * gpu.multiprocessors / CLUSTERS[1]
    shared = every * steps * (rows + columns / tiling.sharing) * LINE / l2_rate
    cycles, read = REPEATS * tiling.groups * max(wide, LEAST_COLUMNS) / 2, 0.0
    alone = 0.0
    if tiling.cores.exact:
        cycles, read, alone = _by_fma(tiling, gpu)
        cycles *= CORE_SHARE
        read *= steps * working
    elif tiling.cores.by_warp:
        rate = gpu.product_rate * (1 if gpu.cores[0].by_warp else BY_WARP)
        each = rate / gpu.multiprocessors / CLOCK  # of a cycle
        cycles = 2 * tall * wide * (LINE // HALF) / each
        lines = tall + tiling.consumers // WARP * wide
        read = steps * lines * LINE * working / READ_RATE
    cores = steps * cycles * working / CORE_SHARE
    waits = steps * LATENCY / tiling.stages if tiling.ring else 0.0
    at_once = (enter, shared, cores, waits, read, steps * alone)
    mean: float = sum(x**OVERLAP for x in at_once) ** (1 / OVERLAP)
    return mean + steps * EACH_STEP


def _by_fma(tiling: Tiling, gpu: Gpu) -> tuple[float, float, float]:
    """Return the cycles of a block's step by FMA: of products, of reads, and of one warp.

    Of 32 lanes that read units of 16 bytes, few of which differ, a half is one access.
    """
    tall, wide, product = tiling.tall, tiling.columns, tiling.product
    lanes, turns = gpu.fma_lanes(product.added), LINE // UNIT
    warps = tiling.consumers // WARP
    each = tall * wide * product.step
    products = each / lanes + FMA_OTHERS * each / (SIDES * WARP)
    lines = tiling.cores.lines * tiling.repeats + 2 * wide // tiling.cores.pairs
    side = products * SIDES / warps  # of one of a multiprocessor's, by one warp
    return products, 2.0 * turns * lines * warps, side + turns * READ_LATENCY


def _loads(tiling: Tiling, working: int) -> float:
    """Return the cycles in which a block's threads load what no bulk copy brings.

    Beside as many others: warps issue in turn, and each waits for its own where it
    multiplies in between.
    """
    product, cycles = tiling.product, 0.0
    warps = tiling.consumers // WARP
    for factor, count in (
        (product.rows, tiling.tall),
        (product.columns, tiling.columns),
    ):
        if not (tiling.bulk and factor.bulk):
            copied = factor.lanes * product.dtype.bytes >= COPIED
            loads = count * product.step / factor.lanes / WARP
            alone = 0.0 if tiling.bulk or copied else loads / warps * ALONE
            cycles += loads * working * ISSUE[copied] + alone
    return tiling.steps * cycles


def estimate_registers(nest: Nest, schedule: Schedule) -> int:
    """Return about how many registers a thread will use."""
    product = product_of(nest)
    assert not isinstance(product, str)
    tiling = tiling_of(product, schedule)
    assert tiling is not None
    return registers(tiling)
