"""Tiles of nests of one pass that read arrays along another axis than they write.

On a CPU these are rows of squares, which are transposed in registers:

    i:v16.core256 j:v16.r8.core keep-r

A core takes 256 squares of 16 x 16 along i, side by side with as many along j: eight, so
that it writes 512 bytes of a row at a time. A short last axis is one loop with the axis
before it, as `i:v32.core32 jk:v32.r8.core`, so that whole lines are written. On a GPU they
are tiles in shared memory:

    i:v4.thread16.grid j:v4.thread16.grid keep-shared

A block has a tile of two axes, the last and the one along which these arrays lie in
order. Its threads read the arrays by vectors along that axis and leave them in shared
memory; from there they are read by vectors along the last, as all else is. An axis'
threads and vectors are those of the second walk: in the first one there are as many
threads, by vectors of the other axis.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

from msgspec import Struct

from steelyard_kernels.expression.expr import Input
from steelyard_kernels.nest.axes import NAMES, Nest, Value
from steelyard_kernels.schedule.gpu import WARP
from steelyard_kernels.schedule.order import in_order
from steelyard_kernels.schedule.schedule import Cut, Place, Schedule

BANKS_BYTES = 128  # of shared memory, a word of 4 bytes each: what a warp has at once
SECTOR_BYTES = 32  # of memory: no less is read


class Transposed(Struct, frozen=True, eq=False):
    """The axis along which some arrays lie in order, as they do not along the last."""

    axis: int
    values: tuple[Value, ...]

    @property
    def element(self) -> int:
        """The bytes of the widest array's element."""
        return max([value.node.dtype.bytes for value in self.values])


@lru_cache(maxsize=2)  # asked for to propose schedules, to check and to lower one
def transposed_of(nest: Nest) -> Transposed | None:
    """Return what a nest reads along another axis than the last; None for other nests."""
    last = len(nest.extents) - 1
    every = frozenset(range(nest.space))
    if (
        nest.space <= last
        or nest.lines
        or nest.running
        or any(value.over for value in nest.values)
        or any(output.offset.axes != every for output in nest.outputs)
    ):
        return None
    found: dict[int, list[Value]] = {}
    for value in nest.values:
        if not isinstance(value.source, Input) or value.step or last not in value.axes:
            continue
        if value.offset.step(last) in {0, 1}:
            continue
        for axis in range(last):
            if value.offset.step(axis) == 1 and nest.extents[axis] > 1:
                found.setdefault(axis, []).append(value)
    if not found:
        return None
    axis = max(found, key=lambda k: (len(found[k]), k))
    return Transposed(axis, tuple(found[axis]))


class Tile(Struct, frozen=True):
    """What a block has of two axes, and how its threads share it.

    `rows` are along the axis that is read first, by vectors of `lanes`, `columns` along
    the last, by vectors of `wide`. In the second walk `down` times `across` threads
    share them.
    """

    rows: int
    columns: int
    lanes: int
    wide: int
    down: int
    across: int
    element: int  # bytes

    @classmethod
    def of(cls, of: Transposed, schedule: Schedule) -> Tile:
        """Read a schedule's tile."""
        first, last = schedule.cuts[of.axis], schedule.cuts[-1]
        return cls(
            first.size,
            last.size,
            first.at(Place.VECTOR),
            last.at(Place.VECTOR),
            first.at(Place.THREAD),
            last.at(Place.THREAD),
            of.element,
        )

    @property
    def threads(self) -> int:
        """The threads of a block."""
        return self.down * self.across

    @property
    def skew(self) -> int:
        """Elements between vectors' rows, so that a warp's stores meet in no bank."""
        return max(4, self.wide * self.element) // self.element

    @property
    def pitch(self) -> int:
        """Elements of shared memory from one vector's rows to the next one's."""
        return self.lanes * self.columns + self.skew

    @property
    def elements(self) -> int:
        """Elements of shared memory that an array takes."""
        return self.rows // self.lanes * self.pitch

    @property
    def readers(self) -> int:
        """The threads side by side that read the rows of a column."""
        apart = BANKS_BYTES // (self.skew * self.element)
        whole = SECTOR_BYTES // (self.lanes * self.element)
        most = min(self.rows // self.lanes, self.threads)
        return min(most, WARP, max(apart, whole))


def problem(nest: Nest, schedule: Schedule) -> str:
    """Say why a schedule's tile does not fit, and what to choose instead; "" if it does."""
    of = transposed_of(nest)
    if of is None:
        return (
            "keeps a tile in shared memory, but every array lies in order along the last "
            "axis; leave keep-shared out"
        )
    last = len(nest.extents) - 1
    for axis, cut in enumerate(schedule.cuts):
        cuts = cut.size > 1 and axis not in {of.axis, last}
        if len(cut.axes) > 1 or cut.place is not Place.GRID or cuts:
            tiled = f"{NAMES[of.axis]} and {NAMES[last]}"
            return (
                f"cuts {cut.axes} as no tile; cut {tiled} and leave each axis to grid"
            )
    tile = Tile.of(of, schedule)
    whole = tile.rows % tile.lanes == 0 and tile.rows // tile.lanes % tile.readers == 0
    if not whole or tile.threads % tile.readers:
        return (
            f"has {tile.readers} threads read {tile.rows} rows by {tile.lanes}; choose "
            "powers of two"
        )
    if tile.columns % (tile.threads // tile.readers):
        columns = tile.threads // tile.readers
        return f"has threads for {columns} columns of {tile.columns}; choose fewer"
    return ""


def shared_bytes(nest: Nest, schedule: Schedule) -> int:
    """Return the bytes of shared memory that a block of a legal schedule takes."""
    of = transposed_of(nest) if schedule.keep is Place.SHARED else None
    if of is None:
        return 0
    elements = Tile.of(of, schedule).elements
    return sum([elements * value.node.dtype.bytes for value in of.values])


def cuts_of(nest: Nest, of: Transposed, tile: Tile) -> tuple[Cut, ...]:
    """Return the cuts of a tile: a block for each index of all other axes."""
    cuts = []
    for axis in range(len(nest.extents)):
        factors: tuple[tuple[int, Place], ...] = ()
        if axis == of.axis:
            vectors = tile.rows // (tile.lanes * tile.down)
            factors = (
                (tile.lanes, Place.VECTOR),
                (vectors, Place.REGISTER),
                (tile.down, Place.THREAD),
            )
        elif axis == len(nest.extents) - 1:
            vectors = tile.columns // (tile.wide * tile.across)
            factors = (
                (tile.wide, Place.VECTOR),
                (vectors, Place.REGISTER),
                (tile.across, Place.THREAD),
            )
        cuts.append(Cut(NAMES[axis], (*factors, (1, Place.GRID))))
    return tuple(cuts)


def blocks(nest: Nest, schedule: Schedule) -> int:
    """Return how many blocks a launch has, for every cut's rest."""
    return prod([-(-nest.extent_of(cut.axes) // cut.size) for cut in schedule.cuts])


def joins(nest: Nest, of: Transposed) -> bool:
    """Say whether a CPU can walk the last two axes as one, in vectors.

    All but what is read along another axis lies along both as along one.
    """
    last, turned = len(nest.extents) - 1, {value.number for value in of.values}
    if of.axis == last - 1 or any(value.guards for value in nest.values):
        return False
    read = [v for v in nest.values if v.source is not None and v.number not in turned]
    offsets = [value.offset for value in read] + [out.offset for out in nest.outputs]
    extent = nest.extents[last]
    return all(o.step(last - 1) == (o.step(last) or 0) * extent for o in offsets)


def squares_problem(nest: Nest, schedule: Schedule) -> str:
    """Say why a schedule's squares do not fit, and what to do instead; "" if they do."""
    of, last = transposed_of(nest), len(nest.extents) - 1
    if of is None or any(value.guards for value in of.values):
        return (
            "keeps squares in registers, but every array lies in order along the last "
            "axis; leave keep-r out"
        )
    if not in_order(nest, last, [v for v in nest.values if v not in of.values]):
        return (
            f"keeps squares of {NAMES[of.axis]} and {NAMES[last]} in registers, but other "
            f"arrays do not lie in order along {NAMES[last]}; leave keep-r out"
        )
    *others, near = schedule.cuts
    far = schedule.cuts[of.axis] if of.axis < len(others) else near
    ends = [NAMES[last]] + [NAMES[last - 1 : last + 1]] * joins(nest, of)
    for cut in schedule.cuts:
        single = len(cut.axes) == 1 if cut is not near else cut.axes in ends
        if (
            not single
            or cut.place is not near.place
            or (cut.size > 1 and cut is not near and cut is not far)
        ):
            tiled = f"{NAMES[of.axis]} and {' or '.join(ends)}"
            return (
                f"cuts {cut.axes} as no squares; cut {tiled} and leave each axis alike"
            )
    lanes = {cut.at(Place.VECTOR) for cut in (far, near)}
    if len(lanes) > 1 or not lanes <= {2, 4, 8, 16, 32, 64}:
        shown = " x ".join(map(str, sorted(lanes)))
        return f"has squares of {shown} lanes; choose a power of two up to 64 for both"
    return ""
