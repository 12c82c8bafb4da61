"""A row of a computed array is computed of the rows of what it was computed of.

So what was written for whole arrays, as noise drawn ahead of a loop, costs no memory
where a loop takes it row by row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from steelyard_kernels.dtypes import float64, int32
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression import expr
from steelyard_kernels.expression.expr import Node
from steelyard_kernels.expression.graph import Graph
from steelyard_kernels.expression.indices import Index, axis
from steelyard_kernels.expression.structure import closure
from steelyard_kernels.expression.views import gathered


def row(graph: Graph, node: Node, index: Node) -> Node:
    """Return node[index] along the first axis; `index` is a scalar int in range.

    It is taken where the node's values come from: of memory's rows; where its rows cannot
    be computed by themselves, of all of them. Raises KernelError where there is no axis.
    """
    if not node.shape:
        raise KernelError(
            f"{graph.kernel}: a value of shape () has no rows; index an array of one "
            "axis or more."
        )
    if index.dtype.bytes < int32.bytes and not isinstance(index, expr.Constant):
        index = graph.cast(index, int32)  # steps and starts of slices are beyond it
    for below in _through(node):  # from the leaves on: none needs recursion
        _row(graph, below, index)
    found = _row(graph, node, index)
    return gathered_row(graph, node, index) if found is None else found


def gathered_row(graph: Graph, node: Node, index: Node) -> Node:
    """Return the elements of a row, each taken at the index."""
    shape = node.shape[1:]
    places = (Index(), *map(axis, range(len(shape))))
    return gathered(graph, node, graph.broadcast(index, shape), places, 0)


def _through(node: Node) -> list[Node]:
    """Return the nodes whose row at the same index the row may be made of, in order."""
    return closure(
        [node],
        lambda x: [a for a in expr.operands(x) if a.shape[:1] == x.shape[:1] != ()],
        lambda x: type(x) in _RULES,
    )


def _row(graph: Graph, node: Node, index: Node) -> Node | None:
    """Return the row, or None where it cannot be told; found once for each index."""
    key = (node.number, index.number)
    if key not in graph.rows:
        graph.rows[key] = _found(graph, node, index)
    return graph.rows[key]


def _found(graph: Graph, node: Node, index: Node) -> Node | None:
    rule = _RULES.get(type(node))
    found = rule(graph, node, index) if rule else None
    if found is None and isinstance(index, expr.Constant):
        shape = node.shape[1:]
        places = (Index(int(index.value)), *map(axis, range(len(shape))))
        return graph.view(node, places, shape)
    if found is None and in_memory(node):
        return graph.row_of_memory(node, index)
    return found


def in_memory(node: Node) -> bool:
    """Say whether a node's rows lie in memory, at any index."""
    while isinstance(node, expr.Row | expr.Chain) or (
        isinstance(node, expr.View) and node.strided
    ):
        node = node.arg
    while isinstance(node, expr.Reshape):
        node = node.arg
    return isinstance(node, expr.Input) or (
        isinstance(node, expr.Result) and node.stacks
    )


def _part(graph: Graph, arg: Node, axes: int, index: Node) -> Node | None:
    """Return what a row of a result of `axes` axes needs of an operand."""
    if len(arg.shape) < axes:
        return arg
    if arg.shape[0] == 1:
        index = graph.constant(0, index.dtype)
    return _row(graph, arg, index)


def _of_elementwise(
    graph: Graph, node: expr.Apply | expr.Cast | expr.Broadcast, index: Node
) -> Node | None:
    args = expr.operands(node)
    parts = [_part(graph, arg, len(node.shape), index) for arg in args]
    found = [part for part in parts if part is not None]
    return graph.elementwise(node, found, node.shape[1:]) if found == parts else None


def _of_reduce(graph: Graph, node: expr.Reduce, index: Node) -> Node | None:
    if node.axes[0] == 0:
        if not node.keepdims:
            return None
        whole = graph.reduce(node.op, node.arg, node.axes, keepdims=False)
        return graph.reshape(whole, node.shape[1:])
    part = _row(graph, node.arg, index)
    if part is None:
        return None
    axes = tuple(place - 1 for place in node.axes)
    return graph.reduce(node.op, part, axes, keepdims=node.keepdims)


def _of_dot(graph: Graph, node: expr.Dot, index: Node) -> Node | None:
    if len(node.a.shape) == 1:
        return None
    part = _row(graph, node.a, index)
    return None if part is None else graph.dot(part, node.b)


def _of_reshape(graph: Graph, node: expr.Reshape, index: Node) -> Node | None:
    shape = node.shape
    if shape[0] == 1:
        return graph.reshape(node.arg, shape[1:])
    if node.arg.shape[:1] != shape[:1]:
        if in_memory(node):
            return None
        found = _of_joined(graph, node.arg, shape, index)
        return _of_split(graph, node.arg, shape, index) if found is None else found
    part = _row(graph, node.arg, index)
    return None if part is None else graph.reshape(part, shape[1:])


def _of_joined(graph: Graph, arg: Node, shape: expr.Shape, index: Node) -> Node | None:
    """Return the row of an array whose first two axes became one."""
    if arg.shape[2:] != shape[1:] or len(arg.shape) < 2:
        return None
    extent = graph.constant(arg.shape[1], index.dtype)
    outer = _quotient(graph, index, arg.shape[1])
    rest = graph.apply("subtract", index, graph.apply("multiply", outer, extent))
    rows = _row(graph, arg, outer)
    return None if rows is None else _row(graph, rows, rest)


def _of_split(graph: Graph, arg: Node, shape: expr.Shape, index: Node) -> Node | None:
    """Return the row of an array whose first axis became several, by its elements."""
    if isinstance(arg, expr.Arange):
        row = graph.arange(math.prod(shape[1:]), arg.dtype)
        extent = graph.constant(row.shape[0], arg.dtype)
        first = graph.apply("multiply", graph.cast(index, arg.dtype), extent)
        return graph.reshape(graph.apply("add", first, row), shape[1:])
    if not isinstance(arg, expr.Apply | expr.Cast | expr.Broadcast):
        return None
    parts = []
    for part in expr.operands(arg):
        if part.shape != arg.shape and math.prod(part.shape) != 1:
            return None
        same = () if math.prod(part.shape) == 1 else shape
        parts.append(graph.reshape(part, same))
    return _row(graph, graph.elementwise(arg, parts, shape), index)


def _of_view(graph: Graph, node: expr.View, index: Node) -> Node | None:
    """Return the row of a view whose first axis is a slice of its array's."""
    if not node.index:
        return graph.view(node.arg, (), node.shape[1:])
    first, *others = node.index
    step = first.step(0) if first.axes == {0} else None
    low, high = first.bounds(node.shape)
    inside = 0 <= low <= high < node.arg.shape[0]
    mixed = any(0 in each.axes for each in others)
    if in_memory(node) or step is None or not inside or mixed:
        return None
    if first != axis(0):
        if isinstance(index, expr.Constant):
            return None
        steps = graph.apply("multiply", index, graph.constant(step, index.dtype))
        start = graph.constant(first.constant, index.dtype)
        index = graph.apply("add", steps, start)
    part = _row(graph, node.arg, index)
    if part is None:
        return None
    shape = node.shape[1:]
    own = (Index(), *map(axis, range(len(shape))))
    return graph.view(part, tuple(each.at(own, shape) for each in others), shape)


def _quotient(graph: Graph, index: Node, divisor: int) -> Node:
    """Return how often a divisor goes into an index, which is below 2**31.

    Half an integer more than it, over the divisor, is further from integers than what
    float64 rounds off.
    """
    half = graph.constant(0.5, float64)
    middle = graph.apply("add", graph.cast(index, float64), half)
    exact = graph.apply("divide", middle, graph.constant(divisor, float64))
    return graph.cast(graph.apply("floor", exact), index.dtype)


_RULES: Final[dict[type, Callable[[Graph, Any, Node], Node | None]]] = {
    expr.Apply: _of_elementwise,
    expr.Cast: _of_elementwise,
    expr.Broadcast: _of_elementwise,
    expr.Reduce: _of_reduce,
    expr.Dot: _of_dot,
    expr.Arange: lambda graph, node, index: graph.cast(index, node.dtype),
    expr.Reshape: _of_reshape,
    expr.View: _of_view,
}
