"""What a CPU adds to the values of a row: scratch rows, hoisted columns, prefetches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from steelyard_kernels.expression.expr import Input, Node, reachable
from steelyard_kernels.ir.builder import Builder
from steelyard_kernels.ir.loops import Buffer, Operand
from steelyard_kernels.schedule.normalization.outline import COLUMN, ELEMENT
from steelyard_kernels.schedule.normalization.passes import Rows, Walk
from steelyard_kernels.schedule.normalization.values import (
    Row,
    RowValues,
    Scope,
    Spot,
    read_by_rows,
)
from steelyard_kernels.schedule.parameters import Arguments
from steelyard_kernels.schedule.tile import Carried, tile_constant
from steelyard_kernels.schedule.values import Env

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


class ScratchValues(RowValues):
    """Emits the values of one program whose kept rows lie in scratch."""

    def __init__(self, rows: Rows, args: Arguments, knobs: Knobs) -> None:
        lanes = knobs.lanes
        # Rows of scratch start a line apart from each other's cache sets.
        pitch = -(-rows.extent // lanes) * lanes + LINE
        super().__init__(rows, args, Builder(), lanes, pitch)
        self.hoisted: dict[int, Buffer] = {}
        self.direct = read_by_rows(rows)
        self.inputs = [
            (node, rows.inputs[node.number])
            for node in self.nodes
            if isinstance(node, Input)
        ]

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
                env = self.column_values(walk, scope, Spot(place, place, mask))
                for node, buffer in zip(columns, buffers, strict=True):
                    b.store(buffer, place, env[node.number])
            return ()

        tile_constant(b, self.rows.extent, (lanes, 1), body, (), positive=self.count)
        self.hoisted = {
            node.number: buffer for node, buffer in zip(columns, buffers, strict=True)
        }

    def columns(self, walk: Walk, row: Row, spot: Spot) -> Env:
        """Emit what every row of the block reads at a column."""
        if not self.hoisted:
            return super().columns(walk, row, spot)
        shared: Env = {}
        for node in walk.columns:
            if node.number in self.hoisted:
                shared[node.number] = self.vector(self.hoisted[node.number], spot.at)
            elif isinstance(node, Input) and node.number in self.direct:
                buffer = self.args.inputs[node.index]
                shared[node.number] = self.vector(buffer, spot.at, spot.mask)
        return shared

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
            along = b.at("multiply", at, count // parts)
            for part in range(parts):
                line = b.at("add", begin, part * (count // parts) * strides[0])
                b.prefetch(self.args.inputs[node.index], b.at("add", line, along))
