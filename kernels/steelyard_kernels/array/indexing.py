"""Elements of an array at indices: Python's, and computed ones."""

from __future__ import annotations

from typing import Any

from steelyard_kernels import dtypes
from steelyard_kernels.array.shapes import place_of, reshape
from steelyard_kernels.array.value import Array, as_array, whole
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression import rows, views
from steelyard_kernels.expression.expr import Constant
from steelyard_kernels.expression.indices import axis as axis_of


def indexed(x: Array, index: Any) -> Array:
    """Return x[index]."""
    if isinstance(index, tuple | slice) or index is None or index is Ellipsis:
        return Array(x.graph, views.indexed(x.graph, x.node, index))
    return row(x, index)


Array.indexed = indexed


def row(x: Array, index: object) -> Array:
    """Return x[index] along the first axis.

    An int may count from the end, and is checked; an index that is an array of shape
    () is known only at run time and is clamped to the first and the last row.
    """
    graph = x.graph
    extent = x.shape[0] if x.shape else 0
    if isinstance(index, Array):
        if index.shape or index.dtype.kind != "int":
            raise KernelError(
                f"{graph.kernel}: an index is {index.dtype} {index.shape}, expected one "
                "int; cast it with astype, or take its elements."
            )
        node = index.node
        if x.shape and not extent:
            raise KernelError(
                f"{graph.kernel}: a value of shape {x.shape} is indexed, but it has no "
                "rows; index an array whose first axis has one or more."
            )
        if not isinstance(node, Constant):
            held = views.held(graph, node, extent)
            return Array(graph, rows.row(graph, x.node, held))
        index = int(node.value)
    place = whole(index)
    if place is None:
        raise KernelError(
            f"{graph.kernel}: a value of shape {x.shape} is indexed by "
            f"{type(index).__name__}, expected one int; scan over it, or write "
            "whole-array operations."
        )
    if x.shape and not -extent <= place < extent:
        raise KernelError(
            f"{graph.kernel}: index {place} of a value of shape {x.shape}, expected "
            f"{-extent} to {extent - 1}; index within its first axis."
        )
    constant = graph.constant(place % extent if extent else 0, dtypes.int64)
    return Array(graph, rows.row(graph, x.node, constant))


def take(x: Array, indices: Array, axis: int | None = None) -> Array:
    """Return the elements at indices along an axis, which these stand in the place of.

    Indices are ints of any number of axes; they are held within the axis.
    """
    x, indices = as_array(x, "take"), as_array(indices, "take")
    place = place_of(x, 0 if axis is None and x.ndim == 1 else axis, x.ndim)
    inner, rank = x.shape[place + 1 :], indices.ndim
    shape = (*x.shape[:place], *indices.shape, *inner)
    which = reshape(indices, (*indices.shape, *(1,) * len(inner)))
    index = [axis_of(each + (rank - 1) * (each > place)) for each in range(x.ndim)]
    node = x.graph.broadcast(which.node, shape)
    return Array(x.graph, views.gathered(x.graph, x.node, node, tuple(index), place))


def take_along_axis(x: Array, indices: Array, *, axis: int = -1) -> Array:
    """Return the elements at indices along an axis, each of its own row.

    `indices` have as many axes as the array; the other axes broadcast.
    """
    x, indices = as_array(x, "take_along_axis"), as_array(indices, "take_along_axis")
    place = place_of(x, axis, x.ndim)
    pairs = list(zip(x.shape, indices.shape, strict=False))
    others = [pair for each, pair in enumerate(pairs) if each != place]
    if indices.ndim != x.ndim or any(
        1 not in pair and len({*pair}) > 1 for pair in others
    ):
        raise KernelError(
            f"{x.graph.kernel}: take_along_axis of shapes {x.shape} and {indices.shape}, "
            f"expected as many axes, and equal extents but along axis {place}."
        )
    shape = [max(pair) if 0 not in pair else 0 for pair in pairs]
    shape[place] = indices.shape[place]
    node = x.graph.broadcast(indices.node, tuple(shape))
    index = [axis_of(each) * (x.shape[each] > 1) for each in range(x.ndim)]
    return Array(x.graph, views.gathered(x.graph, x.node, node, tuple(index), place))
