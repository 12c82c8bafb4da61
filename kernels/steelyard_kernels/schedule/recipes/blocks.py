"""The recipe of sums of products for a CPU: blocks of registers, tiles, which copies."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Final

from steelyard_kernels.nest.axes import Nest
from steelyard_kernels.nest.contraction import Contraction, contraction_of
from steelyard_kernels.schedule.blocking import Blocking, problem
from steelyard_kernels.schedule.model import Machine
from steelyard_kernels.schedule.model_blocks import step_cycles
from steelyard_kernels.schedule.schedule import Schedule, Sought, legal

# How many shapes of blocks there are and are likely, those first that take the fewest
# cycles; depth of a core's tile, about, of the likely and of all. Rows and columns
# are so many that copies and sums fit its second cache, or half of them, or twice of them.
SHAPES: Final = 3, 10
DEPTHS: Final = (256,), (256, 512)
COPIES: Final = (True, True), (False, True), (True, False), (False, False)
# Multiplications that are handed to other cores: less is done before they wake.
SHARED: Final = 1 << 19
TURN: Final = 1 << 16  # that a core takes at a time, about, of many matrices


def on_cpu(nest: Nest, machine: Machine, sought: Sought) -> Iterator[Schedule]:
    """Yield the legal blockings of sums of products; none where a nest is no such sums."""
    whole = contraction_of(nest)
    if isinstance(whole, str) or not whole.rows:
        return iter(())
    every = _blockings(whole, machine, likely=sought.likely)
    return legal(every, lambda each: problem(each, machine), sought.refuse)


def _blockings(
    whole: Contraction, machine: Machine, *, likely: bool
) -> Iterator[Blocking]:
    """Yield blockings: those that are `likely`, or all."""
    outer, m, n, k = whole.extents
    lanes, every = machine.lanes(whole.dtype.bytes), not likely
    shares = (outer * m * n * k >= SHARED,) if likely else (True, False)
    turns = max(1, TURN // (m * n * k)) if whole.outer else 1
    depths = {part(k, most, lanes) for most in DEPTHS[every]}
    side = _side(whole, machine)
    tiles = (side // 2, side) if likely else (side // 2, side, 2 * side)
    seen: set[tuple[object, ...]] = set()
    for (rows, vectors), tall, wide, depth, copies, shared in product(
        shapes((m, n), machine, lanes)[: SHAPES[every]],
        tiles,
        (*tiles, -(-n // machine.threads)),
        sorted(depths),
        COPIES,
        shares,
    ):
        down, over = fit(m, rows, tall), fit(n, lanes * vectors, wide)
        steps = depth if any(copies) else k
        key = rows, vectors, down, over, steps, copies, shared
        if key not in seen:
            seen.add(key)
            yield Blocking(
                whole, rows, lanes, vectors, down, over, steps, copies, shared, turns
            )


def part(depth: int, most: int, lanes: int) -> int:
    """Return about so much of a depth, all parts alike, of whole vectors if not of all."""
    parts = -(-depth // most)
    return depth if parts == 1 else -(-depth // (parts * lanes)) * lanes


def _side(whole: Contraction, machine: Machine) -> int:
    """Return how many rows, and columns, a core's second cache has room for, copied."""
    most = machine.l2_bytes // (3 * DEPTHS[0][0] * whole.dtype.bytes)
    return 1 << max(1, most.bit_length() - 1)


def fit(extent: int, unit: int, most: int) -> int:
    """Return how many units make about so much of an extent, all tiles alike."""
    tiles = max(1, round(extent / most))
    return -(-extent // (tiles * unit))


def shapes(
    sums: tuple[int, int], machine: Machine, lanes: int
) -> list[tuple[int, int]]:
    """Return (rows, vectors) of blocks of m x n sums, the fewest cycles first."""
    m, n = sums

    def cycles(shape: tuple[int, int]) -> float:
        rows, vectors = shape
        blocks = -(-m // rows) * -(-n // (lanes * vectors))
        return blocks * step_cycles(rows, vectors, machine.registers)

    most = min(machine.registers // 2, -(-n // lanes))
    found = [
        (rows, vectors)
        for vectors in range(1, most + 1)
        for rows in range(1, min((machine.registers - 1) // vectors - 1, m) + 1)
    ]
    return sorted(found, key=cycles)
