"""The lowering of weighted sums: products of a step's keys, weights of them, and sums.

A block keeps 64 rows for each of its warpgroups and takes the keys in steps. Scores become
weights in the registers that they were summed in, which is where sums read their rows.
"""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass
from itertools import product
from typing import Final

from steelyard_kernels.dtypes import HALVES, DType, bool_, float32
from steelyard_kernels.expression.expr import Apply, Cast
from steelyard_kernels.ir.builder import const
from steelyard_kernels.ir.loops import Buffer, Const, Fragment, Multiply, Operand
from steelyard_kernels.nest.attention import Panels
from steelyard_kernels.nest.axes import Value
from steelyard_kernels.nest.gpu_emitter import GpuEmitter
from steelyard_kernels.nest.offsets import At
from steelyard_kernels.nest.softmax import LOG2_E
from steelyard_kernels.nest.sums import APART, Position, Sums
from steelyard_kernels.nest.sums import ROWS as OF_WARP
from steelyard_kernels.nest.weighing import times as times_of
from steelyard_kernels.schedule.attention_tiling import Panel
from steelyard_kernels.schedule.contraction import HALF
from steelyard_kernels.schedule.gpu import WARP
from steelyard_kernels.schedule.parameters import Lowered
from steelyard_kernels.schedule.product_tiling import DEPTH, ROWS
from steelyard_kernels.schedule.tile import Carried
from steelyard_kernels.schedule.weighted_tiling import WeightedTiling

TOGETHER: Final = 4  # groups of 8 keys whose weights are computed together


def lower(tiling: WeightedTiling) -> Lowered:
    """Return the loop-level kernel of weighted sums under a tiling that fits them."""
    return _Lowering(tiling).emit()


class _Weights(GpuEmitter):
    """Emits weights, which are rounded to halves: with errors far below that."""

    def _value(self, value: Value, at: At) -> Operand:
        node, lanes = value.node, self.lanes(value.axes)
        if node.dtype is not float32 or value.source is not None or value.guards:
            return super()._value(value, at)
        args = list(value.args.values())
        if isinstance(node, Apply) and node.op == "exp":
            return self.b.let("exp2_approx", self._power(args[0], at, lanes))
        if isinstance(node, Apply) and node.op == "divide":
            x, y = [value.args[arg.number] for arg in node.args]
            if y.axes < x.axes:
                one = const(1, float32, self.lanes(y.axes))
                inverse = self._once("divide", one, (y, at))
                inverse = self.b.splat(inverse, lanes)
                return self.b.let("multiply", self.at(x, at, lanes), inverse)
        if isinstance(node, Cast) and _rounds(args[0]):
            (wide,) = args[0].args.values()
            if wide.node.dtype is float32:
                return self.at(wide, at, lanes)
        return super()._value(value, at)

    def _power(self, value: Value, at: At, lanes: int) -> Operand:
        """Emit the power of two that a power of e is: of a difference, by one rounding."""
        b, log2_e = self.b, const(LOG2_E, float32, lanes)
        args = [value.args[arg.number] for arg in getattr(value.node, "args", ())]
        if (
            getattr(value.node, "op", "") != "subtract"
            or not args[1].axes < args[0].axes
        ):
            return b.let("multiply", self.at(value, at, lanes), log2_e)
        x, y = args
        times = const(-LOG2_E, float32, self.lanes(y.axes))
        level = self._once("multiply", times, (y, at))
        while getattr(x.node, "op", "") == "where":
            seen, inside, _ = [
                x.args[arg.number] for arg in getattr(x.node, "args", ())
            ]
            if not isinstance(self.found(self.key(seen, at)), Const):
                break
            x = inside
        scaled = times_of(x)
        if scaled is not None and scaled[0].node.dtype is float32:
            x, log2_e = scaled[0], const(scaled[1] * LOG2_E, float32, lanes)
        return b.let("fma", self.at(x, at, lanes), log2_e, b.splat(level, lanes))

    def _once(self, op: str, left: Operand, right: tuple[Value, At]) -> Operand:
        """Emit an operation for all places that one value is of."""
        key = (op, self.key(*right))
        found = self.found(key)
        if found is None:
            value = self.at(*right, left.type.lanes)
            found = self.known[-1][key] = self.b.let(op, left, value)
        return found


def _rounds(value: Value) -> bool:
    plain = value.source is None and not value.guards
    return plain and isinstance(value.node, Cast) and value.node.dtype in HALVES


@dataclass(frozen=True, slots=True)
class _Steps:
    """A block's first row, and its steps up to `end`.

    From `first` and from `edge` on they are masked, from `free` to `edge` they are not.
    """

    at: Position
    first: Operand
    free: Operand
    edge: Operand
    end: Operand


class _Lowering(Panels):
    """Emits one block of a tiling."""

    emits = _Weights
    tiling: WeightedTiling

    def __init__(self, tiling: WeightedTiling) -> None:
        super().__init__(tiling)
        b, keys = self.b, tiling.keys // 2
        self.weighted = whole = tiling.weighted

        def held(name: str, dtype: DType, count: int, of: Sized) -> list[Buffer]:
            return [
                b.alloc(f"{name}_{k}", dtype, count, "register") for k in range(len(of))
            ]

        self.scores = held("scores", float32, keys, whole.scores)
        self.weights = held("weights", whole.dtype, keys, whole.every)
        self.sums = held("sums", float32, tiling.columns // 2, whole.every)
        threads = self.thread, self.thread
        self.stores = [
            Sums(tiling, self.emitter, self.memory, threads, each)
            for each in whole.every
        ]
        self.of_rows: dict[object, Operand] = {}

    def emit(self) -> Lowered:
        """Emit the block, and close the kernel."""
        b, tiling, whole = self.b, self.tiling, self.weighted
        with b.branch(self.is_copying()):
            for tensor in self.tensors.values():
                b.effect("tensor_prefetch", tensor)
            self.barrier("init", "asked", 0, 1)
            for stage in range(tiling.stages):
                self.barrier("init", "full", stage, 1)
                self.barrier("init", "empty", stage, tiling.groups)
            b.effect("mbarrier_publish")
        b.effect("barrier")
        self.steps = self.located(self.block)
        self.by_roles(self.consume, self.produce)
        behind = [value for each in whole.every for value in each.sums.behind]
        return self.lowered([*behind, *whole.between], ())

    def located(self, number: Operand) -> _Steps:
        """Emit which rows are those of a block, and which keys weigh anything for them."""
        b, tiling, whole = self.b, self.tiling, self.weighted
        _, m, _, n = whole.extents
        tall, keys, ahead = ROWS * tiling.groups, tiling.keys, whole.ahead
        down = -(-m // tall)
        tile = b.at("rem", number, down)
        masked = whole.seen is not None
        if masked and whole.upward:  # the longest ones first
            tile = b.at("subtract", down - 1, tile)
        row = b.at("multiply", tile, tall)
        at = Position(self.matrix(b.at("div", number, down)), row, b.number(0))

        def step(offset: int, most: int) -> Operand:
            """Emit the step that a key so far from the first row is in, from 0 on."""
            key = b.at("maximum", b.at("add", row, offset), 0)
            return b.at("minimum", b.at("div", key, keys), most)

        zero, every, free = b.number(0), tiling.steps, n // keys
        if not masked:
            return _Steps(at, zero, zero, b.number(free), b.number(every))
        if whole.upward:
            end = step(tall + ahead + keys - 1, every)
            return _Steps(at, zero, zero, step(ahead + 1, free), end)
        first = step(-ahead, every)
        begun = b.at("maximum", first, step(tall + keys - 2 - ahead, free))
        edge = b.at("maximum", begun, free)
        return _Steps(at, first, begun, edge, b.number(every))

    def produce(self) -> None:
        """Emit the copies of a block's rows, then of its steps as stages are empty."""
        b, tiling, steps, zero = self.b, self.tiling, self.steps, self.b.number(0)

        def bytes_of(panels: dict[str, Panel]) -> int:
            return sum(panel.size * HALF for panel in panels.values())

        self.barrier("expect", "asked", 0, bytes_of(tiling.rows))
        for name in tiling.rows:
            self.load(name, zero, "asked", (steps.at.row, zero), steps.at.matrix)
        # Of a barrier that nobody arrived at, the phase before the first one is over.
        carried = zero, b.number(1)
        with b.loop(steps.first, steps.end, 1, *carried, unroll=1) as loop:
            stage, parity = loop.carried
            b.effect("mbarrier_wait", self.memory["empty"], stage, parity)
            self.barrier("expect", "full", stage, bytes_of(tiling.streams))
            key = b.at("multiply", loop.var, tiling.keys)
            for name in tiling.streams:
                corner = (key, zero) if name in tiling.keys_of else (zero, key)
                self.load(name, stage, "full", corner, steps.at.matrix)
            loop.yields(*self.after(stage, parity))

    def consume(self) -> None:
        """Emit all steps of a block, and what follows from its sums."""
        b, tiling, steps, zero = self.b, self.tiling, self.steps, self.b.number(0)
        self.number_groups()
        self.lead = self.leads()
        for store in self.stores:
            store.prepare(steps.at)
        self.prepare()
        for sums, k in product(self.sums, range(0, tiling.columns // 2, 2)):
            b.store(sums, k, const(0, float32, 2))
        self.arrived("asked", zero, zero)
        carried: Carried = zero, zero
        upward = self.weighted.seen is not None and self.weighted.upward
        cut = self.weighted.extents[3] % tiling.keys > 0
        if self.weighted.seen is not None and not upward:
            carried = self.walk(steps.first, steps.free, carried, masked=True)
        carried = self.walk(steps.free, steps.edge, carried, masked=False)
        if upward or cut:
            self.walk(steps.edge, steps.end, carried, masked=True)
        for store, sums in zip(self.stores, self.sums, strict=True):
            store.emit(sums)

    def prepare(self) -> None:
        """Emit a thread's rows, and what weights are made of that no key changes."""
        b, (_, m, _, _), j = self.b, self.weighted.extents, self.weighted.axes[3]
        warp, lane = b.at("div", self.thread, WARP), b.at("rem", self.thread, WARP)
        row = b.at("add", self.steps.at.row, b.at("multiply", warp, OF_WARP))
        row = b.at("add", row, b.at("div", lane, 4))
        self.rows = [row, b.at("add", row, APART)]
        if m % self.tiling.tall:
            self.rows = [b.at("minimum", each, m - 1) for each in self.rows]
        self.pair = b.at("multiply", b.at("rem", lane, 4), 2)
        values = [v for v in self.weighted.between if j not in v.axes]
        with self.emitter.together(self.places()):
            self.emitter.emit(values, self.emitter.every())
            for known in self.emitter.known[1:]:
                self.of_rows |= known

    def places(self) -> dict[int, tuple[list[Operand], int]]:
        """Return where a thread's rows are, and its matrix along the batch."""
        batch, i, _, _ = self.weighted.axes
        every = zip(batch, self.steps.at.matrix, strict=True)
        return {i: (self.rows, 1), **{k: ([at], 1) for k, at in every}}

    def walk(
        self, first: Operand, end: Operand, carried: Carried, *, masked: bool
    ) -> Carried:
        """Emit some steps."""
        b, zero = self.b, self.b.number(0)
        with b.loop(first, end, 1, *carried, unroll=1) as loop:
            stage, parity = loop.carried
            self.arrived("full", stage, parity)
            for k in range(len(self.scores)):
                self.scored(k, stage)
            for scores in self.scores:
                b.effect("mma_done", scores, zero)
            self.weigh(b.at("multiply", loop.var, self.tiling.keys), masked=masked)
            for k in range(len(self.sums)):
                self.summed(k, stage)
            for sums in self.sums:
                b.effect("mma_done", sums, zero)
            self.leave("empty", stage)
            loop.yields(*self.after(stage, parity))
        return loop.results

    def scored(self, number: int, stage: Operand) -> None:
        """Emit the products of rows and a stage's keys."""
        b, rows, keys = self.b, f"rows_{number}", f"keys_{number}"
        first = b.at("multiply", self.group, self.panels[rows].apart)
        columns = b.at("multiply", stage, self.panels[keys].size)
        b.effect("mma_begin")
        for k in range(0, self.panels[rows].depth, DEPTH):
            tiles = self.tile(rows, first, k), self.tile(keys, columns, k)
            more = b.number(int(k > 0))
            b.body.append(Multiply(self.scores[number], (tiles[0],), tiles[1], more))
        b.effect("mma_commit")

    def summed(self, number: int, stage: Operand) -> None:
        """Emit the products of weights and a stage's values."""
        b, (name, panel) = self.b, self.tiling.values_of[number]
        columns = b.at("multiply", stage, panel.size)
        b.effect("mma_begin")
        for k in range(0, self.tiling.keys, DEPTH):
            kept = Fragment(self.weights[number], k // 2)
            column = self.tile(name, columns, k, panel)
            b.body.append(Multiply(self.sums[number], (kept,), column, b.number(1)))
        b.effect("mma_commit")

    def weigh(self, key: Operand, *, masked: bool) -> None:
        """Emit the weights of a step, from its scores."""
        b, whole, emitter = self.b, self.weighted, self.emitter
        (_, i, _, j), n, lanes = whole.axes, whole.extents[3], whole.key_lanes
        cut = masked and n % self.tiling.keys > 0
        first = b.at("add", key, self.pair)
        groups = self.tiling.keys // 8
        for begin in range(0, groups, TOGETHER):
            columns = [
                b.at("add", first, 8 * group + lane)
                for group in range(begin, min(begin + TOGETHER, groups))
                for lane in range(0, 2, lanes)
            ]
            exist = [b.mask_below(b.at("subtract", n, at), lanes) for at in columns]
            if cut:
                columns = [b.at("minimum", at, n - lanes) for at in columns]
            with emitter.together({**self.places(), j: (columns, lanes)}):
                emitter.known[-1].update(self.of_rows)
                every = emitter.every()
                where = {at: divmod(at[j] * lanes, 2) for at in every}
                for at, (group, lane) in where.items():
                    place = 4 * (begin + group) + 2 * at[i] + lane
                    for score, sums in zip(whole.scores, self.scores, strict=True):
                        found = b.load(sums, place, lanes)
                        emitter.know(
                            score.total, at, b.cast(found, score.total.node.dtype)
                        )
                    if whole.seen is not None and not masked:
                        emitter.know(whole.seen, at, const(True, bool_, lanes))
                emitter.emit(whole.between, every)
                for weights, value in zip(self.weights, whole.weights, strict=True):
                    for at, (group, lane) in where.items():
                        weight = emitter.at(value, at, lanes)
                        if cut:
                            none = const(0, whole.dtype, lanes)
                            weight = b.let("where", exist[at[j]], weight, none)
                        place = 4 * (begin + group) + 2 * at[i] + lane
                        b.store(weights, place, weight, alignment=HALF * lanes)
