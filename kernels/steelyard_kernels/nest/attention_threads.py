"""The lowering of attention whose queries, keys and values the block's threads copy.

Each warp multiplies 16 queries by mma.sync. Keys and values of a step are copied some steps
ahead; a barrier a step keeps the threads together.
"""

from __future__ import annotations

from steelyard_kernels.dtypes import float32
from steelyard_kernels.ir.builder import const
from steelyard_kernels.ir.loops import Buffer, Fragment, Multiply, Operand, Tile
from steelyard_kernels.nest.attention import Attended
from steelyard_kernels.nest.loads import Loads, Source, Start
from steelyard_kernels.schedule.parameters import Lowered
from steelyard_kernels.schedule.product_tiling import ROWS
from steelyard_kernels.schedule.recipes.attention import AttentionTiling
from steelyard_kernels.schedule.tile import Carried


class ByWarps(Attended):
    """All threads copy, some steps ahead of what they multiply."""

    def __init__(self, tiling: AttentionTiling) -> None:
        super().__init__(tiling)
        self.line = tiling.product.step
        self.sources = {
            name: Source(
                panel.factor,
                0,  # the axes of its own are read through no window
                panel.extents,
                panel.own,
                self.width(name) if panel.factor.across else self.line,
                True,
                self.args.inputs[panel.factor.source.index],
                self.memory[name],
                panel.extents[1] % self.line == 0 and name != "values",
            )
            for name, panel in self.panels.items()
        }
        every = list(self.sources.values())
        self.loads = Loads(tiling, self.b, every, self.thread)
        self.ahead = max(tiling.stages - 1, 1)
        self.values: Start

    def width(self, name: str) -> int:
        """Return how many columns a row in shared memory has of a factor across."""
        return next(n for n in (ROWS, ROWS // 2) if self.panels[name].own % n == 0)

    def emit(self) -> Lowered:
        """Emit the block, and close the kernel."""
        self.number_groups()
        self.tiles(self.tile_of, ())
        values = [*self.product.sums.behind, *self.attention.between]
        return self.lowered(values, [source.factor for source in self.sources.values()])

    def tile_of(self, number: Operand, carried: Carried) -> Carried:
        """Emit the products of a tile of queries and the softmax between them."""
        b, tiling, zero = self.b, self.tiling, self.b.number(0)
        self.steps = steps = self.located(number)
        asked = self.loads.start(self.sources["queries"], steps.at.matrix, steps.at.row)
        for line in range(tiling.lines):
            self.loads.emit(asked, b.number(line), b.number(line * self.line))
        self.values = self.loads.start(self.sources["values"], steps.at.matrix, zero)
        for step in range(self.ahead):
            self.bring(b.number(step), b.number(step))
        self.stores.prepare(steps.at)
        self.softmax.begin(steps.at)
        for place in range(tiling.columns // 2):
            b.store(self.sums, place, const(0, float32))
        stages: Carried = (zero, b.number(self.ahead % tiling.stages))
        stages = self.weighed(zero, stages, masked=tiling.has_edge, first=True)
        if tiling.steps > 1:
            first = b.number(1)
            if self.attention.ahead is not None:
                stages = self.further(first, steps.edge, stages, masked=True)
                first = b.at("maximum", steps.edge, 1)
            masked = self.attention.scale is None and tiling.has_edge
            self.further(first, steps.count, stages, masked=masked)
        self.softmax.finish(self.sums)
        self.stores.emit(self.sums)
        return carried  # nothing

    def further(
        self, first: Operand, end: Operand, stages: Carried, *, masked: bool
    ) -> Carried:
        """Emit steps after the first."""
        with self.b.loop(first, end, 1, *stages, unroll=1) as loop:
            carried = self.weighed(loop.var, loop.carried, masked=masked, first=False)
            loop.yields(*carried)
        return loop.results

    def weighed(
        self, step: Operand, stages: Carried, *, masked: bool, first: bool
    ) -> Carried:
        """Emit one step: its copies' arrival, others' begin, weights, weighed values."""
        b, tiling, (stage, free) = self.b, self.tiling, stages
        b.effect("copy_wait", b.number(self.ahead - 1))
        b.effect("barrier")  # all have copied this stage, and read the free one
        if tiling.steps > self.ahead:
            self.bring(b.at("add", step, self.ahead), free)
        else:
            b.effect("copy_commit")
        self.scored(stage)
        scales = self.softmax.take(self.first_key(step), masked=masked, first=first)
        self.weigh()
        if not first:
            self.softmax.rescale(self.sums, scales)
        self.added(stage)
        return (*self.after(stage), *self.after(free))

    def bring(self, step: Operand, stage: Operand) -> None:
        """Emit a thread's copies of a step's keys and values, if there is such a step."""
        b, tiling, line = self.b, self.tiling, self.line
        with b.branch(b.let("less", step, self.steps.count)):
            key = self.first_key(step)
            keys = self.loads.start(self.sources["keys"], self.steps.at.matrix, key)
            for place in range(tiling.lines):
                held = b.at("add", b.at("multiply", stage, tiling.lines), place)
                self.loads.emit(keys, held, b.number(place * line))
            lines = tiling.keys // line
            for place in range(lines):
                held = b.at("add", b.at("multiply", stage, lines), place)
                self.loads.emit(self.values, held, b.at("add", key, place * line))
        b.effect("copy_commit")

    def scored(self, stage: Operand) -> None:
        """Emit the products of queries and a stage's keys."""
        b, tiling, line = self.b, self.tiling, self.line
        rows = b.at("multiply", self.group, ROWS * line)
        columns = b.at("multiply", stage, tiling.keys * tiling.lines * line)
        for k in range(0, self.panels["queries"].depth, self.product.deep):
            left = self.at(k, rows, "queries")
            right = self.at(k, columns, "keys")
            self.multiply(self.scores, left, right, k)

    def added(self, stage: Operand) -> None:
        """Emit the products of weights and a stage's values."""
        b, tiling = self.b, self.tiling
        columns = b.at("multiply", stage, tiling.keys * tiling.columns)
        for k in range(0, tiling.keys, self.product.deep):
            kept = Fragment(self.weights, k // 2)
            self.multiply(self.sums, kept, self.at(k, columns, "values"), 1)

    def multiply(
        self, sums: Buffer, left: Tile | Fragment, right: Tile, more: int
    ) -> None:
        """Emit a product by each warp."""
        added = self.b.number(int(more > 0))
        self.b.body.append(Multiply(sums, (left,), right, added, by_warp=True))

    def at(self, k: int, first: Operand, name: str) -> Tile:
        """Emit where a part of a factor begins, `k` along its depth."""
        panel = self.panels[name]
        line, inside = divmod(k, self.line)
        begin = self.b.at("add", first, line * panel.own * self.line)
        part = inside // self.product.deep
        return self.piece(name, panel.factor, begin, self.width(name), part)
