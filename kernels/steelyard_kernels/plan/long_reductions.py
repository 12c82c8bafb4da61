"""Long reductions to one value as two: of chunks, side by side, then of their results.

The order of additions is the program's size alone, whoever runs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Final

from steelyard_kernels.expression.expr import Node, Program, Reduce
from steelyard_kernels.expression.graph import Graph
from steelyard_kernels.expression.rewrite import rewritten
from steelyard_kernels.monoids import MONOIDS, accumulator
from steelyard_kernels.schedule.strategies import is_long

CHUNKS: Final = range(4096, 127, -1)
"""How many there may be, the most first: some for each core or multiprocessor."""


def in_two_steps(program: Program) -> Program:
    """Return the program with its long reductions in two steps, where chunks are alike."""
    return rewritten(program, _rule) if any(map(is_long, program.nodes)) else program


def _rule(graph: Graph, node: Node, made: Mapping[int, Node]) -> Node | None:
    if not isinstance(node, Reduce) or not is_long(node):
        return None
    size = prod(node.arg.shape)
    count = next((count for count in CHUNKS if size % count == 0), 0)
    if not count:
        return None
    op = "sum" if MONOIDS[node.op].mean else node.op
    wide = graph.cast(made[node.arg.number], accumulator(node.dtype))
    rows = graph.reshape(wide, (count, size // count))
    partial = graph.reduce(op, rows, keepdims=False)
    total = graph.reduce(op, partial, keepdims=False)
    if MONOIDS[node.op].mean:
        total = graph.apply("divide", total, graph.constant(size, total.dtype))
    return graph.reshape(graph.cast(total, node.dtype), node.shape)
