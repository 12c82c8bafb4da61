"""Arrays of constants, and the same values in other shapes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from steelyard_kernels import dtypes
from steelyard_kernels.array.value import Array, as_array, current
from steelyard_kernels.dtypes import DType
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expr import Shape


def arange(extent: int, dtype: DType | str = "int64") -> Array:
    """Return 0, 1, 2, ... below extent, of shape (extent,); int32 or int64."""
    graph = current("arange")
    return Array(graph, graph.arange(extent, dtypes.of(dtype)))


def full(shape: Shape, value: float, dtype: DType | str = "float32") -> Array:
    """Return an array of one value."""
    graph = current("full")
    constant = graph.constant(value, dtypes.of(dtype))
    return Array(graph, graph.broadcast(constant, tuple(shape)))


def zeros(shape: Shape, dtype: DType | str = "float32") -> Array:
    """Return an array of zeros."""
    return full(shape, 0, dtype)


def ones(shape: Shape, dtype: DType | str = "float32") -> Array:
    """Return an array of ones."""
    return full(shape, 1, dtype)


def full_like(x: Array, value: float) -> Array:
    """Return an array of one value, of another's shape and dtype."""
    constant = x.graph.constant(value, x.dtype)
    return Array(x.graph, x.graph.broadcast(constant, x.shape))


def zeros_like(x: Array) -> Array:
    """Return zeros of another array's shape and dtype."""
    return full_like(x, 0)


def ones_like(x: Array) -> Array:
    """Return ones of another array's shape and dtype."""
    return full_like(x, 1)


def broadcast_to(x: Array | float, shape: Shape) -> Array:
    """Return the values repeated into a larger shape."""
    x = as_array(x, "broadcast_to")
    return Array(x.graph, x.graph.broadcast(x.node, tuple(shape)))


def reshape(x: Array, shape: Shape | int) -> Array:
    """Return the elements in the same order in another shape; one extent may be -1."""
    asked = (shape,) if isinstance(shape, int) else tuple(shape)
    known = prod(extent for extent in asked if extent != -1)
    if asked.count(-1) == 1 and known and prod(x.shape) % known == 0:
        free = prod(x.shape) // known
        asked = tuple(free if extent == -1 else extent for extent in asked)
    return Array(x.graph, x.graph.reshape(x.node, asked))


def transpose(x: Array) -> Array:
    """Return the array with its last two axes swapped."""
    return x.T


def expand_dims(x: Array, axis: int) -> Array:
    """Return the array with a new axis of extent 1 at `axis`."""
    place = _place(x, axis, x.ndim + 1)
    return reshape(x, (*x.shape[:place], 1, *x.shape[place:]))


def squeeze(x: Array, axis: int | Sequence[int] | None = None) -> Array:
    """Return the array without axes of extent 1: all of them, or those of `axis`."""
    if axis is None:
        return reshape(x, tuple(extent for extent in x.shape if extent != 1))
    axes = [axis] if isinstance(axis, int) else axis
    gone = {_place(x, each, x.ndim) for each in axes}
    for place in gone:
        if x.shape[place] != 1:
            raise KernelError(
                f"{x.graph.kernel}: squeeze of axis {place} of shape {x.shape}, expected "
                "an extent of 1; reduce it, or index it."
            )
    kept = [extent for place, extent in enumerate(x.shape) if place not in gone]
    return reshape(x, tuple(kept))


def _place(x: Array, axis: int, count: int) -> int:
    """Return an axis counted from the front, of `count` there are."""
    if not -count <= axis < count:
        raise KernelError(
            f"{x.graph.kernel}: axis {axis} of shape {x.shape}, expected {-count} to "
            f"{count - 1}; name an axis that there is."
        )
    return axis % count
