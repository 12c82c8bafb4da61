"""Short lines written out in nodes that small values have: totals and orders.

A running total adds, at each step, what lies twice as far back (Hillis and Steele, "Data
parallel algorithms", 1986). A place in an order is how many keys stand before one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from steelyard_kernels import dtypes
from steelyard_kernels.along import ALONG
from steelyard_kernels.expression.expr import Along, Gather, Node, Program, everywhere
from steelyard_kernels.expression.graph import Graph
from steelyard_kernels.expression.indices import axis
from steelyard_kernels.expression.rewrite import rewritten
from steelyard_kernels.monoids import MONOIDS, accumulator


@lru_cache(maxsize=2)  # a build asks for it to choose a schedule, then to lower
def written_out(program: Program) -> Program:
    """Return a program without functions of whole lines."""
    if not any(isinstance(node, Along) for node in everywhere(program.nodes)):
        return program
    return rewritten(program, _rule)


def _rule(graph: Graph, node: Node, made: Mapping[int, Node]) -> Node | None:
    if isinstance(node, Gather):  # as it is: `gathered` would copy what is computed
        arg, which = made[node.arg.number], made[node.which.number]
        key = (Gather, arg.number, which.number, node.index, node.place)
        fields = (arg, which, node.index, node.place)
        return graph.keep(key, Gather, node.shape, node.dtype, *fields)
    if not isinstance(node, Along):
        return None
    arg = made[node.arg.number]
    if node.op == "copy":
        return arg
    total = ALONG[node.op].total
    return _total(graph, node, arg, total) if total else _order(graph, node, arg)


def _total(graph: Graph, node: Along, arg: Node, total: str) -> Node:
    row, extent = MONOIDS[total], node.shape[node.axis]
    wide = accumulator(arg.dtype)
    found = graph.cast(arg, wide)
    places = _along(graph, graph.arange(extent, dtypes.int32), node)
    step = 1
    while step < extent:
        by = step if node.reverse else -step
        index = [axis(k) for k in range(len(node.shape))]
        index[node.axis] += by
        before = graph.view(found, tuple(index), node.shape)
        last = graph.constant(extent - step if node.reverse else step, dtypes.int32)
        outside = graph.apply("less", places, last)
        if node.reverse:
            outside = graph.apply("logical_not", outside)
        neutral = graph.constant(row.neutral(wide), wide)
        before = graph.apply("where", outside, neutral, before)
        found = graph.apply(row.combine, before, found)
        step *= 2
    return graph.cast(found, node.dtype)


def _order(graph: Graph, node: Along, arg: Node) -> Node:
    """Return where each place is in the order, then which of them is at each."""
    rank, extent = len(node.shape), node.shape[node.axis]
    shape = (*node.shape, extent)
    own = graph.view(arg, tuple(map(axis, range(rank))), shape)
    there = [axis(k) for k in range(rank)]
    there[node.axis] = axis(rank)
    other = graph.view(arg, tuple(there), shape)
    places = graph.arange(extent, dtypes.int32)
    mine, others = _along(graph, places, node, 1), places
    equal = graph.apply("equal", other, own)
    equal = graph.apply("bitwise_and", equal, graph.apply("less", others, mine))
    before = graph.apply("bitwise_or", graph.apply("less", other, own), equal)
    place = _count(graph, before)
    # At place k stands the key i of which place[i] is k: one, so that it is the sum.
    of_i = graph.view(place, tuple(there), shape)
    hit = graph.apply("equal", of_i, mine)
    zero = graph.constant(0, dtypes.int32)
    chosen = graph.apply("where", hit, others, zero)
    return graph.cast(graph.reduce("sum", chosen, keepdims=False), dtypes.int32)


def _count(graph: Graph, flags: Node) -> Node:
    found = graph.reduce("sum", graph.cast(flags, dtypes.int32), keepdims=False)
    return graph.cast(found, dtypes.int32)


def _along(graph: Graph, places: Node, node: Along, behind: int = 0) -> Node:
    """Return the places along a node's axis, so many axes of 1 behind its others."""
    shape = [1] * (len(node.shape) + behind)
    shape[node.axis] = places.shape[0]
    return graph.reshape(places, tuple(shape))
