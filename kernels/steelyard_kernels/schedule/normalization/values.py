"""Values of a row while it is lowered: scalars, columns, elements, what was kept.

`RowValues` emits what a walk reads at one spot of one row, for every target; a
target's own lowering says where its buffers are, and walks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from steelyard_kernels.expression.expr import Input, Node, Reduce, Scalar, operands
from steelyard_kernels.ir.builder import Builder
from steelyard_kernels.ir.loops import Buffer, Operand, Var
from steelyard_kernels.monoids import accumulator
from steelyard_kernels.schedule.normalization.outline import (
    COLUMN,
    ELEMENT,
    ROW,
    UNIFORM,
)
from steelyard_kernels.schedule.normalization.passes import Pass, Rows, Walk
from steelyard_kernels.schedule.parameters import Arguments
from steelyard_kernels.schedule.space import offset
from steelyard_kernels.schedule.values import Env, Fused, fusions
from steelyard_kernels.schedule.values import lower as lower_node


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
    of every output does. `live` is whether the row exists (None: it surely does).
    """

    place: int | Operand
    number: Operand
    starts: dict[int, Operand]
    scope: Scope
    out: Operand
    live: Operand | None = None


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a walk is: at which element of the row, and of what is kept of a row.

    `mask` says which lanes there are (None: all), `live` the same as a scalar where a
    vector is there as a whole or not at all.
    """

    at: Operand
    kept: Operand
    mask: Operand | None = None
    live: Operand | None = None


def read_by_rows(rows: Rows) -> set[int]:
    """Return the numbers of nodes that elements, sums or outputs read.

    A sum that takes up a product reads its factors, and the product need not exist.
    """
    read = {output.value.number for output in rows.program.outputs}
    for node in rows.program.nodes:
        if rows.places[node.number] == ELEMENT:
            read |= {arg.number for arg in operands(node)}
    for each in rows.passes:
        for item in each.sums:
            read |= {node.number for node in item.reads}
    return read


def kept_exact(rows: Rows) -> set[int]:
    """Return the nodes whose value must exist: no fma may take them up."""
    kept = {output.value.number for output in rows.program.outputs}
    for each in rows.passes:
        kept |= each.stores
        for item in each.sums:
            kept.add(item.arg.number)
            kept |= {factor.number for factor in item.factors or ()}
    return kept


class RowValues:
    """Emits the values of one program cut into passes.

    `lanes` elements a vector; `kept` are the buffers of what passes keep, by slot, and
    rows of a block lie `pitch` elements apart in them. On a GPU the addresses of vectors
    are multiples of their sizes, and loads and stores say so.
    """

    def __init__(
        self,
        rows: Rows,
        args: Arguments,
        b: Builder,
        lanes: int,
        pitch: int,
        *,
        target: str = "cpu",
    ) -> None:
        self.b = b
        self.rows = rows
        self.args = args
        self.lanes = lanes
        self.pitch = pitch
        self.target = target
        self.nodes = rows.program.nodes
        self.fused: Fused = fusions(self.nodes, rows.places, kept_exact(rows))
        self.gone = {fusion.product for fusion in self.fused.values()}
        self.kept: tuple[Buffer, ...] = ()
        self.staged: dict[int, Buffer] = {}  # inputs of this walk, kept before it
        self.spread = self._spread()
        self.count = Var("rows", b.index)  # only the launch knows it

    def _spread(self) -> set[int]:
        """Return the scalars that are read for every element."""
        places = self.rows.places
        read = kept_exact(self.rows)
        for node in self.nodes:
            if places[node.number] in {COLUMN, ELEMENT}:
                read |= {arg.number for arg in operands(node)}
        return {number for number in read if places[number] in {UNIFORM, ROW}}

    def alignment(self, buffer: Buffer) -> int:
        """Return what the address of a vector of a buffer is a multiple of, in bytes."""
        return self.lanes * buffer.dtype.bytes if self.target == "cuda" else 0

    def vector(
        self, buffer: Buffer, at: Operand | int, mask: Operand | None = None
    ) -> Var:
        """Emit a load of one vector."""
        return self.b.load(buffer, at, self.lanes, mask, self.alignment(buffer))

    def node(self, env: Env, node: Node, lanes: int) -> Operand:
        """Emit a node whose operands are in the environment."""
        return lower_node(self.b, env, node, lanes, self.fused, target=self.target)

    def row(
        self, scope: Scope, number: Operand, place: int, live: Operand | None = None
    ) -> Row:
        """Emit where a row's operands begin, and its scalars before any pass."""
        b, space = self.b, self.rows.space
        starts: dict[int, Operand] = {
            node: offset(b, space.extents, space.strides[walk], number)
            for node, walk in self.rows.inputs.items()
        }
        inner = Scope(dict(scope.scalars), dict(scope.vectors))
        self.scalars(inner, starts, ROW, 0)
        out = b.at("multiply", number, self.rows.extent)
        return Row(place, number, starts, inner, out, live)

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
                env[number] = self.node(env, node, 1)
            if number in self.spread:
                scope.vectors[number] = b.splat(env[number], self.lanes)

    def columns(self, walk: Walk, row: Row, spot: Spot) -> Env:
        """Emit what every row of the block reads at a column."""
        # Uniform values are the same in every row's scope: any row's will do.
        return self.column_values(walk.columns, row.scope, spot)

    def column_values(self, columns: Iterable[Node], scope: Scope, spot: Spot) -> Env:
        """Emit one vector of columns from the inputs on."""
        env = dict(scope.vectors)
        made: Env = {}
        for node in columns:
            if isinstance(node, Input):
                buffer = self.args.inputs[node.index]
                made[node.number] = self.vector(buffer, spot.at, spot.mask)
            elif node.number not in self.gone:
                made[node.number] = self.node(env, node, self.lanes)
            if node.number in made:
                env[node.number] = made[node.number]
        return made

    def elements(self, walk: Walk, row: Row, shared: Env, spot: Spot) -> Env:
        """Emit one vector of a row: as it was kept, from inputs, or computed."""
        b = self.b
        env = {**row.scope.vectors, **shared}
        for node in walk.elements:
            number = node.number
            if number in walk.loads:
                buffer, begin = self.slot(node, row)
                env[number] = self.vector(buffer, b.at("add", spot.kept, begin))
            elif isinstance(node, Input):
                env[number] = self.fetch(node, row, spot)
            elif number not in self.gone:
                env[number] = self.node(env, node, self.lanes)
        return env

    def fetch(self, node: Input, row: Row, spot: Spot) -> Operand:
        """Emit one vector of a row of an input."""
        place = self.b.at("add", row.starts[node.number], spot.at)
        return self.vector(self.args.inputs[node.index], place, spot.mask)

    def slot(self, node: Node, row: Row) -> tuple[Buffer, Operand]:
        """Return the buffer of a kept node and where the row begins in it."""
        begin = self.b.at("multiply", row.place, self.pitch)
        return self.kept[self.rows.scratch[node.number]], begin

    def shifts(self, each: Pass, row: Row) -> dict[int, Operand]:
        """Emit the first element of every argument whose moments are taken."""
        b = self.b
        wanted = [item.arg for item in each.sums if item.kind == "moments"]
        env = dict(row.scope.scalars)
        for node in first_elements(wanted, env):
            if isinstance(node, Input):
                at = row.starts[node.number]
                env[node.number] = b.load(self.args.inputs[node.index], at)
            elif node.number not in self.gone:
                env[node.number] = self.node(env, node, 1)
        return {
            arg.number: b.cast(env[arg.number], accumulator(arg.dtype))
            for arg in wanted
        }


def first_elements(wanted: Sequence[Node], known: Env) -> list[Node]:
    """Return what the first elements of nodes are computed from, in order."""
    found: dict[int, Node] = {}
    pending = list(wanted)
    while pending:
        node = pending.pop()
        if node.number not in known and node.number not in found:
            found[node.number] = node
            pending += operands(node)
    return [found[number] for number in sorted(found)]
