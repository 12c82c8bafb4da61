"""The lowering of attention: both products of a tile of queries, and a softmax between.

A block has 64 queries for each of its warpgroups and takes the keys and values in steps,
the last ones first. While a step's values are multiplied by the weights of the step
before it, its scores become weights: they stay in the registers that they were summed in,
which is where the next product reads its rows.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from steelyard_kernels.dtypes import float32
from steelyard_kernels.ir.loops import Buffer, Fragment, Multiply, Operand, Tile
from steelyard_kernels.nest.softmax import Softmax
from steelyard_kernels.nest.sums import Position, Sums
from steelyard_kernels.nest.tiles import Tiles
from steelyard_kernels.schedule.attention import Panel
from steelyard_kernels.schedule.contraction import HALF, UNIT
from steelyard_kernels.schedule.parameters import Lowered
from steelyard_kernels.schedule.product_tiling import DEPTH
from steelyard_kernels.schedule.recipes.attention import AttentionTiling
from steelyard_kernels.schedule.tile import Carried


class _Steps(Struct, frozen=True):
    """A block's first query, and how many steps it has, of which `edge` are masked."""

    at: Position
    count: Operand
    edge: Operand


class Panels(Tiles):
    """Emits copies of panels, and where instructions find their parts."""

    tiling: AttentionTiling
    lead: Operand  # whether this is the first thread of its warpgroup

    def __init__(self, tiling: AttentionTiling) -> None:
        self.panels = tiling.panels
        super().__init__(tiling, {n: p.factor for n, p in self.panels.items()})
        for name, panel in self.panels.items() if tiling.bulk else ():
            self.describe(name, panel.extents, panel.box)

    def by_roles(
        self, consume: Callable[[], None], produce: Callable[[], None]
    ) -> None:
        """Emit what threads that multiply do, and the one that copies."""
        b, tiling = self.b, self.tiling
        multiplies = b.let("less", self.thread, b.number(tiling.consumers))
        with b.branch(multiplies) as roles:
            if tiling.hands_over:
                b.effect("registers_take", b.number(tiling.most_registers))
            consume()
            roles.otherwise()
            if tiling.hands_over:
                b.effect("registers_leave", b.number(tiling.fewer_registers))
            with b.branch(self.is_copying()):
                produce()

    def is_copying(self) -> Operand:
        """Emit whether this is the thread that copies."""
        number = self.tiling.consumers if self.tiling.ring else 0
        return self.b.let("equal", self.thread, self.b.number(number))

    def load(
        self,
        name: str,
        stage: Operand,
        barrier: str,
        corner: tuple[Operand, Operand],
        matrix: tuple[Operand, ...],
    ) -> None:
        """Emit the copies of a panel from its own index and depth on."""
        b, panel, (own, depth) = self.b, self.panels[name], corner
        to = b.at("multiply", stage, panel.size)
        for begin, offset in panel.boxes:
            corner = (own, b.at("add", depth, begin))
            if panel.factor.across:
                corner = (b.at("add", own, begin), depth)
            place = b.at("add", to, offset)
            self.copy(name, place, (barrier, stage), corner, matrix)

    def leave(self, name: str, stage: Operand) -> None:
        """Emit that this warpgroup has read what a barrier counts readers of."""
        if self.tiling.ring:
            with self.b.branch(self.lead):
                self.barrier("arrive", name, stage)

    def arrived(self, name: str, stage: Operand, parity: Operand) -> None:
        """Emit the wait for what a barrier counts the bytes of."""
        self.b.effect("mbarrier_wait", self.memory[name], stage, parity)

    def tile(
        self, name: str, first: Operand, depth: int, panel: Panel | None = None
    ) -> Tile:
        """Emit where a panel's part of an instruction begins, and how it lies."""
        panel = panel or self.panels[name]
        row = panel.chunk * HALF
        leading = panel.depth * row if panel.factor.across else UNIT
        return Tile(
            self.memory[name],
            first,
            panel.offset(depth),
            row,
            panel.factor.across,
            leading,
            8 * row,
        )

    def rows_of(self, number: Operand, *, reverse: bool) -> Position:
        """Emit where the rows of a tile begin, whose last ones come first in reverse."""
        b, tall = self.b, self.tiling.tall
        down = -(-self.product.extents[1] // tall)
        tile = b.at("rem", number, down)
        if reverse:
            tile = b.at("subtract", down - 1, tile)
        row = b.at("multiply", tile, tall)
        return Position(self.matrix(b.at("div", number, down)), row, b.number(0))

    def step_of(self, at: Position, offset: int, most: int, least: int = 0) -> Operand:
        """Emit the step that a key so far from a tile's first row is in, of so many."""
        b = self.b
        key = b.at("maximum", b.at("add", at.row, offset), least)
        return b.at("minimum", b.at("div", key, self.tiling.keys), most)

    def multiply_rows(
        self, sums: Buffer, names: tuple[str, str], stage: Operand
    ) -> None:
        """Emit the products of the rows that stay and a stage's keys."""
        b, (rows, keys) = self.b, names
        first = b.at("multiply", self.group, self.panels[rows].apart)
        columns = b.at("multiply", stage, self.panels[keys].size)
        b.effect("mma_begin")
        for k in range(0, self.panels[rows].depth, DEPTH):
            left, right = self.tile(rows, first, k), self.tile(keys, columns, k)
            b.body.append(Multiply(sums, (left,), right, b.number(int(k > 0))))
        b.effect("mma_commit")

    def multiply_weights(
        self,
        sums: Buffer,
        weights: Buffer,
        values: tuple[str, Panel],
        stage: Operand,
        more: Operand,
    ) -> None:
        """Emit the products of weights and a stage's values."""
        b, (name, panel) = self.b, values
        columns = b.at("multiply", stage, panel.size)
        b.effect("mma_begin")
        for k in range(0, self.tiling.keys, DEPTH):
            kept, column = Fragment(weights, k // 2), self.tile(name, columns, k, panel)
            b.body.append(Multiply(sums, (kept,), column, b.number(1) if k else more))
        b.effect("mma_commit")


class Attended(Panels):
    """Emits one block of a tiling."""

    def __init__(self, tiling: AttentionTiling) -> None:
        super().__init__(tiling)
        self.attention = tiling.attention
        b = self.b
        self.scores = b.alloc("scores", float32, tiling.keys // 2, "register")
        self.sums = b.alloc("sums", float32, tiling.columns // 2, "register")
        half = self.product.dtype
        self.weights = b.alloc("weights", half, tiling.keys // 2, "register")
        self.stores = Sums(
            tiling, self.emitter, self.memory, (self.thread, self.thread)
        )
        self.softmax = Softmax(tiling, self.emitter, self.scores, self.thread)

    def emit(self) -> Lowered:
        """Emit the block, and close the kernel."""
        self.begin()
        if self.tiling.ring:
            self.by_roles(self.consume, self.produce)
        else:
            self.consume()
        return self.lowered([*self.product.sums.behind, *self.attention.between], ())

    def begin(self) -> None:
        """Emit the barriers' beginning, and the first copies, which wait for nothing."""
        b, tiling = self.b, self.tiling
        with b.branch(self.is_copying()):
            for tensor in self.tensors.values():
                b.effect("tensor_prefetch", tensor)
            self.barrier("init", "asked", 0, 1)
            if tiling.blocks:
                self.barrier("init", "answered", 0, tiling.groups)
            for name in ("keys", "values"):
                for stage in range(tiling.stages):
                    self.barrier("init", f"full_{name}", stage, 1)
                    if tiling.ring:
                        self.barrier("init", f"empty_{name}", stage, tiling.groups)
            b.effect("mbarrier_publish")
            if not tiling.blocks:
                steps = self.located(self.block)
                self.ask(steps)
                first = b.at("minimum", steps.count, tiling.stages)
                with b.loop(0, first, 1, unroll=tiling.stages) as loop:
                    for name in ("keys", "values"):
                        self.step(loop.var, loop.var, name, steps)
        b.effect("barrier")

    def ask(self, steps: _Steps) -> None:
        """Emit the copy of a tile's queries."""
        zero = self.b.number(0)
        self.barrier("expect", "asked", zero, self.panels["queries"].size * HALF)
        self.load("queries", zero, "asked", (steps.at.row, zero), steps.at.matrix)

    def located(self, number: Operand) -> _Steps:
        """Emit which queries are those of a tile, and which keys they see."""
        b, tiling, ahead = self.b, self.tiling, self.attention.ahead
        keys, free = tiling.keys, self.product.extents[3] // tiling.keys
        at = self.rows_of(number, reverse=ahead is not None)
        if ahead is None:
            return _Steps(at, b.number(tiling.steps), b.number(tiling.steps - free))
        last = tiling.tall + ahead + keys - 1
        count = self.step_of(at, last, tiling.steps, least=keys)
        seen = self.step_of(at, ahead + 1, free)
        return _Steps(at, count, b.at("subtract", count, seen))

    def step(self, step: Operand, stage: Operand, name: str, steps: _Steps) -> None:
        """Emit the copies of one step's keys or values."""
        b = self.b
        key = b.at("multiply", self.key(step, steps), self.tiling.keys)
        self.barrier("expect", f"full_{name}", stage, self.panels[name].size * HALF)
        zero = b.number(0)
        corner = (key, zero) if name == "keys" else (zero, key)
        self.load(name, stage, f"full_{name}", corner, steps.at.matrix)

    def key(self, step: Operand, steps: _Steps) -> Operand:
        """Emit which of the steps along the keys a step of this block is."""
        b = self.b
        return b.at("subtract", b.at("subtract", steps.count, 1), step)

    def produce(self) -> None:
        """Emit the copies that wait for a stage to be empty."""
        b, tiling = self.b, self.tiling
        # Of a barrier that nobody arrived at, the phase before the first one is over.
        begin, odd = (0, 1) if tiling.blocks else (tiling.stages, 0)

        def steps(number: Operand, carried: Carried) -> Carried:
            steps, (*ring, phase) = self.located(number), carried
            if tiling.blocks:
                b.effect("mbarrier_wait", self.memory["answered"], b.number(0), phase)
                self.ask(steps)
            with b.loop(begin, steps.count, 1, *ring, unroll=1) as loop:
                stage, parity = loop.carried
                for name in ("keys", "values"):
                    empty = self.memory[f"empty_{name}"]
                    b.effect("mbarrier_wait", empty, stage, parity)
                    self.step(loop.var, stage, name, steps)
                loop.yields(*self.after(stage, parity))
            return (*loop.results, b.at("subtract", 1, phase))

        self.tiles(steps, (b.number(0), b.number(odd), b.number(1)))

    def consume(self) -> None:
        """Emit the products of every tile and the softmax between them."""
        zero = self.b.number(0)
        self.number_groups()
        self.lead = self.leads()
        self.tiles(self.tile_of, (zero, zero, zero))

    def tile_of(self, number: Operand, carried: Carried) -> Carried:
        """Emit the products of a tile; carried are the stage, its parity, the tile's."""
        b, zero = self.b, self.b.number(0)
        self.steps = steps = self.located(number)
        stage, parity, phase = carried
        self.stores.prepare(steps.at)
        self.softmax.begin(steps.at)
        b.effect("mbarrier_wait", self.memory["asked"], zero, phase)
        self.arrived("full_keys", stage, parity)
        self.scored(stage)
        b.effect("mma_done", self.scores, zero)
        self.leave("empty_keys", stage)
        self.softmax.take(self.first_key(zero), masked=self.tiling.has_edge, first=True)
        self.weigh()
        self.arrived("full_values", stage, parity)
        ring: Carried = (*self.after(stage, parity), stage)
        more, first = zero, b.number(1)
        if self.tiling.steps > 1:
            if self.attention.ahead is not None:
                ring, more = self.walk(first, steps.edge, (*ring, more), masked=True)
                first = b.at("maximum", steps.edge, 1)
            masked = self.attention.scale is None and self.tiling.has_edge
            ring, more = self.walk(first, steps.count, (*ring, more), masked=masked)
        *following, last = ring
        if self.tiling.blocks:
            self.leave("answered", zero)
        self.summed(last, more)
        b.effect("mma_done", self.sums, zero)
        if self.tiling.blocks:
            self.leave("empty_values", last)
        self.softmax.finish(self.sums)
        self.stores.emit(self.sums)
        return (*following, b.at("subtract", 1, phase))

    def walk(
        self, first: Operand, end: Operand, carried: Carried, *, masked: bool
    ) -> tuple[Carried, Operand]:
        """Emit steps, each with the values of the one before."""
        b = self.b
        with b.loop(first, end, 1, *carried, unroll=1) as loop:
            stage, parity, before, more = loop.carried
            self.arrived("full_keys", stage, parity)
            self.scored(stage)
            self.summed(before, more)
            b.effect("mma_done", self.scores, b.number(1))
            self.leave("empty_keys", stage)
            key = self.first_key(loop.var)
            scales = self.softmax.take(key, masked=masked, first=False)
            # All weights are computed while values are multiplied: ptxas moves none of
            # them beyond a wait of other kind, but those for products.
            b.effect("computed", self.scores)
            self.arrived("full_values", stage, parity)
            b.effect("mma_done", self.sums, b.number(0))
            self.leave("empty_values", before)
            self.weigh()
            self.softmax.rescale(self.sums, scales)
            loop.yields(*self.after(stage, parity), stage, b.number(1))
        *found, more = loop.results
        return tuple(found), more

    def first_key(self, step: Operand) -> Operand:
        """Emit the first key of a step."""
        return self.b.at("multiply", self.key(step, self.steps), self.tiling.keys)

    def weigh(self) -> None:
        """Emit the rounding of weights to what the values are."""
        b = self.b
        for k in range(0, self.tiling.keys // 2, 2):
            two = b.load(self.scores, k, 2)
            b.store(self.weights, k, b.cast(two, self.product.dtype), alignment=4)

    def scored(self, stage: Operand) -> None:
        """Emit the products of queries and a stage's keys."""
        self.multiply_rows(self.scores, ("queries", "keys"), stage)

    def summed(self, stage: Operand, more: Operand) -> None:
        """Emit the products of weights and a stage's values."""
        values = "values", self.panels["values"]
        self.multiply_weights(self.sums, self.weights, values, stage, more)
