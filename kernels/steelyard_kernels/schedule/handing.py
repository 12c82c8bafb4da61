"""Totals that the blocks of a launch hand over, from the first to the last.

Blocks take turns by a counter in memory: who has one may wait for those before it, which
have begun. Each tells its own total, then adds up what all blocks before it in its line
told, in an order that nothing but their numbers decides: equal runs give equal bits, which
they would not if blocks took whatever sums of others were there. A word that was told has
a mark in its upper half, so that it needs no fence; words are zeros before the launch.
"""

from __future__ import annotations

from typing import Final

from steelyard_kernels.dtypes import DType
from steelyard_kernels.ir.builder import Builder, const
from steelyard_kernels.ir.effects import AHEAD
from steelyard_kernels.ir.loops import Buffer, Operand
from steelyard_kernels.monoids import Monoid
from steelyard_kernels.schedule.warp import Group, across_group

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
