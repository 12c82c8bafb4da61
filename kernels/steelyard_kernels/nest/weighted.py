"""The lowering of weighted sums: products of a step's keys, weights of them, and sums.

A block keeps 64 rows for each of its warpgroups and takes the keys in steps. Scores become
weights in the registers that they were summed in, which is where sums read their rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from functools import partial
from itertools import product
from typing import Final, TypeAlias

from msgspec import Struct

from steelyard_kernels.dtypes import DType, bool_, float32
from steelyard_kernels.ir.builder import const
from steelyard_kernels.ir.loops import Buffer, Operand
from steelyard_kernels.nest.attention import Panels
from steelyard_kernels.nest.axes import Value
from steelyard_kernels.nest.contraction import reached
from steelyard_kernels.nest.offsets import At
from steelyard_kernels.nest.sums import Position, Sums, of_warp
from steelyard_kernels.nest.weights import Totals, Weights
from steelyard_kernels.schedule.attention import Panel
from steelyard_kernels.schedule.contraction import HALF
from steelyard_kernels.schedule.gpu import WARP
from steelyard_kernels.schedule.parameters import Lowered
from steelyard_kernels.schedule.recipes.weighted import WeightedTiling
from steelyard_kernels.schedule.tile import Carried
from steelyard_kernels.schedule.weighted import Pass

Exist: TypeAlias = Sequence[Operand]
TOGETHER: Final = 4  # groups of 8 keys whose weights are computed together


def lower(tiling: WeightedTiling) -> Lowered:
    """Return the loop-level kernel of weighted sums under a tiling that fits them."""
    return _Lowering(tiling).emit()


class _Steps(Struct, frozen=True):
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

    emits = Weights
    tiling: WeightedTiling  # pyright: ignore[reportIncompatibleVariableOverride] - set once

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
        outputs = whole.every or (whole,)
        behind = [value for each in outputs for value in each.sums.behind]
        return self.lowered([*behind, *whole.between], ())

    def located(self, number: Operand) -> _Steps:
        """Emit which rows are those of a block, and which keys weigh anything for them."""
        b, tiling, whole = self.b, self.tiling, self.weighted
        keys, ahead, tall = tiling.keys, whole.ahead, tiling.tall
        masked = whole.seen is not None
        # The longest ones first.
        at = self.rows_of(number, reverse=masked and whole.upward)
        step = partial(self.step_of, at)
        zero, every, free = b.number(0), tiling.steps, whole.extents[3] // keys
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
        carried: Carried = zero, b.number(1)
        for each in self.weighted.passes:
            names = [f"keys_{k}" for k in each.scores]
            if not each.totals:
                names = list(tiling.streams)
            panels = {name: tiling.streams[name] for name in names}
            with b.loop(steps.first, steps.end, 1, *carried, unroll=1) as loop:
                stage, parity = loop.carried
                b.effect("mbarrier_wait", self.memory["empty"], stage, parity)
                self.barrier("expect", "full", stage, bytes_of(panels))
                key = b.at("multiply", loop.var, tiling.keys)
                for name in names:
                    corner = (key, zero) if name in tiling.keys_of else (zero, key)
                    self.load(name, stage, "full", corner, steps.at.matrix)
                loop.yields(*self.after(stage, parity))
            carried = loop.results

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
        for each in self.weighted.passes:
            carried = self.walks(each, carried)
        for store, sums in zip(self.stores, self.sums, strict=True):
            store.emit(sums)
        if self.weighted.totals:
            self.store()

    def walks(self, now: Pass, carried: Carried) -> Carried:
        """Emit all steps of a walk along the keys, and the totals that it is for."""
        steps, whole = self.steps, self.weighted
        self.now, self.totals = now, None
        self.know(now.ahead, {})
        if now.totals:
            self.totals = Totals(whole, now, self.emitter)
        upward = whole.seen is not None and whole.upward
        if whole.seen is not None and not upward:
            carried = self.walk(steps.first, steps.free, carried, masked=True)
        carried = self.walk(steps.free, steps.edge, carried, masked=False)
        if upward or whole.extents[3] % self.tiling.keys:
            carried = self.walk(steps.edge, steps.end, carried, masked=True)
        self.know((), self.totals.finish() if self.totals else {})
        return carried

    def know(
        self, values: Sequence[Value], totals: Mapping[Value, list[Operand]]
    ) -> None:
        """Emit of some values those that no key changes; remember these, and totals."""
        emitter, (_, i, _, j) = self.emitter, self.weighted.axes
        with emitter.together(self.places()):
            emitter.known[-1].update(self.of_rows)
            for total, at in product(totals, emitter.every()):
                found = self.b.cast(totals[total][at[i]], total.node.dtype)
                emitter.know(total, at, found)
            emitter.emit([v for v in values if j not in v.axes], emitter.every())
            for known in emitter.known[1:]:
                self.of_rows |= known

    def store(self) -> None:
        """Emit what follows from a row's totals, and its stores by one of four threads."""
        b, emitter, whole = self.b, self.emitter, self.weighted
        lane = b.at("rem", b.at("rem", self.thread, WARP), 4)
        first = b.let("equal", lane, b.number(0))
        known = {total.number for level in whole.totals for total in level}
        wanted = [output.value for output in whole.nest.outputs]
        self.know(reached(whole.nest, wanted, known), {})
        with emitter.together(self.places()):
            emitter.known[-1].update(self.of_rows)
            for at in emitter.every():
                exists = self.exist[at[whole.axes[1]]]
                mask = first if exists is None else b.both(first, exists)
                for place, output in enumerate(whole.nest.outputs):
                    where = emitter.offset(output.offset, at)
                    value = emitter.at(output.value, at, 1)
                    b.store(emitter.args.outputs[place], where, value, mask)

    def prepare(self) -> None:
        """Emit a thread's rows, and which of them there are."""
        b, (_, m, _, _) = self.b, self.weighted.extents
        self.rows, lane = of_warp(b, self.thread, self.steps.at.row)
        self.exist: list[Operand | None] = [None, None]
        if m % self.tiling.tall:
            self.exist = [b.let("less", each, b.number(m)) for each in self.rows]
            self.rows = [b.at("minimum", each, m - 1) for each in self.rows]
        self.pair = b.at("multiply", b.at("rem", lane, 4), 2)

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
            for k in self.now.scores:
                names = f"rows_{k}", f"keys_{k}"
                self.multiply_rows(self.scores[k], names, stage)
            for k in self.now.scores:
                b.effect("mma_done", self.scores[k], zero)
            self.weigh(b.at("multiply", loop.var, self.tiling.keys), masked=masked)
            every = zip(self.sums, self.weights, self.tiling.values_of, strict=True)
            for each in every:
                self.multiply_weights(*each, stage, b.number(1))
            for sums in self.sums:
                b.effect("mma_done", sums, zero)
            self.leave("empty", stage)
            loop.yields(*self.after(stage, parity))
        return loop.results

    def know_scores(self, at: At, place: int, lanes: int, *, masked: bool) -> None:
        """Emit the scores of one place, and that all keys are seen where none is masked."""
        whole, emitter = self.weighted, self.emitter
        for k in self.now.scores:
            total, summed = (
                whole.scores[k].total,
                self.b.load(self.scores[k], place, lanes),
            )
            emitter.know(total, at, self.b.cast(summed, total.node.dtype))
        if whole.seen is not None and not masked:
            emitter.know(whole.seen, at, const(True, bool_, lanes))

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

            def inside(
                value: Operand, at: At, nothing: float, e: Exist = exist
            ) -> Operand:
                """Emit a number for keys that there are not."""
                if not cut:
                    return value
                none = const(nothing, value.type.dtype, lanes)
                return b.let("where", e[at[j]], value, none)

            with emitter.together({**self.places(), j: (columns, lanes)}):
                emitter.known[-1].update(self.of_rows)
                every = emitter.every()
                where = {at: divmod(at[j] * lanes, 2) for at in every}
                for at, (group, lane) in where.items():
                    place = 4 * (begin + group) + 2 * at[i] + lane
                    self.know_scores(at, place, lanes, masked=masked)
                if self.totals is not None:
                    parts = {at: 2 * at[i] + lane for at, (_, lane) in where.items()}
                    self.totals.take(parts, inside, lanes)
                    continue
                emitter.emit(self.now.values, every)
                for weights, value in zip(self.weights, self.now.wanted, strict=True):
                    for at, (group, lane) in where.items():
                        found = inside(emitter.at(value, at, lanes), at, 0)
                        place = 4 * (begin + group) + 2 * at[i] + lane
                        b.store(weights, place, found, alignment=HALF * lanes)
