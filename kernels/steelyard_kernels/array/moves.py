"""The array API's manipulation functions: the same elements at other places.

All are views: none costs memory or a copy by itself.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from math import prod
from typing import Any

from steelyard_kernels import dtypes
from steelyard_kernels.array.shapes import (
    broadcast_to,
    expand_dims,
    extents,
    integer,
    place_of,
    reshape,
)
from steelyard_kernels.array.tracing import current
from steelyard_kernels.array.value import Array, apply, as_array
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression import views


def permute_dims(x: Array, axes: Sequence[int]) -> Array:
    """Return the array with its axes in another order: result axis i is axes[i]."""
    x = as_array(x, "permute_dims")
    order = [place_of(x, each, x.ndim) for each in _several(axes)]
    return Array(x.graph, views.permuted(x.graph, x.node, order))


def matrix_transpose(x: Array) -> Array:
    """Return the array with its last two axes swapped."""
    return as_array(x, "matrix_transpose").T


def moveaxis(
    x: Array, source: int | Sequence[int], destination: int | Sequence[int]
) -> Array:
    """Return the array with some axes at other positions, the others in order."""
    x = as_array(x, "moveaxis")
    old = [place_of(x, each, x.ndim) for each in _several(source)]
    new = [place_of(x, each, x.ndim) for each in _several(destination)]
    if len(old) != len(new) or len(set(old)) < len(old) or len(set(new)) < len(new):
        raise KernelError(
            f"{x.graph.kernel}: moveaxis from {source} to {destination}, expected as many "
            "positions as axes, each once."
        )
    there = dict(zip(new, old, strict=True))
    others = iter([each for each in range(x.ndim) if each not in old])
    order = [there[i] if i in there else next(others) for i in range(x.ndim)]
    return permute_dims(x, order)


def flip(x: Array, axis: int | Sequence[int] | None = None) -> Array:
    """Return the array with its elements in reverse order along axes; None: all."""
    x = as_array(x, "flip")
    axes = range(x.ndim) if axis is None else _several(axis)
    places = [place_of(x, each, x.ndim) for each in axes]
    back = slice(None, None, -1)
    key = tuple(back if k in places else slice(None) for k in range(x.ndim))
    return Array(x.graph, views.sliced(x.graph, x.node, key))


def roll(
    x: Array, shift: int | Sequence[int], axis: int | Sequence[int] | None = None
) -> Array:
    """Return the array with its elements moved along axes; those at the end go first.

    Without `axis` the array is rolled as if it had one.
    """
    x = as_array(x, "roll")
    if axis is None:
        flat = reshape(x, (prod(x.shape),))
        return reshape(roll(flat, shift, 0), x.shape)
    shifts = [integer("roll", by) for by in _several(shift)]
    axes = _several(axis)
    shifts = shifts * len(axes) if len(shifts) == 1 else shifts
    if len(shifts) != len(axes):
        raise KernelError(
            f"{x.graph.kernel}: roll by {shift} along the axes {axis}, expected as many "
            "numbers as axes, or one for all."
        )
    for by, each in zip(shifts, axes, strict=True):
        place = place_of(x, each, x.ndim)
        extent = x.shape[place]
        if extent and by % extent:
            cut = extent - by % extent
            x = concat([_part(x, place, cut, extent), _part(x, place, 0, cut)], place)
    return x


def _part(x: Array, place: int, start: int, stop: int) -> Array:
    key = (*[slice(None)] * place, slice(start, stop))
    return Array(x.graph, views.sliced(x.graph, x.node, key))


def concat(arrays: Sequence[Array], axis: int | None = 0) -> Array:
    """Return arrays one after another along an axis; None: flattened ones.

    They are promoted to one dtype.
    """
    given = _all_of("concat", arrays)
    if axis is None:
        given, axis = [reshape(x, (prod(x.shape),)) for x in given], 0
    first = given[0]
    dtype = first.dtype
    for x in given[1:]:  # of one dtype also where that is only stored
        dtype = dtype if dtype is x.dtype else dtypes.promote(dtype, x.dtype)
    place = place_of(first, axis, first.ndim)
    nodes = [x.astype(dtype).node for x in given]
    return Array(first.graph, views.joined(first.graph, nodes, place)).astype(dtype)


def stack(arrays: Sequence[Array], axis: int = 0) -> Array:
    """Return arrays of one shape one after another along a new axis."""
    return concat([expand_dims(x, axis) for x in _all_of("stack", arrays)], axis)


def unstack(x: Array, axis: int = 0) -> tuple[Array, ...]:
    """Return the array's parts along an axis, without it."""
    x = as_array(x, "unstack")
    place = place_of(x, axis, x.ndim)
    whole = [slice(None)] * place
    return tuple(x[(*whole, each)] for each in range(x.shape[place]))


def tile(x: Array, repetitions: Sequence[int]) -> Array:
    """Return the array repeated as a whole along axes, the last `repetitions` last."""
    x, times = as_array(x, "tile"), extents("tile", repetitions)
    rank = max(x.ndim, len(times))
    times = (1,) * (rank - len(times)) + times
    shape = (1,) * (rank - x.ndim) + x.shape
    pairs = list(zip(times, shape, strict=True))
    x = reshape(x, tuple(each for _, extent in pairs for each in (1, extent)))
    x = broadcast_to(x, tuple(each for pair in pairs for each in pair))
    return reshape(x, tuple(count * extent for count, extent in pairs))


def repeat(x: Array, repeats: int, axis: int | None = None) -> Array:
    """Return the array with every element repeated along an axis; None: flattened."""
    x, (repeats,) = as_array(x, "repeat"), extents("repeat", (repeats,))
    if axis is None:
        x, axis = reshape(x, (prod(x.shape),)), 0
    place = place_of(x, axis, x.ndim)
    before, extent, after = x.shape[:place], x.shape[place], x.shape[place + 1 :]
    wide = broadcast_to(expand_dims(x, place + 1), (*before, extent, repeats, *after))
    return reshape(wide, (*before, extent * repeats, *after))


def broadcast_arrays(*arrays: Array) -> tuple[Array, ...]:
    """Return arrays in the one shape that they broadcast to."""
    given = _all_of("broadcast_arrays", arrays)
    nodes = [x.node for x in given]
    shape = given[0].graph.joint_shape("broadcast_arrays", nodes)
    return tuple(broadcast_to(x, shape) for x in given)


def pad(
    x: Array, widths: Sequence[tuple[int, int]], *, value: float | Array = 0
) -> Array:
    """Return the array with a value around it: (before, after) for each axis.

    Negative numbers take elements away.
    """
    x = as_array(x, "pad")
    try:
        pairs = [(operator.index(low), operator.index(high)) for low, high in widths]
    except (TypeError, ValueError):
        pairs = []
    if len(pairs) != x.ndim:
        raise KernelError(
            f"{x.graph.kernel}: pad of shape {x.shape} by {widths!r}, expected (before, "
            f"after) for each of {x.ndim} axes, such as [(1, 0)] for one."
        )
    before, after = (tuple(pair[i] for pair in pairs) for i in (0, 1))
    wide = Array(x.graph, views.padded(x.graph, x.node, before, after))
    if isinstance(value, float | int) and value == 0:
        return wide
    ones = x.graph.broadcast(x.graph.constant(True, dtypes.bool_), x.shape)
    inside = Array(x.graph, views.padded(x.graph, ones, before, after))
    return apply("where", inside, wide, value, first=1)


def diff(
    x: Array,
    *,
    axis: int = -1,
    n: int = 1,
    prepend: Array | None = None,
    append: Array | None = None,
) -> Array:
    """Return the differences of neighbours along an axis, taken `n` times.

    They begin with those of `prepend`, and end with those of `append`.
    """
    x, (n,) = as_array(x, "diff"), extents("diff", (n,))
    place = place_of(x, axis, x.ndim)
    x = concat([part for part in (prepend, x, append) if part is not None], place)
    for _ in range(min(n, x.shape[place])):
        extent = x.shape[place]
        x = _part(x, place, 1, extent) - _part(x, place, 0, max(extent - 1, 0))
    return x


def _all_of(what: str, arrays: Any) -> list[Array]:
    """Return arrays, one or more; raises KernelError for none, and for what is not several."""
    several = arrays if hasattr(type(arrays), "__iter__") else ()
    given = [as_array(x, what) for x in several]
    if not given:
        raise KernelError(
            f"{current(what).kernel}: {what} got no arrays, expected one or more; pass a "
            "list of them."
        )
    return given


def _several(value: int | Sequence[int]) -> Sequence[int]:
    return value if isinstance(value, Sequence) else (value,)
