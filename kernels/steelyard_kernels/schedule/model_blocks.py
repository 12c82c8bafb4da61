"""What sums of products are predicted to take in a CPU's registers: nanoseconds.

A block of registers takes as long as its multiplications, its loads, or the latency of
its sums, whichever is the longest. Beside these there are copies, and what follows from
the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import gcd, prod
from typing import Final, TypeVar

from steelyard_kernels.nest.axes import Nest
from steelyard_kernels.nest.contraction import contraction_of
from steelyard_kernels.schedule.blocking import Blocking, Panel, blocking_of
from steelyard_kernels.schedule.model import (
    LINE,
    PAGE_BYTES,
    Machine,
    Prediction,
    bounded,
    traffic,
)
from steelyard_kernels.schedule.schedule import Schedule

CYCLE_NS: Final = 0.26
RATE: Final = 2.0  # multiplications, and loads, a cycle
LATENCY: Final = 4.0  # cycles from a sum to the next
STEP: Final = 0.5  # cycles of an index of the depth beside these
# Of the caches of EPYC and Xeon: the first one's sets repeat with every page. Cycles that
# a vector comes later from the third cache than from the second, seen at 2048 columns.
WAYS: Final = 8
FAR: Final = 9.0
NEAR: Final = 0.8  # of the second cache, that stays
BEYOND: Final = 1.0  # cycles of a vector of copies beyond that, which are read in order
# Cycles of a line of a factor in place that comes from the second cache, where vectors are
# half a line (Zen 3); where they are whole ones a core does not wait for it (Zen 5).
LINE_WAIT: Final = 1.5
FULL: Final = 0.5  # cycles of an index of the depth where sums take the last register
BLOCK: Final = 20.0  # cycles of a block beside its depth
MOVED: Final = 1.0  # cycles of storing or loading a vector of sums
ROW: Final = 10.0  # cycles of a row that is copied, or of what follows from its sums
COPY: Final = 2.5  # cycles of copying a vector
TURN: Final = 5.0  # of one that is transposed
MASKED: Final = 12.0  # of one of which some lanes may not exist
SINGLE: Final = 6.0  # of an element alone
BEHIND: Final = 0.7  # cycles of a vector's operation behind the sums

B = TypeVar("B", bound=Blocking)


def model(nest: Nest, machine: Machine) -> Callable[[Schedule], Prediction]:
    """Return what predicts one launch of sums of products under a blocking."""
    product = contraction_of(nest)
    assert not isinstance(product, str)
    blocked = partial(blocking_of, product)
    return predicting(nest, machine, blocked, partial(_cycles, machine=machine))


def predicting(
    nest: Nest,
    machine: Machine,
    blocked: Callable[[Schedule], B | None],
    cycles: Callable[[B], Mapping[str, float]],
) -> Callable[[Schedule], Prediction]:
    """Return what predicts a launch under a blocking by the cycles of its parts."""
    moved = traffic(nest.program)

    def predict(schedule: Schedule) -> Prediction:
        blocking = blocked(schedule)
        assert blocking is not None
        each = CYCLE_NS / (machine.threads if blocking.shared else 1)
        terms = [(name, count * each) for name, count in cycles(blocking).items()]
        chunks = -(-prod(blocking.blocks) // blocking.turns)
        return bounded(terms, moved, schedule, machine, chunks)

    return predict


def _cycles(blocking: Blocking, machine: Machine) -> dict[str, float]:
    """Return the cycles of blocks, copies, and what follows."""
    product, lanes = blocking.product, blocking.lanes
    outer, m, n, k = product.extents
    _, down, over = blocking.blocks
    rows = _units(m, blocking.rows, blocking.tile[0])
    columns = _units(n, blocking.columns, blocking.tile[1])
    count = outer * rows * columns
    step = step_cycles(blocking.rows, blocking.vectors, machine.registers)
    step += _missed(blocking, machine)
    moves = 2 * blocking.rows * blocking.vectors * MOVED + BLOCK
    multiplied = count * (k * step + moves * blocking.steps)
    left, right = blocking.panels()
    copied = outer * (
        copy_cycles(left, m * over, k, blocking)
        + copy_cycles(right, n * down, k, blocking)
    )
    vectors = m * -(-n // lanes)
    statements = len(product.behind) + 2
    behind = outer * (m * columns * ROW + vectors * statements * BEHIND)
    return {"multiply": multiplied, "copies": copied, "behind": behind}


def step_cycles(rows: int, vectors: int, registers: int = 32) -> float:
    """Return the cycles of a block for each index of the depth."""
    beside = STEP + FULL * ((rows + 1) * vectors + 1 >= registers)
    return max(rows * vectors / RATE, (rows + vectors) / RATE, LATENCY) + beside


def _missed(blocking: Blocking, machine: Machine) -> float:
    """Return the cycles that an index of the depth waits for what lies in place.

    Rows of columns that are as far apart as a power of two share few sets of the second
    cache, of which they throw each other out; so do rows of the first cache's lines. And
    what is copied throws itself out where it fills more than most of the cache.
    """
    product, waits = blocking.product, 0.0
    left, right = blocking.panels()
    size = product.dtype.bytes
    if not right.copied:
        apart = (product.walks(right.value.offset, product.depth) or 0) * size
        depth = min(blocking.depth, product.extents[3])
        share = _held(apart, machine.l2_bytes // WAYS) / depth
        waits += max(0.0, 1 - share) * FAR * blocking.vectors
        if machine.vector_bytes < LINE and depth > _held(apart, PAGE_BYTES):
            waits += LINE_WAIT * -(-blocking.columns * size // LINE)
    if not left.copied:
        apart = (product.walks(left.value.offset, product.rows) or 0) * size
        waits += blocking.rows * (blocking.rows > _held(apart, PAGE_BYTES))
    near = NEAR * machine.l2_bytes / blocking.stack
    return waits + max(0.0, 1 - near) * BEYOND * blocking.vectors


def _held(apart: int, period: int) -> int:
    """Return how many lines so far apart a cache holds whose sets repeat with a period."""
    return WAYS * (period // gcd(apart, period)) if apart else period


def _units(extent: int, unit: int, tile: int) -> int:
    """Return how many blocks there are along an axis that is cut in tiles."""
    tiles, rest = divmod(extent, tile)
    return tiles * (tile // unit) + -(-rest // unit)


def copy_cycles(panel: Panel, own: int, depth: int, blocking: Blocking) -> float:
    """Return the cycles of copying so many rows or columns of all the depth."""
    if not panel.copied:
        return 0.0
    elements = own * depth
    if panel.lanes == 1 and blocking.lanes > 1:
        return elements * SINGLE
    vectors = elements / panel.lanes
    if panel.turned:
        return vectors * TURN
    if panel.by_rows:
        length = blocking.product.nest.extents[panel.axes[-1]]
        vectors = elements / length * -(-length // panel.lanes)
        return vectors * MASKED + elements / length * ROW
    row = blocking.tile[panel.axes == blocking.product.columns]
    length = min(own, row) if panel.across else min(depth, blocking.depth)
    return vectors * COPY + elements / length * ROW
