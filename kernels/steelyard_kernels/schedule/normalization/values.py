"""Values of a row while it is lowered: scalars, columns, elements, scratch rows.

`RowValues` emits what a walk reads at one place of one row; `lowering` walks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from steelyard_kernels.builder import Builder
from steelyard_kernels.expr import Input, Node, Reduce, Scalar, operands, reachable
from steelyard_kernels.loops import INDEX, Buffer, Operand, Var
from steelyard_kernels.schedule.normalization.passes import (
    COLUMN,
    ELEMENT,
    ROW,
    UNIFORM,
    Pass,
    Rows,
    Walk,
)
from steelyard_kernels.schedule.normalization.sums import accumulator
from steelyard_kernels.schedule.parameters import Arguments
from steelyard_kernels.schedule.space import offset
from steelyard_kernels.schedule.tile import Carried, tile_constant
from steelyard_kernels.schedule.values import Env, Fused, fusions
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

    place: int | Operand
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


class RowValues:
    """Emits the values of one program cut into passes."""

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
        self.count = Var("rows", INDEX)  # only the launch knows it
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

    def hoist(self, scope: Scope) -> None:
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

        tile_constant(b, self.rows.extent, (lanes, 1), body, (), positive=self.count)
        self.hoisted = {
            node.number: buffer for node, buffer in zip(columns, buffers, strict=True)
        }

    def row(self, scope: Scope, first: Operand, place: int) -> Row:
        """Emit where a row's operands begin, and its scalars before any pass."""
        b, space = self.b, self.rows.space
        number = b.at("add", first, place)
        starts: dict[int, Operand] = {
            node: offset(b, space.extents, space.strides[walk], number)
            for node, walk in self.rows.inputs.items()
        }
        inner = Scope(dict(scope.scalars), dict(scope.vectors))
        self.scalars(inner, starts, ROW, 0)
        out = b.at("mul", number, self.rows.extent)
        return Row(place, number, starts, inner, out)

    def scalars(
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

    def columns(self, walk: Walk, row: Row, at: Operand, mask: Operand | None) -> Env:
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

    def elements(
        self, walk: Walk, row: Row, shared: Env, at: Operand, mask: Operand | None
    ) -> Env:
        """Emit one vector of a row: from scratch, from inputs, or computed."""
        b, lanes = self.b, self.lanes
        env = {**row.scope.vectors, **shared}
        for node in walk.elements:
            number = node.number
            if number in walk.loads:
                buffer, begin = self.slot(node, row)
                env[number] = b.load(buffer, b.at("add", at, begin), lanes)
            elif isinstance(node, Input):
                buffer = self.args.inputs[node.index]
                place = b.at("add", row.starts[number], at)
                env[number] = b.load(buffer, place, lanes, mask)
            elif number not in self.gone:
                env[number] = lower_node(b, env, node, lanes, self.fused)
        return env

    def slot(self, node: Node, row: Row) -> tuple[Buffer, Operand]:
        """Return the scratch buffer of a kept node and where the row begins in it."""
        begin = self.b.at("mul", row.place, self.pitch)
        return self.scratch[self.rows.scratch[node.number]], begin

    def prefetch(self, block: Sequence[Row], at: Operand, u: int) -> None:
        """Ask for a part of the next block of rows: all of it, once a cache line.

        A vector of every row is `part` lines of an input whose rows are contiguous:
        line j of them runs through the j-th part of the block.
        """
        b, rows, count = self.b, self.rows, len(block)
        for node, place in self.inputs:
            strides = rows.space.strides[place]
            if rows.places[node.number] != ELEMENT or len(strides) != 1:
                continue
            size = self.lanes * node.dtype.bytes
            parts = max(1, count * size // LINE)
            if count * size < LINE and u * size % LINE:
                continue
            begin = b.at("add", block[0].starts[node.number], count * strides[0])
            along = b.at("mul", at, count // parts)
            for part in range(parts):
                line = b.at("add", begin, part * (count // parts) * strides[0])
                b.prefetch(self.args.inputs[node.index], b.at("add", line, along))

    def shifts(self, each: Pass, row: Row) -> dict[int, Operand]:
        """Emit the first element of every argument whose moments are taken."""
        b = self.b
        wanted = [item.arg for item in each.sums if item.kind == "moments"]
        if not wanted or not self.knobs.shifted:
            return {}
        env = dict(row.scope.scalars)
        walk = each.walk
        for node in sorted((*walk.columns, *walk.elements), key=lambda n: n.number):
            if node.number in walk.loads:
                buffer, begin = self.slot(node, row)
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
