"""Functions of whole lines along an axis: running totals, orders, searches.

An order is one of int32 or int64 keys, as which all dtypes compare: NaN is above all
numbers, the zeros are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final

from steelyard_kernels import dtypes
from steelyard_kernels.array.elementwise import bitcast
from steelyard_kernels.array.indexing import take, take_along_axis
from steelyard_kernels.array.moves import pad
from steelyard_kernels.array.reductions import argmin
from steelyard_kernels.array.shapes import (
    arange,
    asarray,
    integer,
    place_of,
    reshape,
    zeros,
)
from steelyard_kernels.array.value import Array, apply, as_array
from steelyard_kernels.dtypes import DType
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression import lines, views
from steelyard_kernels.monoids import MONOIDS, Line

COMPARED: Final = 1 << 18
"""Elements times places that are compared to add up those of each place: beyond 2**14 a
core is quicker by segments, a GPU where there are some thousand elements.
"""


@cache
def function_of(row: Line) -> Callable[..., Array]:
    """Return the running total of a row of the table."""

    def function(
        x: Array,
        *,
        axis: int | None = None,
        dtype: DType | str | None = None,
        include_initial: bool = False,
    ) -> Array:
        x = as_array(x, row.name)
        place = place_of(x, 0 if axis is None and x.ndim == 1 else axis, x.ndim)
        x = asarray(x, dtype=dtype)
        node = lines.along(x.graph, row.name, x.node, place, reverse=False)
        found = asarray(Array(x.graph, node), dtype=dtype)
        if not include_initial:
            return found
        widths = [(int(each == place), 0) for each in range(x.ndim)]
        return pad(found, widths, value=MONOIDS[row.total].neutral(found.dtype))

    function.__name__ = function.__qualname__ = row.name
    function.__doc__ = row.doc
    return function


def argsort(
    x: Array, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> Array:
    """Return where the least value along an axis is, the next one, and so on, as int64.

    Equal values keep their order in both directions, `stable` or not; NaN is above all.
    """
    del stable
    return _order(as_array(x, "argsort"), axis, descending).astype("int64")


def sort(
    x: Array, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> Array:
    """Return the values along an axis from the least up; see `argsort`."""
    del stable
    x = as_array(x, "sort")
    if not x.shape[place_of(x, axis, x.ndim)]:
        return x
    return take_along_axis(x, _order(x, axis, descending), axis=axis)


def topk(
    x: Array, k: int, *, axis: int = -1, largest: bool = True
) -> tuple[Array, Array]:
    """Return the k largest values along an axis, or the least, and their places as int64.

    They are in order; of equal values the first is taken.
    """
    x, k = as_array(x, "topk"), integer("topk", k)
    place = place_of(x, axis, x.ndim)
    if not 0 <= k <= x.shape[place]:
        raise KernelError(
            f"{x.graph.kernel}: topk of {k} of shape {x.shape} along axis {place}, "
            f"expected 0 to {x.shape[place]}."
        )
    if not x.shape[place]:
        return x, x.astype("int64")
    if k == 1:  # one walk, not a sort
        key = _key(x)
        key = apply("bitwise_invert", key) if largest else key
        order = argmin(key, axis=place, keepdims=True).astype("int32")
    else:
        order = _order(x, place, largest)[(*[slice(None)] * place, slice(k))]
    return take_along_axis(x, order, axis=place), order.astype("int64")


def _order(x: Array, axis: int, descending: bool) -> Array:
    """Return the order along an axis as int32."""
    place = place_of(x, axis, x.ndim)
    if not x.shape[place]:
        return x.astype("int32")
    key = _key(x)
    key = apply("bitwise_invert", key) if descending else key
    node = lines.along(x.graph, "order", key.node, place, reverse=False)
    return Array(x.graph, node)


def _key(x: Array) -> Array:
    """Return int32 keys in the values' order, of values of 64 bits int64."""
    dtype = x.dtype
    wanted = dtypes.int64 if dtype.bytes == 8 else dtypes.int32
    if dtype.kind == "float":
        wide = x if dtype.bytes == 8 else x.astype("float32")
        x = apply("where", wide == 0, 0, ranked(wide), first=1)
        return apply("where", wide != wide, int(wanted.largest), x, first=1)  # noqa: PLR0124 - NaN
    if dtype.bytes < wanted.bytes or dtype.signed:
        return x.astype(wanted)
    return apply("bitwise_xor", bitcast(x, wanted), int(wanted.smallest))


def ranked(x: Array) -> Array:
    """Return integers in the total order of floats, IEEE 754's, and others as they are.

    It is -NaN, ..., -0, 0, ..., NaN.
    """
    if x.dtype.kind != "float":
        return x
    wanted = dtypes.int64 if x.dtype.bytes == 8 else dtypes.int32
    wide = x if x.dtype.bytes == 8 else x.astype("float32")  # NaN keeps its sign
    bits = bitcast(wide, wanted)
    turned = apply("bitwise_xor", bits, int(wanted.largest))
    return apply("where", bits < 0, turned, bits)


def searchsorted(
    x1: Array, x2: Array, /, *, side: str = "left", sorter: Array | None = None
) -> Array:
    """Return how many values of x1, in order, are below each of x2, as int64.

    `side` "right": or equal to it. `sorter` is where x1 has its values in order. A binary
    search; NaN is above all.
    """
    x1, x2 = as_array(x1, "searchsorted"), as_array(x2, "searchsorted")
    if x1.ndim != 1 or side not in {"left", "right"}:
        raise KernelError(
            f"{x1.graph.kernel}: searchsorted in shape {x1.shape}, side {side!r}, expected "
            "one axis, and 'left' or 'right'."
        )
    common = dtypes.promote(x1.dtype, x2.dtype)
    wanted = x2.astype(common)

    def is_below(place: Array) -> Array:
        if sorter is not None:
            place = take(sorter, place)
        here = take(x1, place).astype(common)
        return _below(here, wanted) if side == "left" else ~_below(wanted, here)

    return _searched(zeros(x2.shape, "int64"), x1.shape[0], is_below)


def _searched(found: Array, count: int, is_below: Callable[[Array], Array]) -> Array:
    """Return how many of the first places are below what is looked for, from zeros on."""
    step = 1 << count.bit_length() >> 1
    while step:
        there = found + step
        place = views.held(found.graph, (there - 1).node, count)
        below = is_below(Array(found.graph, place)) & (there <= count)
        found = apply("where", below, there, found)
        step //= 2
    return found


def sums_at(x: Array, which: Array, extent: int) -> Array:
    """Return for each place below an extent the sum of the values that belong there.

    `which` has their places, along its last axis; the axes before are those of the values
    too, whose axes behind are those of the sums. Values are added up in their order, by
    segments of them in the order of their places.
    """
    axis = which.ndim - 1
    which = which.astype("int32")
    order = _order(which, axis, descending=False)
    ordered = _kept(take_along_axis(which, order, axis=axis))
    row = arange(extent + 1, dtype="int32")
    starts = _searched(
        zeros((*which.shape[:axis], extent + 1), "int32"),
        which.shape[axis],
        lambda place: take_along_axis(ordered, place, axis=axis) < row,
    )
    order = reshape(order, (*order.shape, *(1,) * (x.ndim - which.ndim)))
    taken = take_along_axis(x, order, axis=axis)
    found = lines.segments(x.graph, taken.node, _kept(starts).node, axis)
    return Array(x.graph, found)


def _kept(x: Array) -> Array:
    """Return an array that is in memory before elements of it are taken."""
    node = lines.along(x.graph, "copy", x.node, x.ndim - 1, reverse=False)
    return Array(x.graph, node)


def spread(g: Array, starts: Array, count: int, axis: int) -> Array:
    """Return what each of so many values has of the segment in which it is added up."""
    number = arange(count, dtype="int32")
    row = _searched(
        zeros((*starts.shape[:axis], count), "int32"),
        starts.shape[axis],
        lambda place: take_along_axis(starts, place, axis=axis) <= number,
    )
    row = reshape(row - 1, (*row.shape, *(1,) * (g.ndim - row.ndim)))
    return take_along_axis(g, row, axis=axis)


def _below(a: Array, b: Array) -> Array:
    """Return whether a is before b in order: NaN is last."""
    return (a < b) | ((a == a) & (b != b))  # noqa: PLR0124 - NaN
