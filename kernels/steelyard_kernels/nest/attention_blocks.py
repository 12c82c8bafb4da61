"""The lowering of attention on a CPU: both products by blocks of registers, a softmax between.

A core takes one tile of queries after another, and for each the keys in steps. Of some
queries it sums a step's scores, makes them weights, relative to the largest score so far,
and adds the values that they weigh to what earlier steps came to. Milakov and Gimelshein
2018, "Online normalizer calculation for softmax".
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from steelyard_kernels.ir.builder import Builder, const
from steelyard_kernels.ir.loops import Const, Operand
from steelyard_kernels.nest.axes import Value
from steelyard_kernels.nest.blocks import Lowering, Tile, Walk, multiplied
from steelyard_kernels.nest.panels import Copies
from steelyard_kernels.schedule.parameters import Lowered
from steelyard_kernels.schedule.recipes.attention_blocks import AttentionBlocking
from steelyard_kernels.schedule.tile import Carried


def lower(blocking: AttentionBlocking) -> Lowered:
    """Return the loop-level kernel of attention under a blocking that fits it."""
    return _Lowering(blocking).emit()


class _Lowering(Lowering):
    """Emits what one thread does."""

    blocking: AttentionBlocking

    def __init__(self, blocking: AttentionBlocking) -> None:
        super().__init__(blocking)
        self.weighing, self.scores = blocking.weighing, blocking.scores
        last = {value.number for value in (*self.product.behind, self.product.total)}
        emitter, b, dtype = self.emitter, self.b, self.product.dtype
        emitter.levels = [[v for v in k if v.number in last] for k in emitter.levels]
        self.of_scores = Copies(self.scores, emitter)
        self.kept = rows, keys, _ = blocking.kept
        self.queries, self.keys = (
            b.alloc(name, dtype, panel.size)
            for name, panel in (("queries", rows), ("keys", keys))
        )
        self.weights = b.alloc("weights", dtype, blocking.rows * blocking.pitch)
        each = blocking.down * blocking.aside
        self.most, self.total = (b.alloc(k, dtype, each) for k in ("most", "total"))
        self.found, self.level, self.scale = (
            b.alloc(k, dtype, blocking.aside) for k in ("found", "level", "scale")
        )

    def steps(self, tile: Tile) -> None:
        """Emit all steps along the keys, for all queries of a tile.

        They are those that a query sees, and then all where others weigh something.
        """
        b, blocking, weighing = self.b, self.blocking, self.weighing
        depth = b.number(0), b.number(self.scores.depth)
        self.of_scores.emit(
            self.kept[0], self.queries, (tile.row, tile.rows), blocking.rows, depth
        )
        n, ahead = self.product.extents[3], weighing.ahead
        reach = b.number(n if ahead is None else ahead)
        if weighing.fill == -inf:
            self.walk(tile, reach)
        else:
            with b.loop(0, 2, 1, reach) as turn:
                self.walk(tile, turn.carried[0])
                turn.yields(b.number(n), until=self.outweighs(tile))
        self.behind(tile, b.number(0))

    def walk(self, tile: Tile, reach: Operand) -> None:
        """Emit the steps along keys up to `reach` ahead of a tile's queries."""
        b, blocking, n = self.b, self.blocking, self.product.extents[3]
        _, keys, values = self.kept
        right, depth = self.buffers[1], (b.number(0), b.number(self.scores.depth))
        assert right is not None
        for buffer, number in ((self.most, -inf), (self.total, 0), (self.sums, 0)):
            with b.loop(0, buffer.extent, blocking.lanes) as each:
                b.store(buffer, each.var, self.every(number))
        last = b.at("add", b.at("add", tile.row, tile.rows), reach)
        causal = self.weighing.ahead is not None
        end = b.at("minimum", last, n) if causal else b.number(n)
        with b.loop(0, end, blocking.depth) as key, self.emitter.aside():
            step = key.var, self.rest(n, key.var, blocking.depth)
            self.of_scores.emit(keys, self.keys, step, self.scores.columns, depth)
            own = b.number(0), b.number(self.product.extents[2])
            self.copies.emit(values, right, own, blocking.columns, step)
            first: Operand = b.number(0)
            if causal:  # the first block of queries that sees a key
                row = b.at("subtract", key.var, b.at("add", tile.row, reach))
                row = b.at("div", b.at("maximum", row, 0), blocking.rows)
                first = b.at("multiply", row, blocking.rows)
            with b.loop(first, tile.rows, blocking.rows) as down, self.emitter.aside():
                self.score(down.var, step[1])
                self.weigh(b.at("add", tile.row, down.var), down.var, step)
                self.add(down.var, step[1])

    def outweighs(self, tile: Tile) -> Operand:
        """Emit whether each query's largest logit leaves no weight to those not seen."""
        b, rows = self.b, self.blocking.rows
        with b.loop(0, tile.rows, rows, const(inf, self.product.dtype)) as down:
            least, begin = down.carried[0], self.aside(down.var)
            for each in range(rows):
                most = b.load(self.most, b.at("add", begin, each))
                least = b.let("minimum", least, most)
            down.yields(least)
        fill = const(self.weighing.fill, self.product.dtype)
        weight = b.let("exp", b.let("subtract", fill, down.results[0]))
        return b.let("equal", weight, const(0, self.product.dtype))

    def every(self, number: float) -> Const:
        """Return a number in all lanes."""
        return const(number, self.product.dtype, self.blocking.lanes)

    def score(self, down: Operand, count: Operand) -> None:
        """Emit the scores of some queries and a step's keys."""
        b, scores, (rows, keys, _) = self.b, self.scores, self.kept
        left = self.copied(rows, self.queries, down)
        none = [self.every(0)] * (scores.rows * scores.vectors)
        with b.loop(0, count, scores.columns) as over:
            walks = left, self.copied(keys, self.keys, over.var)
            found = multiplied(b, scores, walks, b.number(scores.depth), none)
            for each, score in enumerate(found):
                row, vector = divmod(each, scores.vectors)
                place = row * self.blocking.pitch + vector * scores.lanes
                b.store(self.weights, b.at("add", over.var, place), score)

    def weigh(self, row: Operand, down: Operand, step: tuple[Operand, Operand]) -> None:
        """Emit the weights of some queries' scores, in their place."""
        b, lanes, pitch = self.b, self.blocking.lanes, self.blocking.pitch
        begin, rows = self.aside(down), range(self.blocking.rows)
        for each, most in enumerate(self.logits(row, *step)):
            b.store(self.found, each, b.let("reduce_maximum", most))
        for vector in range(0, self.blocking.aside, lanes):
            self.rescale(b.at("add", begin, vector), vector)
        levels = [b.splat(b.load(self.level, each), lanes) for each in rows]
        with b.loop(0, step[1], lanes, *[self.every(0)] * len(rows)) as along:
            totals = []
            for each, level, total in zip(rows, levels, along.carried, strict=True):
                place = b.at("add", along.var, each * pitch)
                logit = b.load(self.weights, place, lanes)
                weight = b.let("exp", b.let("subtract", logit, level))
                b.store(self.weights, place, weight)
                totals.append(b.let("add", total, weight))
            along.yields(*totals)
        for each, total in zip(rows, along.results, strict=True):
            b.store(self.found, each, b.let("reduce_add", total))
        for vector in range(0, self.blocking.aside, lanes):
            at = b.at("add", begin, vector)
            found = b.load(self.found, vector, lanes)
            b.store(self.total, at, b.let("add", b.load(self.total, at, lanes), found))

    def rescale(self, at: Operand, vector: int) -> None:
        """Emit what weights of a vector of queries are relative to now, and were before."""
        b, lanes = self.b, self.blocking.lanes
        before = b.load(self.most, at, lanes)
        most = larger(b, b.load(self.found, vector, lanes), before)
        # Of a query that saw no key yet, weights are relative to 0.
        none = b.let("equal", most, self.every(-inf))
        level = b.let("where", none, self.every(0), most)
        scale = b.let("exp", b.let("subtract", before, level))
        b.store(self.most, at, most)
        b.store(self.level, vector, level)
        b.store(self.scale, vector, scale)
        b.store(self.total, at, b.let("multiply", b.load(self.total, at, lanes), scale))

    def aside(self, down: Operand) -> Operand:
        """Emit where there begins what is one a row of some queries."""
        b, blocking = self.b, self.blocking
        return b.at("multiply", b.at("div", down, blocking.rows), blocking.aside)

    def logits(self, row: Operand, key: Operand, count: Operand) -> Carried:
        """Emit logits in the place of scores; return the largest of each lane."""
        b, emitter, blocking = self.b, self.emitter, self.blocking
        (_, m, _, n), lanes = self.product.extents, blocking.lanes
        queries = [b.at("add", row, each) for each in range(blocking.rows)]
        ends = self.ends(queries)
        if m % blocking.rows:
            queries = [b.at("minimum", each, m - 1) for each in queries]
        axes = self.product.rows, self.product.depth
        rows, deep = (emitter.loops_of(each)[0] for each in axes)
        with emitter.opened(rows, queries, 1):
            rest = emitter.ready(self.weighing.between)
            none = [self.every(-inf)] * len(queries)
            with b.loop(0, count, lanes, *none) as along:
                place = b.at("add", key, along.var)
                edge = None
                if self.weighing.scale is None and n % lanes:
                    edge = b.mask_below(b.at("subtract", n, place), lanes)
                with emitter.opened(deep, [place], lanes, [edge]):
                    found = self.made(along.var, rest)
                largest: list[Operand] = []
                for each, most in enumerate(along.carried):
                    logit = found[each]
                    for end, fill in ends[each]:
                        mask = b.mask_below(b.at("subtract", end, place), lanes)
                        logit = b.let("where", mask, logit, self.every(fill))
                    at = b.at("add", along.var, each * blocking.pitch)
                    b.store(self.weights, at, logit)
                    largest.append(larger(b, logit, most))
                along.yields(*largest)
        return along.results

    def ends(self, queries: Sequence[Operand]) -> list[list[tuple[Operand, float]]]:
        """Emit behind which keys each query's logits are a number, and which."""
        b, weighing, n = self.b, self.weighing, self.product.extents[3]
        last = [(b.number(n), -inf)] if n % self.blocking.lanes else []
        if weighing.ahead is None:
            return [last] * len(queries)
        ends = [b.at("add", query, weighing.ahead + 1) for query in queries]
        if weighing.fill == -inf:
            return [[(b.at("minimum", end, n), -inf)] for end in ends]
        return [[(end, weighing.fill), *last] for end in ends]

    def made(self, along: Operand, values: Sequence[Value]) -> list[Operand]:
        """Emit what is made of a vector of each query's scores: its logits."""
        b, emitter, weighing = self.b, self.emitter, self.weighing
        every, lanes = emitter.every(), self.blocking.lanes
        scores = [
            b.load(self.weights, b.at("add", along, k * self.blocking.pitch), lanes)
            for k in range(len(every))
        ]
        if weighing.scale is not None:
            scale = self.every(weighing.scale)
            return [b.let("multiply", score, scale) for score in scores]
        dtype = weighing.scores.node.dtype
        for at, score in zip(every, scores, strict=True):
            emitter.know(weighing.scores, at, b.cast(score, dtype))
        emitter.emit(values, every)
        found = [emitter.at(weighing.logits, at, lanes) for at in every]
        return [b.cast(each, self.product.dtype) for each in found]

    def add(self, down: Operand, count: Operand) -> None:
        """Emit adding a step's values, by their weights, to what earlier ones came to."""
        b, blocking, right = self.b, self.blocking, self.buffers[1]
        assert right is not None
        left = Walk(self.weights, b.number(0), blocking.pitch, 1)
        begin, rows = b.at("multiply", down, self.pitch), range(blocking.rows)
        with b.loop(0, blocking.tile[1], blocking.columns) as over:
            places = self.places(b.at("add", begin, over.var))
            scales = [
                b.splat(b.load(self.scale, each), blocking.lanes)
                for each in rows
                for _ in range(blocking.vectors)
            ]
            begun = [
                b.let("multiply", b.load(self.sums, place, blocking.lanes), scale)
                for place, scale in zip(places, scales, strict=True)
            ]
            walks = left, self.copied(self.kept[2], right, over.var)
            found = multiplied(b, blocking, walks, count, begun)
            for place, value in zip(places, found, strict=True):
                b.store(self.sums, place, value)

    def share(self, row: Operand) -> Operand | None:
        """Emit one over a row's weights, in all lanes."""
        b, rows = self.b, self.blocking.rows
        at = b.at("add", self.aside(row), b.at("rem", row, rows))
        total: Operand = b.load(self.total, at)
        one = const(1, total.type.dtype)
        if self.weighing.safe:
            total = b.let("maximum", total, one)
        return b.splat(b.let("divide", one, total), self.blocking.lanes)


def larger(b: Builder, x: Operand, y: Operand) -> Operand:
    """Emit the larger of two values in one instruction; the second of NaN and it.

    A score of NaN weighs NaN, whatever it is relative to.
    """
    return b.let("where", b.let("greater", x, y), x, y)
