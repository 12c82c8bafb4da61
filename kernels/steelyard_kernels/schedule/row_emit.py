"""Lowering of passes over rows: a block of rows at a time, every pass by vectors.

Each row of a block has its own accumulators and scalars; columns (a bias, a weight)
are loaded and widened once for the block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final, TypeAlias

from steelyard_kernels.builder import Builder, const
from steelyard_kernels.expr import Input, Node, Reduce, Scalar, operands, reachable
from steelyard_kernels.loops import INDEX, Buffer, Kernel, Operand, Var
from steelyard_kernels.schedule.parameters import Arguments
from steelyard_kernels.schedule.passes import (
    COLUMN,
    ELEMENT,
    ROW,
    UNIFORM,
    Pass,
    Rows,
    Sum,
    Walk,
)
from steelyard_kernels.schedule.row_sums import (
    accumulate,
    accumulator,
    cancelled,
    finish,
    neutral,
    total,
)
from steelyard_kernels.schedule.space import offset
from steelyard_kernels.schedule.tile import Carried, tile_constant
from steelyard_kernels.schedule.values import Env, Fused, fusions, operand
from steelyard_kernels.schedule.values import lower as lower_node

LINE: Final = 64  # bytes of a cache line on every CPU we emit for


@dataclass(frozen=True, slots=True)
class Knobs:
    """What the emitter needs of a schedule."""

    lanes: int
    rows: int
    unroll: int
    threads: int
    chunk: int
    stream_alignment: int  # of every vector store, in bytes; 0: no streaming
    prefetch: bool
    hoist: bool  # compute columns once a launch, not once a block
    shifted: bool  # take moments about the row's first element, not about zero


@dataclass(frozen=True, slots=True)
class Scope:
    """Values computed less often than for every element.

    `vectors` has those that are read for every element, in every lane.
    """

    scalars: Env
    vectors: Env


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a block: where it is in the block and in all, and its scalars.

    `starts` says, by input, where the row's part of an input begins, `out` where that
    of every output does.
    """

    place: int
    number: Operand
    starts: dict[int, Operand]
    scope: Scope
    out: Operand


def hoistable(rows: Rows) -> tuple[Node, ...]:
    """Return the computed columns that elements or outputs read."""
    read = read_by_rows(rows)
    return tuple(
        node
        for node in rows.program.nodes
        if rows.places[node.number] == COLUMN
        and node.number in read
        and not isinstance(node, Input)
    )


def read_by_rows(rows: Rows) -> set[int]:
    """Return the numbers of nodes that elements, sums or outputs read."""
    read = {output.value.number for output in rows.program.outputs}
    for node in rows.program.nodes:
        if rows.places[node.number] == ELEMENT or isinstance(node, Reduce):
            read |= {arg.number for arg in operands(node)}
    return read


# visit(row, env, carried, at, mask) uses one vector of a row, returns what it carries.
Visit: TypeAlias = Callable[[Row, Env, Carried, Operand, Operand | None], Carried]
Totals: TypeAlias = dict[int, dict[str, Operand]]


class RowEmitter:
    """Emits a program cut into passes."""

    def __init__(self, rows: Rows, args: Arguments, knobs: Knobs) -> None:
        self.b = Builder()
        self.rows = rows
        self.args = args
        self.knobs = knobs
        self.lanes = knobs.lanes
        self.nodes = rows.program.nodes
        self.fused: Fused = fusions(self.nodes, rows.places, self._kept())
        self.gone = {fusion.product for fusion in self.fused.values()}
        # Rows of scratch start a line apart from each other's cache sets.
        self.pitch = -(-rows.extent // self.lanes) * self.lanes + LINE
        self.scratch: tuple[Buffer, ...] = ()
        self.spread = self._spread()
        self.hoisted: dict[int, Buffer] = {}
        self.count = Var("rows", INDEX)
        self.direct = read_by_rows(rows)
        self.inputs = [
            (node, rows.inputs[node.number])
            for node in self.nodes
            if isinstance(node, Input)
        ]

    def _kept(self) -> set[int]:
        """Return the nodes whose value must exist: no fma may take them up."""
        kept = {output.value.number for output in self.rows.program.outputs}
        for each in self.rows.passes:
            kept |= each.stores
            for item in each.sums:
                kept.add(item.arg.number)
                kept |= {factor.number for factor in item.factors or ()}
        return kept

    def _spread(self) -> set[int]:
        """Return the scalars that are read for every element."""
        places = self.rows.places
        read = self._kept()
        for node in self.nodes:
            if places[node.number] in {COLUMN, ELEMENT}:
                read |= {arg.number for arg in operands(node)}
        return {number for number in read if places[number] in {UNIFORM, ROW}}

    def kernel(self) -> Kernel:
        """Emit the whole kernel; its last parameter is the number of rows."""
        b, knobs = self.b, self.knobs
        self.scratch = tuple(
            b.alloc(f"scratch{slot}", dtype, knobs.rows * self.pitch)
            for slot, dtype in enumerate(self.rows.slots)
        )
        scope = Scope({}, {})
        self._scalars(scope, {}, UNIFORM, 0)
        if knobs.hoist:
            self._hoist(scope)
        with b.parallel(self.count, knobs.chunk, knobs.threads) as (low, high):
            self._blocks(scope, low, high)
        if knobs.stream_alignment:
            b.fence()
        return b.kernel("kernel", (*self.args.order, self.count))

    def _hoist(self, scope: Scope) -> None:
        """Emit the columns that rows read, such as a widened bias, into scratch."""
        b, lanes = self.b, self.lanes
        columns = hoistable(self.rows)
        buffers = [b.alloc("column", node.dtype, self.pitch) for node in columns]
        needed = reachable(columns)
        walk = [n for n in needed if self.rows.places[n.number] == COLUMN]

        def body(
            at: Operand, vectors: int, mask: Operand | None, _: Carried
        ) -> Carried:
            for u in range(vectors):
                place = b.at("add", at, u * lanes)
                env = self._column_values(walk, scope, place, mask)
                for node, buffer in zip(columns, buffers, strict=True):
                    b.store(buffer, place, env[node.number])
            return ()

        tile_constant(b, self.rows.extent, (lanes, 1), body, (), self.count)
        self.hoisted = {
            node.number: buffer for node, buffer in zip(columns, buffers, strict=True)
        }

    def _blocks(self, scope: Scope, low: Operand, high: Operand) -> None:
        """Emit the chunk by blocks; rows that fill no block go one by one."""
        b, block = self.b, self.knobs.rows
        ragged = self.rows.rows % block != 0
        whole = high
        if ragged:
            blocks = b.at("div", b.at("sub", high, low), block)
            whole = b.at("add", low, b.at("mul", blocks, block))
        with b.loop(low, whole, block) as loop:
            self._block(scope, loop.var, block)
        if ragged:
            with b.loop(whole, high, 1) as loop:
                self._block(scope, loop.var, 1)

    def _block(self, scope: Scope, first: Operand, count: int) -> None:
        """Emit all passes over `count` rows from `first` on."""
        block = [self._row(scope, first, k) for k in range(count)]
        last = len(self.rows.passes) - 1
        for index, each in enumerate(self.rows.passes):
            prefetch = self.knobs.prefetch and index == last
            self._pass(each, block, prefetch=prefetch)
            for row in block:
                self._scalars(row.scope, row.starts, ROW, index + 1)
        self._row_outputs(block)

    def _row(self, scope: Scope, first: Operand, place: int) -> Row:
        """Emit where a row's operands begin, and its scalars before any pass."""
        b, space = self.b, self.rows.space
        number = b.at("add", first, place)
        starts: dict[int, Operand] = {
            node: offset(b, space.extents, space.strides[walk], number)
            for node, walk in self.rows.inputs.items()
        }
        inner = Scope(dict(scope.scalars), dict(scope.vectors))
        self._scalars(inner, starts, ROW, 0)
        out = b.at("mul", number, self.rows.extent)
        return Row(place, number, starts, inner, out)

    def _scalars(
        self, scope: Scope, starts: dict[int, Operand], place: int, depth: int
    ) -> None:
        """Emit the scalars of a place and depth; those read in loops are spread."""
        b, rows = self.b, self.rows
        env = scope.scalars
        for node in self.nodes:
            number = node.number
            if rows.places[number] != place or rows.depths[number] != depth:
                continue
            if isinstance(node, Input):
                buffer = self.args.inputs[node.index]
                env[number] = b.load(buffer, starts.get(number, 0))
            elif isinstance(node, Scalar):
                env[number] = self.args.scalars[node.name]
            elif not isinstance(node, Reduce) and number not in self.gone:
                env[number] = lower_node(b, env, node, 1, self.fused)
            if number in self.spread:
                scope.vectors[number] = b.splat(env[number], self.lanes)

    def _pass(self, each: Pass, block: Sequence[Row], *, prefetch: bool) -> None:
        """Emit one walk over the block, then what its reductions come to."""
        b, lanes = self.b, self.lanes
        shifts = [self._shifts(each, row) for row in block]
        wide = [
            {number: b.splat(value, lanes) for number, value in row_shifts.items()}
            for row_shifts in shifts
        ]
        start = [neutral(item, lanes) for item in each.sums]

        def visit(
            row: Row, env: Env, into: Carried, at: Operand, mask: Operand | None
        ) -> Carried:
            out: list[Operand] = []
            for item, values in zip(each.sums, start, strict=True):
                mine = into[len(out) : len(out) + len(values)]
                shift = wide[row.place].get(item.arg.number)
                if item.kind != "moments":
                    shift = None
                out += accumulate(b, item, env, mine, shift=shift, mask=mask)
            self._keep(each, env, row, at)
            self._store(each, env, row, at, mask)
            return tuple(out)

        first = tuple(value for values in start for value in values)
        parts = self._walk(each.walk, block, first, visit, prefetch=prefetch)
        found = []
        for row in block:
            values = self._finish(each, start, parts[row.place], shifts[row.place])
            found.append(values)
        if each.again is not None:
            self._walk_again(each, each.again, block, found)
        for row, values in zip(block, found, strict=True):
            for node in each.reduces:
                value = values[node.arg.number][node.op]
                row.scope.scalars[node.number] = b.cast(value, node.dtype)

    def _walk(
        self,
        walk: Walk,
        block: Sequence[Row],
        first: Carried,
        visit: Visit,
        *,
        prefetch: bool = False,
    ) -> list[list[Carried]]:
        """Emit a walk over the block that carries `first` for every row and vector.

        Returns what each row carries in the end: one tuple an unrolled vector.
        """
        b, lanes, unroll = self.b, self.lanes, self.knobs.unroll
        width = len(first)

        def body(
            at: Operand, vectors: int, mask: Operand | None, carried: Carried
        ) -> Carried:
            out = list(carried)
            for u in range(vectors):
                place = b.at("add", at, u * lanes)
                shared = self._columns(walk, block[0], place, mask)
                for k, row in enumerate(block):
                    if prefetch and mask is None:
                        self._prefetch(row, place, u, len(block))
                    env = self._elements(walk, row, shared, place, mask)
                    begin = (k * unroll + u) * width
                    mine = tuple(out[begin : begin + width])
                    out[begin : begin + width] = visit(row, env, mine, place, mask)
            return tuple(out)

        every = first * (len(block) * unroll)
        carried = tile_constant(
            b, self.rows.extent, (lanes, unroll), body, every, self.count
        )
        parts = [
            carried[i * width : (i + 1) * width] for i in range(len(block) * unroll)
        ]
        return [parts[k * unroll : (k + 1) * unroll] for k in range(len(block))]

    def _columns(self, walk: Walk, row: Row, at: Operand, mask: Operand | None) -> Env:
        """Emit what every row of the block reads at a column."""
        # Uniform values are the same in every row's scope: the first row's will do.
        if not self.hoisted:
            return self._column_values(walk.columns, row.scope, at, mask)
        b, lanes = self.b, self.lanes
        shared: Env = {}
        for node in walk.columns:
            if node.number in self.hoisted:
                shared[node.number] = b.load(self.hoisted[node.number], at, lanes)
            elif isinstance(node, Input) and node.number in self.direct:
                buffer = self.args.inputs[node.index]
                shared[node.number] = b.load(buffer, at, lanes, mask)
        return shared

    def _column_values(
        self, columns: Iterable[Node], scope: Scope, at: Operand, mask: Operand | None
    ) -> Env:
        """Emit one vector of columns from the inputs on."""
        b, lanes = self.b, self.lanes
        env = dict(scope.vectors)
        made: Env = {}
        for node in columns:
            if isinstance(node, Input):
                buffer = self.args.inputs[node.index]
                made[node.number] = b.load(buffer, at, lanes, mask)
            elif node.number not in self.gone:
                made[node.number] = lower_node(b, env, node, lanes, self.fused)
            if node.number in made:
                env[node.number] = made[node.number]
        return made

    def _elements(
        self, walk: Walk, row: Row, shared: Env, at: Operand, mask: Operand | None
    ) -> Env:
        """Emit one vector of a row: from scratch, from inputs, or computed."""
        b, lanes = self.b, self.lanes
        env = {**row.scope.vectors, **shared}
        for node in walk.elements:
            number = node.number
            if number in walk.loads:
                buffer, begin = self._slot(node, row)
                env[number] = b.load(buffer, b.at("add", at, begin), lanes)
            elif isinstance(node, Input):
                buffer = self.args.inputs[node.index]
                place = b.at("add", row.starts[number], at)
                env[number] = b.load(buffer, place, lanes, mask)
            elif number not in self.gone:
                env[number] = lower_node(b, env, node, lanes, self.fused)
        return env

    def _slot(self, node: Node, row: Row) -> tuple[Buffer, int]:
        """Return the scratch buffer of a kept node and where the row begins in it."""
        return self.scratch[self.rows.scratch[node.number]], row.place * self.pitch

    def _keep(self, each: Pass, env: Env, row: Row, at: Operand) -> None:
        """Emit the stores to scratch; its rows are padded, so no mask is needed."""
        for node in each.walk.elements:
            if node.number in each.stores:
                buffer, begin = self._slot(node, row)
                self.b.store(buffer, self.b.at("add", at, begin), env[node.number])

    def _store(
        self, each: Pass, env: Env, row: Row, at: Operand, mask: Operand | None
    ) -> None:
        """Emit the outputs of this pass; those of whole vectors may stream."""
        b = self.b
        alignment = self.knobs.stream_alignment if mask is None else 0
        for place in each.outputs:
            value = self.rows.program.outputs[place].value
            b.store(
                self.args.outputs[place],
                b.at("add", row.out, at),
                operand(b, env, value, self.lanes),
                mask,
                streaming=alignment > 0,
                alignment=alignment,
            )

    def _prefetch(self, row: Row, at: Operand, u: int, ahead: int) -> None:
        """Ask for the same elements of the next block, once a cache line."""
        b, rows = self.b, self.rows
        for node, place in self.inputs:
            strides = rows.space.strides[place]
            size = node.dtype.bytes
            whole = rows.places[node.number] == ELEMENT and len(strides) == 1
            if whole and u * self.lanes * size % LINE == 0:
                begin = b.at("add", row.starts[node.number], ahead * strides[0])
                b.prefetch(self.args.inputs[node.index], b.at("add", begin, at))

    def _shifts(self, each: Pass, row: Row) -> dict[int, Operand]:
        """Emit the first element of every argument whose moments are taken."""
        b = self.b
        wanted = [item.arg for item in each.sums if item.kind == "moments"]
        if not wanted or not self.knobs.shifted:
            return {}
        env = dict(row.scope.scalars)
        walk = each.walk
        for node in sorted((*walk.columns, *walk.elements), key=lambda n: n.number):
            if node.number in walk.loads:
                buffer, begin = self._slot(node, row)
                env[node.number] = b.load(buffer, begin)
            elif isinstance(node, Input):
                at = row.starts[node.number]
                env[node.number] = b.load(self.args.inputs[node.index], at)
            elif node.number not in self.gone:
                env[node.number] = lower_node(b, env, node, 1, self.fused)
        return {
            arg.number: b.cast(env[arg.number], accumulator(arg.dtype))
            for arg in wanted
        }

    def _finish(
        self,
        each: Pass,
        start: Sequence[Carried],
        parts: Sequence[Carried],
        shifts: Mapping[int, Operand],
    ) -> Totals:
        """Emit what a row's sums come to, by argument and the reduction's name."""
        found: Totals = {}
        place = 0
        for item, values in zip(each.sums, start, strict=True):
            mine = [part[place + i] for part in parts for i in range(len(values))]
            place += len(values)
            totals = total(self.b, item, mine)
            shift = shifts.get(item.arg.number)
            results = finish(self.b, item, totals, shift, self.rows.extent)
            found.setdefault(item.arg.number, {}).update(results)
        return found

    def _walk_again(
        self, each: Pass, walk: Walk, block: Sequence[Row], found: Sequence[Totals]
    ) -> None:
        """Emit a second walk for the variances, taken where a row cancelled."""
        b, lanes = self.b, self.lanes
        args = [item.arg for item in each.sums if item.kind == "moments"]
        squares = [Sum("squares", arg, frozenset()) for arg in args]
        mine = [(row, item) for row in block for item in squares]
        lost = [cancelled(b, found[row.place][item.arg.number]) for row, item in mine]
        means = {
            (row.place, item.arg.number): b.splat(
                found[row.place][item.arg.number]["mean"], lanes
            )
            for row, item in mine
        }

        def visit(
            row: Row, env: Env, into: Carried, _at: Operand, mask: Operand | None
        ) -> Carried:
            out: list[Operand] = []
            for item, value in zip(squares, into, strict=True):
                mean = means[row.place, item.arg.number]
                out += accumulate(b, item, env, (value,), shift=mean, mask=mask)
            return tuple(out)

        with b.branch(reduce(lambda x, y: b.let("or", x, y), lost)) as branch:
            first = tuple(neutral(item, lanes)[0] for item in squares)
            parts = self._walk(walk, block, first, visit)
            exact = []
            for row, item in mine:
                place = squares.index(item)
                (sum_,) = total(b, item, [part[place] for part in parts[row.place]])
                share = const(1 / self.rows.extent, sum_.type.dtype)
                exact.append(b.let("mul", sum_, share))
            branch.gives(*exact)
            branch.otherwise()
            branch.gives(*(found[row.place][i.arg.number]["var"] for row, i in mine))
        for (row, item), result in zip(mine, branch.results, strict=True):
            found[row.place][item.arg.number]["var"] = result

    def _row_outputs(self, block: Sequence[Row]) -> None:
        """Emit the outputs that have one value a row."""
        wide = {place for each in self.rows.passes for place in each.outputs}
        for place, output in enumerate(self.rows.program.outputs):
            if place not in wide:
                for row in block:
                    value = row.scope.scalars[output.value.number]
                    self.b.store(self.args.outputs[place], row.number, value)
