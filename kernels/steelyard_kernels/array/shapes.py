"""Arrays of constants, and the same values in other shapes."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from math import prod
from typing import Any

from steelyard_kernels import dtypes
from steelyard_kernels.array.value import Array, as_array, current, number
from steelyard_kernels.dtypes import DType
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import Shape


def arange(extent: int, dtype: DType | str = "int64") -> Array:
    """Return 0, 1, 2, ... below extent, of shape (extent,); int32 or int64."""
    graph = current("arange")
    (count,) = extents("arange", (extent,))
    return Array(graph, graph.arange(count, dtypes.of(dtype)))


def full(shape: Shape | int, value: float, dtype: DType | str = "float32") -> Array:
    """Return an array of one value."""
    graph = current("full")
    constant = number(graph, _number("full", value), dtypes.of(dtype))
    return Array(graph, graph.broadcast(constant, extents("full", shape)))


def zeros(shape: Shape | int, dtype: DType | str = "float32") -> Array:
    """Return an array of zeros."""
    return full(shape, 0, dtype)


def ones(shape: Shape | int, dtype: DType | str = "float32") -> Array:
    """Return an array of ones."""
    return full(shape, 1, dtype)


def full_like(x: Array, value: float) -> Array:
    """Return an array of one value, of another's shape and dtype."""
    x = as_array(x, "full_like")
    constant = number(x.graph, _number("full_like", value), x.dtype)
    return Array(x.graph, x.graph.broadcast(constant, x.shape))


def zeros_like(x: Array) -> Array:
    """Return zeros of another array's shape and dtype."""
    return full_like(x, 0)


def ones_like(x: Array) -> Array:
    """Return ones of another array's shape and dtype."""
    return full_like(x, 1)


def broadcast_to(x: Array | float, shape: Shape | int) -> Array:
    """Return the values repeated into a larger shape."""
    x = as_array(x, "broadcast_to")
    return Array(x.graph, x.graph.broadcast(x.node, extents("broadcast_to", shape)))


def reshape(x: Array, shape: Shape | int) -> Array:
    """Return the elements in the same order in another shape; one extent may be -1."""
    x = as_array(x, "reshape")
    asked = extents("reshape", shape, least=-1)
    known = prod(extent for extent in asked if extent != -1)
    if asked.count(-1) == 1 and known and prod(x.shape) % known == 0:
        free = prod(x.shape) // known
        asked = tuple(free if extent == -1 else extent for extent in asked)
    return Array(x.graph, x.graph.reshape(x.node, asked))


def transpose(x: Array) -> Array:
    """Return the array with its last two axes swapped."""
    return as_array(x, "transpose").T


def expand_dims(x: Array, axis: int) -> Array:
    """Return the array with a new axis of extent 1 at `axis`."""
    x = as_array(x, "expand_dims")
    place = place_of(x, axis, x.ndim + 1)
    return reshape(x, (*x.shape[:place], 1, *x.shape[place:]))


def squeeze(x: Array, axis: int | Sequence[int] | None = None) -> Array:
    """Return the array without axes of extent 1: all of them, or those of `axis`."""
    x = as_array(x, "squeeze")
    if axis is None:
        return reshape(x, tuple(extent for extent in x.shape if extent != 1))
    axes = [axis] if isinstance(axis, int) else axis
    gone = {place_of(x, each, x.ndim) for each in axes}
    for place in gone:
        if x.shape[place] != 1:
            raise KernelError(
                f"{x.graph.kernel}: squeeze of axis {place} of shape {x.shape}, expected "
                "an extent of 1; reduce it, or index it."
            )
    kept = [extent for place, extent in enumerate(x.shape) if place not in gone]
    return reshape(x, tuple(kept))


def place_of(x: Array, axis: Any, count: int) -> int:
    """Return an axis counted from the front, of `count` there are."""
    if not isinstance(axis, int) or not -count <= axis < count:
        raise KernelError(
            f"{x.graph.kernel}: axis {axis!r} of shape {x.shape}, expected {-count} to "
            f"{count - 1}; name an axis that there is."
        )
    return axis % count


def extents(what: str, shape: Any, *, least: int = 0) -> Shape:
    """Return a shape that was given as extents or as the one there is.

    Raises KernelError for what is none, or has an extent below `least`.
    """
    given = (shape,) if hasattr(shape, "__index__") else shape
    try:
        asked = tuple(operator.index(extent) for extent in given)
    except TypeError:
        asked = (least - 1,)
    if any(extent < least for extent in asked):
        raise KernelError(
            f"{current(what).kernel}: {what} got the shape {_shown(shape)}, expected "
            "a tuple of ints that are not negative; shapes are known when the kernel "
            "is traced."
        )
    return asked


def _number(what: str, value: object) -> float:
    if isinstance(value, float | int):
        return value
    raise KernelError(
        f"{current(what).kernel}: {what} got a {type(value).__name__}, expected a Python "
        "number; repeat an array's values with broadcast_to."
    )


def _shown(shape: object) -> str:
    return type(shape).__name__ if isinstance(shape, Array) else repr(shape)
