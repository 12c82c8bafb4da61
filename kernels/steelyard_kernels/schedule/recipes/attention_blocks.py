"""The recipe of attention for a CPU: queries of a tile, keys of a step, blocks of registers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Final

from steelyard_kernels.nest.axes import Nest
from steelyard_kernels.nest.weighing import Weighing
from steelyard_kernels.schedule.attention_blocking import (
    AttentionBlocking,
    attended,
    problem,
)
from steelyard_kernels.schedule.model import Machine
from steelyard_kernels.schedule.recipes.blocks import fit, part, shapes
from steelyard_kernels.schedule.schedule import Refuse, Schedule, legal

# Queries of a tile, about, keys of a step, and how many shapes of blocks: the likely and all.
TALL: Final = (64, 256), (32, 64, 128, 256)
KEYS: Final = (128,), (64, 128, 256)
SHAPES: Final = 1, 4


def on_cpu(
    nest: Nest, machine: Machine, *, likely: bool, refuse: Refuse
) -> Iterator[Schedule]:
    """Yield the legal blockings of attention; none where a nest is none."""
    whole = attended(nest)
    if isinstance(whole, str):
        return iter(())
    every = _blockings(whole, machine, likely=likely)
    return legal(every, lambda each: problem(each, machine), refuse)


def _blockings(
    whole: Weighing, machine: Machine, *, likely: bool
) -> Iterator[AttentionBlocking]:
    """Yield blockings: those that are `likely`, or all."""
    _, m, columns, n = whole.sums.extents
    lanes, every = machine.lanes(whole.sums.dtype.bytes), not likely
    seen = set()
    for (rows, vectors), tall, keys, shared in product(
        shapes(whole.sums, machine, lanes)[: SHAPES[every]],
        TALL[every],
        KEYS[every],
        (True,) if likely else (True, False),
    ):
        most = (machine.registers - 1) // (rows + 1)
        beside = max(1, min(most, -(-n // lanes)))
        unit = lanes * beside
        step = -(-part(n, keys, lanes) // unit) * unit
        down, over = fit(m, rows, tall), -(-columns // (lanes * vectors))
        key = rows, vectors, down, step, shared
        if key not in seen:
            seen.add(key)
            yield AttentionBlocking(
                whole.sums,
                rows,
                lanes,
                vectors,
                down,
                over,
                step,
                (False, True),
                shared,
                weighing=whole,
                beside=beside,
            )
