"""Reductions over the blocks of a cluster, which write in each other's shared memory.

Every block sends each of its totals to all blocks, itself too: a slot for each sender,
and an mbarrier that counts the bytes which arrive. Behind it all take in all parts, in
the order of the blocks, so that they come to the same. No block ends before all that is
sent to it has come, so that nobody writes to memory of one that is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from steelyard_kernels import dtypes
from steelyard_kernels.ir.builder import Builder
from steelyard_kernels.ir.loops import Buffer, Operand
from steelyard_kernels.schedule.warp import Group, first_slot

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
