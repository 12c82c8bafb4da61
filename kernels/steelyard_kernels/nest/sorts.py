"""Sorts of elements in a thread's memory, or by a block's threads in theirs.

An element is an int32 key above its place in one int64, or an int64 key and its place in
two arrays: no two are equal. A thread of a CPU counts how many of few elements are before
each, and moves more of them by a digit of their keys at a time, the lowest first. A GPU's
threads compare and exchange.

Runs in order are merged, one element after another. The first elements of both together
that are no more than any other are so many of each: a binary search along a diagonal of
the merge path finds how many. O. Green, R. McColl and D. A. Bader, "GPU merge path: a GPU
merging algorithm", 2012.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from steelyard_kernels import dtypes
from steelyard_kernels.ir.builder import Builder, Index, const
from steelyard_kernels.ir.loops import Buffer, Operand
from steelyard_kernels.schedule.warp import prefix_of_lanes

Element: TypeAlias = tuple[Operand, ...]
Let: TypeAlias = Callable[..., Operand]

ABOVE: Final = 32
"""Bits of an element below an int32 key."""
COUNTED: Final = 64
"""Elements that are compared with one another: fewer than a digit has values."""
LANES: Final = 8
BESIDE: Final = 4
MANY: Final = 1 << 11
"""Elements that are worth digits of 11 bits, whose counters a first cache holds."""


def keyed(let: Let, key: Operand, place: Operand, *, packs: bool) -> Element:
    """Emit an element of a key and a place, both int64; `packs`: the key is an int32."""
    if not packs:
        return key, place
    above = const(ABOVE, dtypes.int64, key.type.lanes)
    return (let("bitwise_or", let("bitwise_left_shift", key, above), place),)


def is_before(let: Let, x: Element, y: Element) -> Operand:
    """Emit whether an element is before another."""
    less = let("less", x[0], y[0])
    if len(x) == 1:
        return less
    tie = let("bitwise_and", let("equal", x[0], y[0]), let("less", x[1], y[1]))
    return let("bitwise_or", less, tie)


class Sharing(Struct, frozen=True):
    """Threads that walk a line together: so many, this one's `number`.

    A block has `rows` of such, this is `row`. `again`: what they do is done in turns.
    """

    number: Operand
    count: int
    row: Index
    rows: int
    again: bool


class Room(Struct, frozen=True):
    """Memory of elements, from one on."""

    buffers: tuple[Buffer, ...]
    begin: Index = 0

    @property
    def packs(self) -> bool:
        """Whether keys are int32."""
        return len(self.buffers) == 1

    def load(self, b: Builder, at: Index, lanes: int = 1) -> Element:
        """Emit the elements from a place on."""
        start = b.at("add", self.begin, at)
        return tuple([b.load(each, start, lanes) for each in self.buffers])

    def store(
        self, b: Builder, at: Index, value: Element, mask: Operand | None = None
    ) -> None:
        """Emit storing elements from a place on."""
        start = b.at("add", self.begin, at)
        for buffer, each in zip(self.buffers, value, strict=True):
            b.store(buffer, start, each, mask)

    def behind(self, b: Builder, count: Index) -> Room:
        """Return the memory from another element on."""
        return replace(self, begin=b.at("add", self.begin, count))


def sort(b: Builder, room: Room, extent: int) -> Index:
    """Emit a sort by one thread of a CPU; return from where on the elements lie.

    They begin at 0 of memory of twice as many, rounded up to vectors.
    """
    if extent <= COUNTED:
        return _by_rank(b, room, extent)
    source: Index = 0
    bits, width = 11 if extent >= MANY else 8, 32 if room.packs else 64
    counts = b.alloc("counts", dtypes.int32, 1 << bits)
    for low in range(0, width, bits):
        digit = _Digit(counts, low + 64 - width, min(bits, width - low))
        source = digit.moved(b, room, extent, source)
    return source


def _by_rank(b: Builder, room: Room, extent: int) -> int:
    """Emit moving each element behind as many as are before it."""
    several = min(BESIDE, -(-extent // LANES))  # vectors that are compared at a time
    step = several * LANES
    to = -(-extent // step) * step
    ranks = b.alloc("ranks", dtypes.int64, to)
    zero, one = (const(x, dtypes.int64, LANES) for x in (0, 1))
    with b.loop(0, extent, step) as block:
        starts = [b.at("add", block.var, LANES * k) for k in range(several)]
        mine = [room.load(b, start, LANES) for start in starts]
        with b.loop(0, extent, 1, *[zero] * several) as other:
            each = tuple([b.splat(x, LANES) for x in room.load(b, other.var)])
            before = [is_before(b.let, each, own) for own in mine]
            pairs = zip(before, other.carried, strict=True)
            other.yields(
                *[b.let("where", x, b.let("add", rank, one), rank) for x, rank in pairs]
            )
        for start, rank in zip(starts, other.results, strict=True):
            b.store(ranks, start, rank)
    with b.loop(0, extent, 1) as loop:
        at = b.at("add", b.load(ranks, loop.var), to)
        room.store(b, at, room.load(b, loop.var))
    return to


class _Digit(Struct, frozen=True):
    """Some bits of elements' keys, from one on, and counters of their values.

    D. E. Knuth, "The Art of Computer Programming", volume 3, 2nd edition, 1998,
    algorithm 5.2.5R.
    """

    counts: Buffer
    low: int
    bits: int

    def moved(self, b: Builder, room: Room, extent: int, source: Index) -> Operand:
        """Emit moving elements to the other half of memory; return where they lie then.

        They stay where all have one value.
        """
        size, counts = 1 << self.bits, self.counts
        zeros = const(0, dtypes.int32, 2 * LANES)
        with b.loop(0, size, 2 * LANES) as loop:
            b.store(counts, loop.var, zeros)
        elements = room.behind(b, source)
        with b.loop(0, extent, 1) as loop:
            self._count(b, self._of(b, elements.load(b, loop.var)))
        first = b.load(counts, self._of(b, elements.load(b, 0)))
        every = b.let("equal", first, const(extent, dtypes.int32))
        with b.branch(every) as branch:
            branch.gives(b.number(source))
            branch.otherwise()
            self._begin(b, size)
            to = b.at("subtract", extent, source)
            with b.loop(0, extent, 1) as loop:
                each = elements.load(b, loop.var)
                at = b.cast(self._count(b, self._of(b, each)), b.index.dtype)
                room.behind(b, to).store(b, at, each)
            branch.gives(b.number(to))
        return branch.results[0]

    def _of(self, b: Builder, each: Element) -> Operand:
        """Emit an element's digit."""
        low, mask = (const(x, dtypes.int64) for x in (self.low, (1 << self.bits) - 1))
        return b.let("bitwise_and", b.let("shift_right_logical", each[0], low), mask)

    def _count(self, b: Builder, digit: Operand) -> Operand:
        """Emit counting a digit; return how many there were."""
        before = b.load(self.counts, digit)
        b.store(self.counts, digit, b.let("add", before, const(1, dtypes.int32)))
        return before

    def _begin(self, b: Builder, size: int) -> None:
        """Emit making counters of each digit those of all below it, a sign's of none."""
        lanes, dtype = 2 * LANES, dtypes.int32
        flip = b.number(size // 2 if self.low + self.bits == 64 else 0)
        with b.loop(0, size, lanes, const(0, dtype)) as loop:
            (total,) = loop.carried
            at = b.let("bitwise_xor", loop.var, flip)
            counts = b.load(self.counts, at, lanes)
            until = prefix_of_lanes(b, "add", counts, 0)
            before = b.let("subtract", until, counts)
            b.store(self.counts, at, b.let("add", b.splat(total, lanes), before))
            last = b.let("extract", until, b.number(lanes - 1))
            loop.yields(b.let("add", total, last))


def sort_together(b: Builder, room: Room, extent: int, sharing: Sharing | None) -> None:
    """Emit a sort by the threads of a group, or by one of a GPU.

    Batcher's bitonic merges, with the second run backwards: all exchanges put the lesser
    first, so that what lies beyond the extent would stay there and is left out. K. E.
    Batcher, "Sorting networks and their applications", 1968.
    """
    turns = (extent - 1).bit_length()
    pairs = 1 << max(turns - 1, 0)
    own, count = (sharing.number, sharing.count) if sharing else (b.number(0), 1)

    def exchanges(of: Callable[[Operand], tuple[Operand, Operand]]) -> None:
        with b.loop(0, pairs, count) as loop:
            first, second = of(b.at("add", loop.var, own))
            with b.branch(b.let("less", second, b.number(extent))):
                x, y = room.load(b, first), room.load(b, second)
                with b.branch(is_before(b.let, y, x)):
                    room.store(b, first, y)
                    room.store(b, second, x)
        if sharing:
            b.effect("barrier")

    def apart(pair: Operand, width: Operand) -> tuple[Operand, Operand]:
        """Emit where a run of twice the width begins, and how far in it the pair is."""
        inside = b.let("bitwise_and", pair, b.at("subtract", width, 1))
        return b.at("multiply", b.at("subtract", pair, inside), 2), inside

    def ends(pair: Operand, width: Operand) -> tuple[Operand, Operand]:
        run, inside = apart(pair, width)
        last = b.at("add", run, b.at("subtract", b.at("multiply", width, 2), 1))
        return b.at("add", run, inside), b.at("subtract", last, inside)

    def neighbours(pair: Operand, width: Operand) -> tuple[Operand, Operand]:
        run, inside = apart(pair, width)
        first = b.at("add", run, inside)
        return first, b.at("add", first, width)

    with b.loop(
        0, turns, 1, unroll=1
    ) as turn:  # spelled out they take seconds to build
        width = b.let("bitwise_left_shift", b.number(1), turn.var)
        exchanges(lambda pair: ends(pair, width))
        with b.loop(0, turn.var, 1, unroll=1) as step:
            near = b.let("shift_right_logical", width, b.at("add", step.var, 1))
            exchanges(lambda pair: neighbours(pair, near))


class Runs(Struct, frozen=True):
    """Two runs of `extent` keys each, one behind the other, and a `place` in their merge."""

    buffer: Buffer
    begin: Operand
    extent: int
    place: Operand

    def first(self, b: Builder, at: Operand) -> Operand:
        """Emit a key of the first run, or behind it one of the second."""
        return b.load(self.buffer, b.at("add", self.begin, at))

    def second(self, b: Builder, at: Operand) -> Operand:
        """Emit a key of the second run, or before it one of the first."""
        return self.first(b, b.at("add", at, self.extent))


def searched(b: Builder, runs: Runs) -> Operand:
    """Emit how many elements before a place are of the first run."""
    place, extent = runs.place, runs.extent
    low = b.at("maximum", b.at("subtract", place, extent), 0)
    high = b.at("minimum", place, extent)
    with b.loop(0, extent.bit_length(), 1, low, high, unroll=1) as loop:
        low, high = loop.carried
        middle = b.at("div", b.at("add", low, high), 2)
        other = b.at("subtract", b.at("subtract", place, 1), middle)
        first, second = runs.first(b, middle), runs.second(b, other)
        is_open = b.let("less", low, high)
        below = b.let("less_equal", first, second)
        more = b.let("bitwise_and", is_open, below)
        low = b.let("where", more, b.at("add", middle, 1), low)
        high = b.let("where", below, high, b.at("minimum", high, middle))
        loop.yields(low, high)
    return loop.results[0]


def taken(b: Builder, runs: Runs, count: Operand) -> tuple[Operand, Operand]:
    """Emit where the element of a place is, `count` before which are of the first run.

    And how many are before the next place.
    """
    other = b.at("subtract", runs.place, count)
    held = b.at("minimum", other, runs.extent - 1)
    first, second = runs.first(b, count), runs.second(b, held)
    ended = b.let("greater_equal", other, b.number(runs.extent))
    comes = b.let("bitwise_or", b.let("less_equal", first, second), ended)
    left = b.let("less", count, b.number(runs.extent))
    takes = b.let("bitwise_and", left, comes)
    found = b.let("where", takes, count, b.at("add", other, runs.extent))
    return found, b.let("where", takes, b.at("add", count, 1), count)
