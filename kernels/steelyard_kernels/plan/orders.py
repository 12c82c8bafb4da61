"""Orders of long lines: of their chunks, which are merged, two by two, or chosen from.

A chunk is as long as a thread's memory holds, or a block's, or shorter where there are
fewer lines than cores. All of a line's chunks are alike: the last ones end in elements that
stand behind all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Final

from msgspec import Struct

from steelyard_kernels import dtypes
from steelyard_kernels.expression import expr, views
from steelyard_kernels.expression.expr import Node, Program
from steelyard_kernels.expression.graph import Graph
from steelyard_kernels.expression.indices import Index, axis
from steelyard_kernels.expression.lines import along, merge
from steelyard_kernels.expression.rewrite import rewritten
from steelyard_kernels.nest.axes import stored
from steelyard_kernels.schedule.gpu import Gpu
from steelyard_kernels.schedule.lines import SORT_NS, chosen
from steelyard_kernels.schedule.model import Machine

MOST_THREAD: Final = 1 << 20
"""Bytes of keys that a thread of a CPU puts in order at a time, a quarter of its memory."""
MOST_BLOCK: Final = 1 << 14
"""Those of a GPU's block, which has them and their places in shared memory."""
LEAST: Final = 1 << 13
"""Elements that a core puts in order in the time of some launches."""
PARTS: Final = 8
"""Parts of a chunk that threads of a CPU merge by themselves, some of them side by side."""
MERGE_NS: Final = 10.0
COPY_NS: Final = 3.0
"""Of an element, by one core, in each merge and behind the last one."""
FEWER: Final = 2
"""Times as many elements as those that chunks offer has a line of which some are chosen."""


def with_short_orders(program: Program, device: Machine | Gpu) -> Program:
    """Return a program whose orders are of lines that a device puts in order at once."""
    orders, firsts = Orders(device), dict[int, int]()
    for node in program.nodes:
        if isinstance(node, expr.Along) and node.op == "order":
            first, extent = _first(program, node), node.shape[node.axis]
            lines = prod(node.shape) // extent
            count, _ = orders.count(lines, extent, first, node.arg.dtype.bytes)
            firsts |= {node.number: first} if count > 1 else {}

    def rule(graph: Graph, node: Node, made: Mapping[int, Node]) -> Node | None:
        first = firsts.get(node.number)
        if first is None or not isinstance(node, expr.Along):
            return None
        return orders.found(graph, node, made[node.arg.number], first)

    return rewritten(program, rule) if firsts else program


def _first(program: Program, node: expr.Along) -> int:
    """Return how many elements of an order are asked for, from the first on."""
    extent = node.shape[node.axis]
    ends = [extent for output in program.outputs if stored(output) is node]
    for each in program.nodes:
        if node in expr.operands(each):
            shown = each.index[node.axis] if isinstance(each, expr.View) else None
            ends.append(shown.bounds(each.shape)[1] + 1 if shown else extent)
    return min(extent, max(ends))


class Orders(Struct, frozen=True):
    """How a device takes orders of lines."""

    device: Machine | Gpu

    def found(self, graph: Graph, node: expr.Along, keys: Node, first: int) -> Node:
        """Return the order of keys; behind the first elements there are zeros."""
        rank, extent = len(keys.shape), keys.shape[node.axis]
        there = [*[k for k in range(rank) if k != node.axis], node.axis]
        order = self._order(graph, views.permuted(graph, keys, there), first)
        return views.permuted(
            graph, _cut(graph, order, extent), [there.index(k) for k in range(rank)]
        )

    def count(self, lines: int, extent: int, first: int, size: int) -> tuple[int, bool]:
        """Return into how many chunks a line is cut, and whether they are chosen from.

        `size`: the bytes of a key.
        """
        device = self.device
        if isinstance(device, Gpu):
            count = -(-extent * size // MOST_BLOCK)
            chooses = FEWER * count * first <= extent
            return (count if chooses else _power(count)), chooses
        if chosen(first, extent) < extent:
            idle = -(-device.threads // lines)
            return max(1, min(idle, extent // LEAST, extent // first // FEWER)), True
        counts = [_power(-(-extent * size // MOST_THREAD))]
        while counts[-1] * LEAST < extent:
            counts.append(2 * counts[-1])
        return min(counts, key=lambda each: self._ns(lines, each)), False

    def _ns(self, lines: int, count: int) -> float:
        """Return what an element takes of a CPU where lines are cut into so many chunks."""
        assert isinstance(self.device, Machine)
        turns = -(-lines * count // self.device.threads) / (lines * count)
        levels = count.bit_length() - 1
        return turns * (SORT_NS + levels * MERGE_NS + (count > 1) * COPY_NS)

    def _order(self, graph: Graph, keys: Node, first: int) -> Node:
        """Return the places of the first keys along the last axis."""
        *lead, extent = keys.shape
        count, chooses = self.count(prod(lead), extent, first, keys.dtype.bytes)
        last, own = len(lead), 1 if isinstance(self.device, Gpu) else PARTS
        if count <= 1:
            order = along(graph, "order", keys, last, reverse=False)
            return _cut(graph, order, first)
        size = -(-extent // (count * own)) * own
        wide = _filled(graph, keys, count * size)
        runs = graph.reshape(wide, (*lead, count, size))
        order = along(graph, "order", runs, last + 1, reverse=False)
        order = _cut(graph, order, first if chooses else size)
        column = graph.reshape(graph.arange(count, dtypes.int32), (count, 1))
        begin = graph.apply("multiply", column, graph.constant(size, dtypes.int32))
        places = graph.apply("add", order, begin)
        keys = _at(graph, keys, places)
        if chooses:
            shape = (*lead, count * first)
            keys, places = (graph.reshape(each, shape) for each in (keys, places))
            return _taken(graph, places, self._order(graph, keys, first))
        part = size // own if own > 1 else 1
        while count > 1:
            count, size = count // 2, 2 * size
            shape = (*lead, count, size)
            keys, places = (graph.reshape(each, shape) for each in (keys, places))
            order = merge(graph, keys, part)
            keys, places = (_taken(graph, each, order) for each in (keys, places))
        places = graph.reshape(places, (*lead, size))
        if part == 1:
            return _cut(graph, places, extent)
        number = graph.arange(extent, dtypes.int32)  # so that they are in memory first
        return _taken(graph, places, graph.broadcast(number, (*lead, extent)))


def _power(count: int) -> int:
    """Return the power of two that is no less."""
    return 1 << (count - 1).bit_length()


def _cut(graph: Graph, node: Node, extent: int) -> Node:
    """Return so many elements along the last axis, zeros behind those that there are."""
    rest = (0,) * (len(node.shape) - 1)
    behind = *rest, extent - node.shape[-1]
    return views.padded(graph, node, (0, *rest), behind)


def _filled(graph: Graph, keys: Node, extent: int) -> Node:
    """Return keys with the largest ones behind them, up to an extent."""
    number = graph.arange(extent, dtypes.int32)
    return _known(graph, _cut(graph, keys, extent), number, keys.shape[-1])


def _at(graph: Graph, keys: Node, places: Node) -> Node:
    """Return keys at places along the last axis, the largest behind its end."""
    last = len(keys.shape) - 1
    index = (*map(axis, range(last)), Index())
    found = views.gathered(graph, keys, places, index, last)
    return _known(graph, found, places, keys.shape[-1])


def _known(graph: Graph, keys: Node, places: Node, extent: int) -> Node:
    """Return keys, the largest one at places that are behind an extent."""
    inside = graph.apply("less", places, graph.constant(extent, dtypes.int32))
    largest = graph.constant(keys.dtype.largest, keys.dtype)
    return graph.apply("where", inside, keys, largest)


def _taken(graph: Graph, node: Node, which: Node) -> Node:
    """Return elements along the last axis from where they lie, at places in range."""
    last = len(node.shape) - 1
    index = (*map(axis, range(last)), Index())
    key = (expr.Gather, node.number, which.number, index, last)
    return graph.keep(
        key, expr.Gather, which.shape, node.dtype, node, which, index, last
    )
