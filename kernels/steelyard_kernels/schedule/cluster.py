"""Reductions over the blocks of a cluster, which write in each other's shared memory.

Every block sends each of its totals to all blocks, itself too: a slot for each sender,
and an mbarrier that counts the bytes which arrive. Behind it all take in all parts, in
the order of the blocks, so that they come to the same. No block ends before all that is
sent to it has come, so that nobody writes to memory of one that is gone.

Along a launch blocks hand totals over, from the first to the last. Blocks take turns by a
counter in memory: who has one may wait for those before it, which have begun. Each tells
its own total, then adds up what all blocks before it in its line told, in an order that
nothing but their numbers decides: equal runs give equal bits, which they would not if
blocks took whatever sums of others were there. A word that was told has a mark in its
upper half, so that it needs no fence; words are zeros before the launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Final

from steelyard_kernels import dtypes
from steelyard_kernels.dtypes import DType
from steelyard_kernels.ir.builder import Builder, const
from steelyard_kernels.ir.effects import AHEAD
from steelyard_kernels.ir.loops import Buffer, Operand
from steelyard_kernels.monoids import Monoid
from steelyard_kernels.schedule.warp import Group, across_group, first_slot

WORD = 4  # bytes of the narrowest value that is sent


class Cluster:
    """The blocks that share a loop, as one thread sees them: of so many this has a `rank`.

    In each of them `group` is this thread's, of which at least as many are as blocks. At
    most `most` exchanges have an mbarrier each. Where blocks stay, `turn` is which of their
    rows they are at: each second one has slots of its own, so that others read theirs.
    """

    def __init__(self, b: Builder, group: Group, blocks: int, most: int) -> None:
        self.b, self.group, self.blocks = b, group, blocks
        self.rank = b.at("rem", b.block(), blocks)
        self.arrived = b.alloc("arrived", dtypes.int64, most, "shared")
        self.done = 0
        self.turn: Operand | None = None
        self._begun = False
        with b.branch(b.let("equal", group.thread, b.number(0))):
            for number in range(most):
                b.effect("mbarrier_init", *self._barrier(number), b.number(1))
            b.effect("mbarrier_publish")
        b.effect("cluster_arrive")

    def begin(self) -> None:
        """Emit waiting, once, until the others have published their barriers."""
        if not self._begun:
            self.b.effect("cluster_wait")
        self._begun = True

    def _barrier(self, number: int) -> tuple[Buffer, Operand]:
        return self.arrived, self.b.number(number)

    def across(
        self, combines: Sequence[str], totals: Sequence[Operand]
    ) -> list[Operand]:
        """Emit the reductions of values over the blocks; every thread gets the totals."""
        b, group, number = self.b, self.group, self.done
        self.done += 1
        self.begin()
        wide = [
            b.cast(x, dtypes.float32) if x.type.dtype.bytes < WORD else x
            for x in totals
        ]
        places = max(1, group.threads // group.count)
        every, turns = self.blocks * places, 1 if self.turn is None else 2
        slots = [
            b.alloc("far", x.type.dtype, turns * every * x.type.lanes, "shared")
            for x in wide
        ]
        size = every * sum([x.type.lanes * x.type.dtype.bytes for x in wide])
        parity = b.number(0) if self.turn is None else b.at("rem", self.turn, 2)
        with b.branch(b.let("equal", group.thread, b.number(0))):
            b.effect("mbarrier_expect", *self._barrier(number), b.number(size))
        place = b.at("multiply", parity, every)
        place = b.at("add", place, first_slot(b, group, 1))
        mine = b.at("add", b.at("multiply", self.rank, places), place)
        to = b.at("rem", b.at("div", group.thread, group.distance), group.count)
        with b.branch(b.let("less", to, b.number(self.blocks))):
            for value, slot in zip(wide, slots, strict=True):
                self._send(value, slot, mine, to, number)
        b.effect("mbarrier_wait_far", *self._barrier(number), parity)
        return [
            b.cast(self._total(combine, slot, value, place, places), x.type.dtype)
            for combine, slot, value, x in zip(
                combines, slots, wide, totals, strict=True
            )
        ]

    def _send(
        self, value: Operand, slot: Buffer, place: Operand, to: Operand, number: int
    ) -> None:
        """Emit the stores of a total's lanes in one block."""
        b, lanes = self.b, value.type.lanes
        first = b.at("multiply", place, lanes)
        for lane in range(lanes):
            one = b.let("extract", value, b.number(lane)) if lanes > 1 else value
            at = b.at("add", first, lane)
            b.effect("store_far_one", slot, at, one, to, *self._barrier(number))

    def _total(
        self, combine: str, slot: Buffer, like: Operand, place: Operand, places: int
    ) -> Operand:
        """Emit what all blocks' parts come to."""
        b, lanes = self.b, like.type.lanes
        aligned = lanes * slot.dtype.bytes if lanes > 1 else 0
        parts = []
        for block in range(self.blocks):
            at = b.at("multiply", b.at("add", place, block * places), lanes)
            parts.append(b.load(slot, at, lanes, None, aligned))
        return reduce(lambda x, y: b.let(combine, x, y), parts)


FIRST: Final = 16
"""Words of memory before the totals: the counter has a line of the cache to itself."""


def words(dtype: DType, blocks: int) -> int:
    """Return how many int64 words so many blocks hand their totals over in."""
    return FIRST + blocks * _each(dtype)


def _each(dtype: DType) -> int:
    return dtype.bytes // 4


class Hand:
    """What one thread of a block does of it; `turn` is the block's, in order."""

    def __init__(self, b: Builder, memory: Buffer, group: Group) -> None:
        self.b, self.memory, self.group = b, memory, group
        self.is_first = b.let("equal", group.thread, b.number(0))
        turn = b.alloc("turn", b.index.dtype, 1, "shared")
        with b.branch(self.is_first):
            b.effect("take_turn", turn, b.number(0), memory, b.number(0))
        b.effect("barrier")
        self.turn = b.load(turn, b.number(0))

    def tell(self, total: Operand) -> None:
        """Emit handing over what this block comes to."""
        b, at = self.b, self._word(self.turn, total.type.dtype)
        with b.branch(self.is_first):
            b.effect("hand_over", self.memory, at, total)

    def before(self, monoid: Monoid, dtype: DType, count: int) -> Operand:
        """Emit what the blocks before this one come to, of lines of `count` each."""
        b, group = self.b, self.group
        taken = b.alloc("taken", dtype, AHEAD, "register")
        first = b.at("subtract", self.turn, b.at("rem", self.turn, count))
        begin = b.at("add", first, group.thread)
        nothing = const(monoid.neutral(dtype), dtype)
        step = b.number(group.count * _each(dtype))
        with b.loop(begin, self.turn, AHEAD * group.count, nothing, unroll=1) as turn:
            at, left = (
                self._word(turn.var, dtype),
                b.at("subtract", self.turn, turn.var),
            )
            few = b.at("div", b.at("add", left, group.count - 1), group.count)
            b.effect("take_over", taken, self.memory, at, step, few)
            (every,) = turn.carried
            for k in range(AHEAD):
                one = b.load(taken, b.number(k))
                inside = b.let("less", b.number(k), few)
                more = b.let(monoid.combine, every, one)
                every = b.let("where", inside, more, every)
            turn.yields(every)
        (found,) = across_group(b, group, [monoid.combine], turn.results)
        return found

    def _word(self, turn: Operand, dtype: DType) -> Operand:
        return self.b.at("add", self.b.at("multiply", turn, _each(dtype)), FIRST)
