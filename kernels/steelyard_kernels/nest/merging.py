"""Emits merges of two runs in order: where one stands, and one element after another.

The first elements of both together that are no more than any other are so many of each: a
binary search along a diagonal of the merge path finds how many. O. Green, R. McColl and
D. A. Bader, "GPU merge path: a GPU merging algorithm", 2012.
"""

from __future__ import annotations

from dataclasses import dataclass

from steelyard_kernels.ir.builder import Builder
from steelyard_kernels.ir.loops import Buffer, Operand


@dataclass(frozen=True, slots=True)
class Runs:
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
