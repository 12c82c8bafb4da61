"""Reductions of a GPU's threads: over the lanes of a vector, a warp, a block.

Threads of one warp reduce by shuffles, in which each ends with the total. What they came
to in several warps goes through shared memory: a slot for each part and one barrier,
behind which every thread takes in all parts, in the same order. Each call has slots of
its own, so that no second barrier guards them but in a loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from steelyard_kernels.ir.builder import Builder
from steelyard_kernels.ir.loops import Buffer, Const, Operand, Type
from steelyard_kernels.schedule.gpu import WARP


@dataclass(frozen=True, slots=True)
class Slots:
    """Shared memory of a group's `parts`, each a vector of so many lanes."""

    buffer: Buffer
    lanes: int
    parts: int


@dataclass(frozen=True, slots=True)
class Group:
    """Threads of a block that reduce together: `count` of them, `distance` apart.

    Both are powers of two where neither is a multiple of a warp. `thread` is which of
    the block's `threads` this is (0: there is one group).
    """

    thread: Operand
    count: int
    distance: int = 1
    threads: int = 0

    @property
    def span(self) -> int:
        """The threads from a group's first to the first of a group behind it."""
        return self.count * self.distance

    @property
    def groups(self) -> int:
        """How many spans a block has."""
        return max(1, self.threads // self.span)

    @property
    def parts(self) -> int:
        """How many parts of a value meet in shared memory; 1: none goes there."""
        return self.count // min(self.count, max(1, WARP // self.distance))


def across_lanes(b: Builder, combine: str, vector: Operand) -> Operand:
    """Emit the reduction of a vector's lanes, of which there is a power of two."""
    if vector.type.lanes == 1:
        return vector
    if combine != "multiply":
        return b.let(f"reduce_{combine}", vector)
    lanes = [b.let("extract", vector, b.number(k)) for k in range(vector.type.lanes)]
    return reduce(lambda x, y: b.let(combine, x, y), lanes)


def across_warp(
    b: Builder, combine: str, value: Operand, count: int = WARP, distance: int = 1
) -> Operand:
    """Emit the reduction of a value over threads of a warp, all of which must be there."""
    apart = count * distance // 2
    while apart >= distance:
        other = b.let("shuffle_xor", value, b.number(apart))
        value = b.let(combine, value, other)
        apart //= 2
    return value


def prefix_of_lanes(
    b: Builder, combine: str, vector: Operand, neutral: float
) -> Operand:
    """Emit each lane's total with all lanes before it.

    Hillis and Steele, "Data parallel algorithms", 1986.
    """
    lanes, nothing = vector.type.lanes, Const(neutral, vector.type)
    step = 1
    while step < lanes:
        moved = b.let("slide", vector, nothing, b.number(step))
        vector = b.let(combine, moved, vector)
        step *= 2
    return vector


def prefix_of_group(
    b: Builder, group: Group, combine: str, value: Operand, neutral: float
) -> tuple[Operand, Operand]:
    """Emit the total of the threads before each one of a group, and that of all.

    All of a block's threads must come where a group is in several warps: there is a barrier.
    """
    parts, apart = group.parts, group.distance
    near = group.count // parts
    lane = b.at("rem", group.thread, WARP)
    own = b.at("rem", b.at("div", group.thread, apart), near)
    nothing = Const(neutral, value.type)

    def before(value: Operand, step: int) -> Operand:
        there = b.at("maximum", b.at("subtract", lane, step * apart), 0)
        other = b.let("shuffle", value, there, b.number(WARP))
        has = b.let("greater_equal", own, b.number(step))
        return b.let("where", has, other, nothing)

    step = 1
    while step < near:
        value = b.let(combine, before(value, step), value)
        step *= 2
    if near == 1:
        return _behind_parts(b, group, combine, value, nothing)
    last = b.at("add", lane, b.at("multiply", b.at("subtract", near - 1, own), apart))
    total = b.let("shuffle", value, last, b.number(WARP))
    if parts == 1:
        return before(value, 1), total
    return _behind_parts(b, group, combine, total, before(value, 1))


def _behind_parts(
    b: Builder, group: Group, combine: str, total: Operand, before: Operand
) -> tuple[Operand, Operand]:
    """Emit what of a group is before each thread of a part, and all: by shared memory."""
    parts = group.parts
    near = group.count // parts
    slots = _slots(b, total.type, parts, parts * group.distance * group.groups)
    _put(b, group, near, [slots], [total])
    b.effect("barrier")
    start = first_slot(b, group, parts)
    mine = b.at("rem", b.at("div", group.thread, near * group.distance), parts)
    lanes = total.type.lanes
    aligned = lanes * total.type.dtype.bytes if lanes > 1 else 0
    places = [b.at("add", start, part * group.distance) for part in range(parts)]
    found = [
        b.load(slots.buffer, b.at("multiply", at, lanes), lanes, None, aligned)
        for at in places
    ]
    for part, value in reversed(list(enumerate(found[:-1]))):
        is_before = b.let("less", b.number(part), mine)
        before = b.let("where", is_before, b.let(combine, value, before), before)
    return before, reduce(lambda x, y: b.let(combine, x, y), found)


def across_group(
    b: Builder, group: Group, combines: Sequence[str], values: Sequence[Operand]
) -> list[Operand]:
    """Emit the reductions of values over a group; every thread gets the totals.

    All of a block's threads must come: there is a barrier, one for all values, unless
    the values have one part.
    """
    parts = group.parts
    near = group.count // parts
    pairs = list(zip(combines, values, strict=True))
    totals = [across_warp(b, *pair, near, group.distance) for pair in pairs]
    if parts == 1 or not totals:
        return totals
    room = parts * group.distance * group.groups
    slots = [_slots(b, total.type, parts, room) for total in totals]
    _put(b, group, near, slots, totals)
    b.effect("barrier")
    start = first_slot(b, group, parts)
    return [
        _across_slots(b, combine, slot, start, group)
        for combine, slot in zip(combines, slots, strict=True)
    ]


def _slots(b: Builder, type_: Type, parts: int, room: int) -> Slots:
    buffer = b.alloc("part", type_.dtype, room * type_.lanes, "shared")
    return Slots(buffer, type_.lanes, parts)


def _put(
    b: Builder,
    group: Group,
    near: int,
    slots: Sequence[Slots],
    totals: Sequence[Operand],
) -> None:
    """Emit the stores of every part, by the first of the threads that have it."""
    together = near * group.distance
    at = b.at("div", group.thread, together)
    first = None
    if near == 1:
        at = group.thread
    elif group.distance == 1:
        first = b.let("equal", b.at("rem", group.thread, together), b.number(0))
    else:
        place = b.at("rem", group.thread, together)
        first = b.let("less", place, b.number(group.distance))
        at = b.at("add", b.at("multiply", at, group.distance), place)
    for slot, value in zip(slots, totals, strict=True):
        lanes, buffer = slot.lanes, slot.buffer
        alignment = lanes * buffer.dtype.bytes if lanes > 1 else 0
        mask = first and b.splat(first, lanes)
        b.store(buffer, b.at("multiply", at, lanes), value, mask, alignment=alignment)


def first_slot(b: Builder, group: Group, parts: int) -> Operand:
    """Emit the slot of a group's first part."""
    start = b.number(0)
    if group.groups > 1:
        number = b.at("div", group.thread, group.span)
        start = b.at("multiply", number, parts * group.distance)
    if group.distance > 1:
        start = b.at("add", start, b.at("rem", group.thread, group.distance))
    return start


def _across_slots(
    b: Builder, combine: str, slots: Slots, start: Operand, group: Group
) -> Operand:
    """Emit the reduction of the slots of every part, by vectors as wide as fit."""
    buffer, lanes = slots.buffer, slots.lanes
    found = []
    part = 0
    while part < slots.parts:
        left = slots.parts - part
        several = 1 << (left.bit_length() - 1)
        if group.groups > 1:
            several = left & -left
        if group.distance > 1 or lanes > 1:
            several = 1
        at = b.at("add", start, part * group.distance)
        alignment = several * lanes * buffer.dtype.bytes if several * lanes > 1 else 0
        value = b.load(
            buffer, b.at("multiply", at, lanes), several * lanes, None, alignment
        )
        found.append(across_lanes(b, combine, value) if several > 1 else value)
        part += several
    return reduce(lambda x, y: b.let(combine, x, y), found)
