"""Reductions of a GPU's threads: over the lanes of a vector, a warp, a block.

Threads of one warp reduce by shuffles, in which each ends with the total. What they came
to in several warps goes through shared memory: a slot for each part and one barrier,
behind which every thread takes in all parts, in the same order. Each call has slots of
its own, so that no second barrier guards them but in a loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from msgspec import Struct

from steelyard_kernels.ir.builder import Builder
from steelyard_kernels.ir.loops import Buffer, Const, Operand, typed
from steelyard_kernels.schedule.gpu import WARP


class Slots(Struct, frozen=True):
    """Shared memory of a group's `parts`, each a vector of so many lanes."""

    buffer: Buffer
    lanes: int
    parts: int


class Group(Struct, frozen=True):
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
    b: Builder, group: Group, combine: str, values: Sequence[Operand], neutral: float
) -> tuple[list[Operand], Operand]:
    """Emit the total before each value of a group's threads, and that of all.

    The first value of all threads comes before the second one of any. All of a block's
    threads must come where a group is in several warps: there is a barrier, one for all.
    """
    pairs = [_prefix_of_warp(b, group, combine, value, neutral) for value in values]
    if _slots_of_lane(group, pairs):
        return _by_warps(b, group, combine, pairs, neutral)
    if group.parts > 1:
        pairs = _behind_parts(b, group, combine, pairs)
    befores, all_before = [pairs[0][0]], pairs[0][1]
    for before, total in pairs[1:]:
        befores.append(b.let(combine, all_before, before))
        all_before = b.let(combine, all_before, total)
    return befores, all_before


def _prefix_of_warp(
    b: Builder, group: Group, combine: str, value: Operand, neutral: float
) -> tuple[Operand, Operand]:
    """Emit the total of a part's threads before each one, and that of them all."""
    apart, near = group.distance, group.count // group.parts
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
        return nothing, value
    last = b.at("add", lane, b.at("multiply", b.at("subtract", near - 1, own), apart))
    return before(value, 1), b.let("shuffle", value, last, b.number(WARP))


def _slots_of_lane(group: Group, pairs: Sequence[tuple[Operand, Operand]]) -> int:
    """Return how many parts of several values a lane takes where every warp adds all up.

    0: each thread takes in those that it needs, of one value, or beside other groups.
    """
    alone = group.distance == group.groups == pairs[0][1].type.lanes == 1
    if len(pairs) == 1 or group.parts == 1 or not alone:
        return 0
    for each in (1, 2, 4, 8):
        if len(pairs) * -(-group.parts // each) <= WARP:
            return each
    return 0


def _slots_of_warp(
    b: Builder,
    group: Group,
    pairs: Sequence[tuple[Operand, Operand]],
    neutral: float,
    each: int,
) -> tuple[int, Operand]:
    """Emit handing all parts to every warp; return the slots of a value, and a lane's."""
    parts, dtype = group.parts, pairs[0][1].type.dtype
    nothing = Const(neutral, typed(dtype, each))
    room = -(-parts // each) * each
    slots = b.alloc("part", dtype, len(pairs) * room, "shared")
    lane = b.at("rem", group.thread, WARP)
    part = b.at("div", group.thread, WARP)
    is_first = b.let("equal", lane, b.number(0))
    for k, (_, total) in enumerate(pairs):
        b.store(slots, b.at("add", part, k * room), total, is_first)
    b.effect("barrier")
    begin = b.at("multiply", lane, each)
    inside = b.let("less", begin, b.number(len(pairs) * room))
    left = b.at("subtract", parts, b.at("rem", begin, room))
    mask = b.mask_below(b.let("where", inside, left, b.number(0)), each)
    aligned = each * dtype.bytes if each > 1 else 0
    taken = b.load(slots, begin, each, mask, aligned)
    return room, b.let("where", mask, taken, nothing)


def _by_warps(
    b: Builder,
    group: Group,
    combine: str,
    pairs: Sequence[tuple[Operand, Operand]],
    neutral: float,
) -> tuple[list[Operand], Operand]:
    """Emit the total before each value, and that of all, by a running total of parts.

    All of the first value come before those of the second. Every warp has several of them
    in a lane; a value's begin with a lane.
    """
    each, part = _slots_of_lane(group, pairs), b.at("div", group.thread, WARP)
    room, taken = _slots_of_warp(b, group, pairs, neutral, each)
    sums = prefix_of_lanes(b, combine, taken, neutral)
    last = b.let("extract", sums, b.number(each - 1)) if each > 1 else sums
    warp = Group(group.thread, WARP)
    before, total = _prefix_of_warp(b, warp, combine, last, neutral)
    mine = before
    for k in range(each - 1):
        own = b.let(combine, before, b.let("extract", sums, b.number(k)))
        here = b.let("equal", b.at("rem", part, each), b.number(k + 1))
        mine = b.let("where", here, own, mine)
    at = b.at("div", part, each)
    befores: list[Operand] = []
    for k, (near, _) in enumerate(pairs):
        source = b.at("add", at, k * (room // each))
        far = b.let("shuffle", mine, source, b.number(WARP))
        befores.append(b.let(combine, far, near))
    return befores, total


def _behind_parts(
    b: Builder, group: Group, combine: str, pairs: Sequence[tuple[Operand, Operand]]
) -> list[tuple[Operand, Operand]]:
    """Emit what of a group is before each thread of a part, and all: by shared memory.

    Each pair is what of its part is before a thread, and all of that.
    """
    parts, totals = group.parts, [total for _, total in pairs]
    slots, start = _handed(b, group, totals)
    near = group.count // parts
    mine = b.at("rem", b.at("div", group.thread, near * group.distance), parts)
    flags = [b.let("less", b.number(part), mine) for part in range(parts - 1)]
    made = []
    for (before, _), slot in zip(pairs, slots, strict=True):
        found = _parts(b, slot, start, group)
        for flag, value in reversed([*zip(flags, found, strict=False)]):
            before = b.let("where", flag, b.let(combine, value, before), before)  # noqa: PLW2901 # what it grows to
        made.append((before, reduce(lambda x, y: b.let(combine, x, y), found)))
    return made


def _parts(b: Builder, slots: Slots, start: Operand, group: Group) -> list[Operand]:
    """Emit loads of what all parts of a group came to."""
    lanes, buffer = slots.lanes, slots.buffer
    aligned = lanes * buffer.dtype.bytes if lanes > 1 else 0
    places = [
        b.at("multiply", b.at("add", start, part * group.distance), lanes)
        for part in range(slots.parts)
    ]
    return [b.load(buffer, at, lanes, None, aligned) for at in places]


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
    slots, start = _handed(b, group, totals)
    return [
        _across_slots(b, combine, slot, start, group)
        for combine, slot in zip(combines, slots, strict=True)
    ]


def _handed(
    b: Builder, group: Group, totals: Sequence[Operand]
) -> tuple[list[Slots], Operand]:
    """Emit the stores of every part, by the first of the threads that have it.

    Return where all find them, and the slot of a group's first part.
    """
    parts = group.parts
    near, room = group.count // parts, parts * group.distance * group.groups
    slots = []
    for total in totals:
        dtype, lanes = total.type.dtype, total.type.lanes
        slots.append(
            Slots(b.alloc("part", dtype, room * lanes, "shared"), lanes, parts)
        )
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
    b.effect("barrier")
    return slots, first_slot(b, group, parts)


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
