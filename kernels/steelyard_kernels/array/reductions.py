"""Reductions over axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeAlias

from steelyard_kernels import dtypes
from steelyard_kernels.array.shapes import arange, asarray, place_of, real, reshape
from steelyard_kernels.array.value import Array, apply, as_array
from steelyard_kernels.dtypes import DType
from steelyard_kernels.errors import KernelError
from steelyard_kernels.monoids import Monoid, accumulator

Axis: TypeAlias = int | Sequence[int] | None  # None: all axes


@cache
def function_of(row: Monoid) -> Callable[..., Array]:
    """Return the reduction of a row of the table."""

    def function(
        x: Array,
        axis: Axis = None,
        *,
        dtype: DType | str | None = None,
        keepdims: bool = False,
    ) -> Array:
        x = asarray(as_array(x, row.name), dtype=dtype)
        return asarray(_reduce(row.name, x, axis, keepdims), dtype=dtype)

    function.__name__ = function.__qualname__ = row.name
    function.__doc__ = row.doc
    return function


def var(
    x: Array, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False
) -> Array:
    """Return the variance, divided by (count - correction)."""
    x = as_array(x, "var")
    dtype = dtypes.computed(x.dtype)
    return _variance(x, axis, correction, keepdims).astype(dtype)


def _variance(x: Array, axis: Axis, correction: float, keepdims: bool) -> Array:
    """Return the variance, of halves in float32: their squares are beyond a half."""
    result = _reduce("var", x.astype(accumulator(x.dtype)), axis, keepdims)
    correction = real("correction", correction)
    if correction == 0:
        return result
    count = math.prod(x.shape[place] for place in _axes("var", x, axis))
    share = 1 / (count - correction) if count > correction else math.nan
    return result + result * correction * share  # count / (count - correction) of it


def _reduce(op: str, x: Array, axis: Axis, keepdims: bool) -> Array:
    x = as_array(x, op)
    axes = _axes(op, x, axis)
    if not axes:  # each value by itself, and no axis to keep
        row = x.graph.reshape(x.node, (*x.shape, 1))
        return Array(x.graph, x.graph.reduce(op, row, keepdims=False), x.weak)
    return Array(x.graph, x.graph.reduce(op, x.node, axes, keepdims=bool(keepdims)))


def _axes(op: str, x: Array, axis: Axis) -> tuple[int, ...]:
    """Return the axes that are reduced, counted from the front, in order."""
    if axis is None:
        return tuple(range(x.ndim))
    given = axis if isinstance(axis, Sequence) else (axis,)
    axes = sorted(place_of(x, each, x.ndim) for each in given)
    if len(set(axes)) < len(axes):
        raise KernelError(
            f"{x.graph.kernel}: {op} over the axes {axis!r} of shape {x.shape}, expected "
            "each once; name axes that there are."
        )
    return tuple(axes)


def std(
    x: Array, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False
) -> Array:
    """Return the standard deviation, of a variance divided by (count - correction)."""
    x = as_array(x, "std")
    variance = _variance(x, axis, correction, keepdims)
    return apply("sqrt", variance).astype(dtypes.computed(x.dtype))


def any(x: Array, axis: Axis = None, *, keepdims: bool = False) -> Array:  # noqa: A001 - the array API's name
    """Return whether any value is not zero."""
    return _flagged("max", "sum", _flags(x, "any"), axis, keepdims)


def all(x: Array, axis: Axis = None, *, keepdims: bool = False) -> Array:  # noqa: A001 - as any
    """Return whether all values are not zero."""
    return _flagged("min", "prod", _flags(x, "all"), axis, keepdims)


def _flagged(op: str, empty: str, x: Array, axis: Axis, keepdims: bool) -> Array:
    """Return whether a reduction is not zero; `empty` is one that takes no values too."""
    found = _reduce(op if x.size else empty, x, axis, keepdims)
    return apply("not_equal", found, 0)


def count_nonzero(x: Array, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Return how many values are not zero, as int64."""
    return _reduce("sum", _flags(x, "count_nonzero"), axis, keepdims)


def _flags(x: Array, what: str) -> Array:
    """Return 1 where a value is not zero, else 0, as int32."""
    x = as_array(x, what)
    return (x if x.dtype.kind == "bool" else apply("not_equal", x, 0)).astype("int32")


def argmax(x: Array, axis: int | None = None, *, keepdims: bool = False) -> Array:
    """Return the place of the first largest value, or of the first NaN, as int64."""
    return _place("max", x, axis, keepdims)


def argmin(x: Array, axis: int | None = None, *, keepdims: bool = False) -> Array:
    """Return the place of the first smallest value, or of the first NaN, as int64."""
    return _place("min", x, axis, keepdims)


def _place(op: str, x: Array, axis: int | None, keepdims: bool) -> Array:
    """Return the least of the places that hold an extremum: two reductions."""
    x = as_array(x, f"arg{op}")
    shape = x.shape
    if axis is None:
        flat = _place(op, reshape(x, (-1,)), 0, False)
        return reshape(flat, (1,) * len(shape)) if keepdims else flat
    along = place_of(x, axis, len(shape))
    extent = shape[along]
    line = (1,) * along + (extent,) + (1,) * (len(shape) - along - 1)
    counts = "int32" if extent <= dtypes.int32.largest else "int64"
    places = reshape(arange(extent, dtype=counts), line)
    held = apply("where", _holds(op, x, along), places, extent, first=1)
    return _reduce("min", held, along, keepdims).astype("int64")


def _holds(op: str, x: Array, axis: int) -> Array:
    """Return where an extremum is: one comparison an element, with what is beyond it.

    The floats from the extremum on are not on this side of its neighbour. Where that is
    an infinity it has none, and all of the line are extrema; where it is NaN no number is
    beyond infinity, but NaN is.
    """
    if x.dtype.kind != "float":
        return apply("equal", x, _reduce(op, x, axis, True))
    x = x.astype("float32") if x.dtype.bytes < dtypes.float32.bytes else x
    best = _reduce(op, x, axis, True)
    is_max = op == "max"
    far, order = (
        -math.inf if is_max else math.inf,
        f"{'less' if is_max else 'greater'}_equal",
    )
    beyond = apply("nextafter", best, far)
    beyond = apply("where", apply("isnan", best), -far, beyond, first=1)
    beyond = apply("where", apply("equal", best, far), math.nan, beyond, first=1)
    return apply("logical_not", apply(order, x, beyond))
