"""An online softmax of scores in registers: one step's keys at a time.

Each thread has two rows of the scores, of every 8 keys two neighbours. A row's largest
score so far is known to the four threads that share it, the sum of its weights only in
parts. Milakov and Gimelshein 2018, "Online normalizer calculation for softmax".
"""

from __future__ import annotations

from math import floor, inf, log2
from typing import Final

from steelyard_kernels.dtypes import float32
from steelyard_kernels.ir.builder import const
from steelyard_kernels.ir.loops import Buffer, Operand
from steelyard_kernels.nest.emitter import Emitter
from steelyard_kernels.nest.sums import Position, of_warp
from steelyard_kernels.schedule.recipes.attention import AttentionTiling

LOG2_E: Final = 1.4426950408889634
SHARED: Final = (1, 2)  # the lanes of a row differ by these bits
LARGE: Final = 2.0**24  # powers, or more: float32 rounds them to whole ones
TOGETHER: Final = 8  # groups of 8 keys whose scores are computed together


class Softmax:
    """Emits the weights of scores, in their place."""

    def __init__(
        self, tiling: AttentionTiling, emitter: Emitter, scores: Buffer, thread: Operand
    ) -> None:
        self.tiling, self.emitter, self.scores = tiling, emitter, scores
        self.attention, self.b, self.thread = tiling.attention, emitter.b, thread
        self.most = self.b.alloc("most", float32, 2, "register")
        self.total = self.b.alloc("total", float32, 2, "register")
        scale = self.attention.scale
        self.factor = LOG2_E * (1.0 if scale is None else scale * self.attention.times)
        self.rows: list[Operand] = []

    def begin(self, at: Position) -> None:
        """Emit a thread's rows, and that they have seen no score yet."""
        b = self.b
        self.at = at
        self.rows, lane = of_warp(b, self.thread, at.row)
        self.pair = b.at("multiply", b.at("rem", lane, 4), 2)
        for half in range(2):
            b.store(self.most, half, const(-inf, float32))
            b.store(self.total, half, const(0, float32))

    def take(self, key: Operand, *, masked: bool, first: bool) -> list[Operand]:
        """Emit the weights of a step; return what scales earlier sums of each row."""
        if self.attention.scale is None:
            self.logits(key)
        if masked:
            self.mask(key)
        return [self.row(half, first=first) for half in range(2)]

    def row(self, half: int, *, first: bool) -> Operand:
        """Emit the weights of one row, with what they are relative to and sum up to."""
        b, places = self.b, range(2 * half, self.tiling.keys // 2, 4)
        largest = b.load(self.scores, places[0], 2)
        for k in places[1:]:
            largest = b.let("maximum", largest, b.load(self.scores, k, 2))
        most = b.let("reduce_maximum", largest)
        for lane in SHARED:
            other = b.let("shuffle_xor", most, b.number(lane))
            most = b.let("maximum", most, other)
        zero = const(0, float32)
        before = b.load(self.most, half)
        if not first:
            most = b.let("maximum", most, before)
        b.store(self.most, half, most)
        # Of a row that saw no key yet, weights are relative to 0.
        none = b.let("equal", most, const(-inf, float32))
        size = b.let("abs", most)
        large = b.let("greater", size, const(LARGE / self.factor, float32))
        # Products with a power of two are not rounded: their differences are right.
        exact = const(2.0 ** floor(log2(self.factor)), float32)
        factor = b.let("where", large, exact, const(self.factor, float32))
        level = b.let("multiply", b.let("where", none, zero, most), factor)
        shift, factors = b.splat(b.let("negative", level), 2), b.splat(factor, 2)
        scale: Operand = const(1, float32)
        added: Operand | None = None
        if not first:
            earlier = b.let("multiply", before, factor)
            scale = b.let("exp2_approx", b.let("subtract", earlier, level))
        for k in places:
            score = b.load(self.scores, k, 2)
            power = b.let("fma", score, factors, shift)
            weight = b.let("exp2_approx", power)
            b.store(self.scores, k, weight)
            added = weight if added is None else b.let("add", added, weight)
        assert added is not None
        total: Operand = b.let("reduce_add", added)
        if not first:
            total = b.let("fma", b.load(self.total, half), scale, total)
        b.store(self.total, half, total)
        return scale

    def mask(self, key: Operand) -> None:
        """Emit scores of minus infinity for the keys that there are not, or not to see."""
        b, attention = self.b, self.attention
        n = attention.extents[3]
        nothing = const(-inf, float32, 2)
        ends: list[Operand] = [b.number(n)] * 2
        if attention.scale is not None and attention.ahead is not None:
            ends = [b.at("add", row, attention.ahead + 1) for row in self.rows]
            if n % self.tiling.keys:
                ends = [b.at("minimum", end, n) for end in ends]
        first = b.at("add", key, self.pair)
        for half, end in enumerate(ends):
            left = b.at("subtract", end, first)
            for k in range(2 * half, self.tiling.keys // 2, 4):
                seen = b.mask_below(b.at("subtract", left, 2 * (k - 2 * half)), 2)
                score = b.load(self.scores, k, 2)
                b.store(self.scores, k, b.let("where", seen, score, nothing))

    def logits(self, key: Operand) -> None:
        """Emit what the softmax is taken of, from the sums of a step, in their place."""
        b, emitter, attention = self.b, self.emitter, self.attention
        batch, i, _, j = attention.axes
        _, m, _, n = attention.extents
        lanes, values = attention.key_lanes, attention.between
        rows = [b.at("minimum", row, m - 1) for row in self.rows]
        first = b.at("add", key, self.pair)
        groups = self.tiling.keys // 8
        for begin in range(0, groups, TOGETHER):
            columns = [
                b.at("minimum", b.at("add", first, 8 * group + lane), n - lanes)
                for group in range(begin, min(begin + TOGETHER, groups))
                for lane in range(0, 2, lanes)
            ]
            places = {i: (rows, 1), j: (columns, lanes)}
            places |= {
                k: ([at], 1) for k, at in zip(batch, self.at.matrix, strict=True)
            }
            with emitter.together(places):
                every = emitter.every()
                where = []
                for at in every:
                    group, lane = divmod(at[j] * lanes, 2)
                    place = 4 * (begin + group) + 2 * at[i] + lane
                    score: Operand = b.load(self.scores, place, lanes)
                    if attention.times != 1:
                        times = const(attention.times, float32, lanes)
                        score = b.let("multiply", score, times)
                    dtype = attention.scores.node.dtype
                    emitter.know(attention.scores, at, b.cast(score, dtype))
                    where.append((at, place))
                emitter.emit(values, every)
                for at, place in where:
                    value = emitter.at(attention.logits, at, lanes)
                    b.store(self.scores, place, b.cast(value, float32))

    def rescale(self, sums: Buffer, scales: list[Operand]) -> None:
        """Emit earlier sums relative to what later weights are relative to."""
        b = self.b
        for k in range(0, self.tiling.columns // 2, 2):
            scale = b.splat(scales[k // 2 % 2], 2)
            b.store(sums, k, b.let("multiply", b.load(sums, k, 2), scale))

    def finish(self, sums: Buffer) -> None:
        """Emit the division of sums by their rows' weights."""
        b, parts = self.b, list[Operand]()
        for half in range(2):
            total: Operand = b.load(self.total, half)
            for lane in SHARED:
                other = b.let("shuffle_xor", total, b.number(lane))
                total = b.let("add", total, other)
            one = const(1, float32)
            if self.attention.safe:
                none = b.let("equal", total, const(0, float32))
                total = b.let("where", none, one, total)
            parts.append(b.let("divide", one, total))
        self.rescale(sums, parts)
