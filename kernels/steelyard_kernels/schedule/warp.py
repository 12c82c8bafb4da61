"""Reductions of a GPU's threads: over the lanes of a vector, a warp, a block.

Warps reduce by shuffles, in which every lane ends with the total; a block does so
through one shared slot a warp and one barrier, behind which every thread adds up all
of them, in the same order. Each call has slots of its own, so that no second barrier
guards them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from steelyard_kernels.ir.builder import Builder
from steelyard_kernels.ir.loops import Buffer, Operand
from steelyard_kernels.schedule.gpu import WARP


@dataclass(frozen=True, slots=True)
class Group:
    """The threads that reduce together: one warp, or all warps of a block.

    `thread` is which of them this is; `warps` how many warps they are.
    """

    thread: Operand
    warps: int


def across_lanes(b: Builder, combine: str, vector: Operand) -> Operand:
    """Emit the reduction of a vector's lanes; `combine` is "add", "maximum" or "minimum"."""
    if vector.type.lanes == 1:
        return vector
    return b.let(f"reduce_{combine}", vector)


def across_warp(b: Builder, combine: str, value: Operand) -> Operand:
    """Emit the reduction of a scalar over a warp, all of whose lanes must be there."""
    distance = WARP // 2
    while distance:
        other = b.let("shuffle_xor", value, b.number(distance))
        value = b.let(combine, value, other)
        distance //= 2
    return value


def across_group(
    b: Builder, group: Group, combines: Sequence[str], values: Sequence[Operand]
) -> list[Operand]:
    """Emit the reductions of scalars over a group; every thread gets the totals.

    All of a block's threads must come: there is a barrier, one for all values.
    """
    totals = [across_warp(b, *pair) for pair in zip(combines, values, strict=True)]
    if group.warps == 1 or not totals:
        return totals
    warp = b.at("div", group.thread, WARP)
    first = b.let("equal", b.at("rem", group.thread, WARP), b.number(0))
    slots = [b.alloc("part", x.type.dtype, group.warps, "shared") for x in totals]
    for slot, value in zip(slots, totals, strict=True):
        b.store(slot, warp, value, first)
    b.effect("barrier")
    return [
        _across_slots(b, combine, slot, group.warps)
        for combine, slot in zip(combines, slots, strict=True)
    ]


def _across_slots(b: Builder, combine: str, slot: Buffer, warps: int) -> Operand:
    """Emit the reduction of a shared slot of every warp, by vectors as wide as fit."""
    parts = []
    at = 0
    while at < warps:
        lanes = 1 << ((warps - at).bit_length() - 1)
        part = b.load(slot, at, lanes, alignment=lanes * slot.dtype.bytes)
        parts.append(across_lanes(b, combine, part))
        at += lanes
    return reduce(lambda x, y: b.let(combine, x, y), parts)
