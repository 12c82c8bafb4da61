"""Makes functions of whole lines along an axis."""

from __future__ import annotations

from steelyard_kernels import dtypes
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import (
    Along,
    Apply,
    Broadcast,
    Cast,
    Constant,
    Dot,
    Gather,
    Handed,
    Merge,
    Node,
    Reduce,
    Reshape,
    Segments,
    View,
)
from steelyard_kernels.expression.graph import Graph
from steelyard_kernels.expression.indices import axis as axis_of
from steelyard_kernels.expression.indices import offset_in, reshaped
from steelyard_kernels.monoids import ALONG, MONOIDS


def along(graph: Graph, op: str, node: Node, axis: int, *, reverse: bool) -> Node:
    """Return a row of ALONG of a node's lines; raises KernelError for other dtypes.

    Totals have the dtype of their reduction, an order is of int32 or int64 and gives int32.
    """
    row = ALONG[op]
    if row.total:
        kinds = MONOIDS[row.total].kinds
        if node.dtype.kind not in kinds:
            raise KernelError(
                f"{graph.kernel}: {op} of {node.dtype.name} is not defined, expected "
                f"{' or '.join(sorted(kinds))}; cast it first with astype."
            )
        widened = MONOIDS[row.total].widened and node.dtype.kind == "int"
        wide = dtypes.widest(node.dtype) if widened else dtypes.computed(node.dtype)
        node = graph.cast(node, wide)
        if node.shape[axis] == 1:
            return node
    if op == "copy" and lies_in_memory(node, axis):
        return node
    if 0 in node.shape:
        return graph.cast(node, dtypes.int32) if op == "order" else node
    key = (Along, op, node.number, axis, reverse)
    dtype = dtypes.int32 if op == "order" else node.dtype
    return graph.keep(key, Along, node.shape, dtype, op, node, axis, reverse)


def handed(
    graph: Graph, op: str, node: Node, memory: Node, *, axis: int, reverse: bool
) -> Node:
    """Return the total before each element, which blocks hand over in memory."""
    key = (Handed, op, node.number, memory.number, axis, reverse)
    fields = op, node, memory, axis, reverse
    return graph.keep(key, Handed, node.shape, node.dtype, *fields)


def merge(graph: Graph, node: Node, size: int) -> Node:
    """Return the order of lines whose halves are in order, by so many for a thread."""
    *outer, extent = node.shape
    shape = (*outer, extent // size, size)
    return graph.keep((Merge, node.number, size), Merge, shape, dtypes.int32, node)


def segments(graph: Graph, node: Node, starts: Node, axis: int) -> Node:
    """Return the sums of segments along an axis; the last start ends the last one."""
    node = graph.cast(node, dtypes.computed(node.dtype))
    shape = (*starts.shape[:-1], starts.shape[-1] - 1, *node.shape[axis + 1 :])
    key = (Segments, node.number, starts.number, axis)
    return graph.keep(key, Segments, shape, node.dtype, node, starts, axis)


def lies_in_memory(node: Node, axis: int) -> bool:
    """Say whether elements at any place along an axis can be loaded, none computed.

    Of lines these are the elements of one.
    """
    at = tuple(map(axis_of, range(len(node.shape))))
    extents = node.shape
    while isinstance(node, View | Reshape):
        if isinstance(node, Reshape):
            at = reshaped(node.shape, node.arg.shape, at, extents)
        elif node.guards:
            return False
        else:
            at = tuple([each.at(at, extents) for each in node.index])
        node = node.arg
    if isinstance(node, Along):
        line, others = at[node.axis], (*at[: node.axis], *at[node.axis + 1 :])
        inside = line.step(axis) is not None
        return inside and not any(axis in each.axes for each in others)
    computed = Apply, Cast, Broadcast, Reduce, Dot, Gather, Merge, Segments
    if isinstance(node, computed):
        return False
    return offset_in(node.shape, at).step(axis) is not None


def is_order(node: Node) -> bool:
    """Say whether a node has every place of its lines once: an order, or one of another.

    What holds it within a line is looked through, and copies.
    """
    if isinstance(node, Along) and node.op == "copy":
        return is_order(node.arg)
    if isinstance(node, Apply) and node.op in {"minimum", "maximum"}:
        held, end = node.args
        return isinstance(end, Constant) and is_order(held)
    if isinstance(node, Gather):
        same = node.arg.shape == node.shape
        return same and is_order(node.arg) and is_order(node.which)
    return isinstance(node, Along) and node.op == "order"
