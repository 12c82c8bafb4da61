"""Arrays of constants, and the same values in other shapes."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from math import prod
from typing import Any, Final

import numpy as np

from steelyard_kernels import dtypes
from steelyard_kernels.array.tracing import current, number
from steelyard_kernels.array.value import Array, apply, as_array, kind_of, whole
from steelyard_kernels.dtypes import DType
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import Shape

DEFAULT: Final = dtypes.float32
"""The dtype of floating numbers that are made without one: the array API's default."""


def arange(
    start: float,
    /,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: DType | str | None = None,
) -> Array:
    """Return start, start + step, ... before stop; of one number 0, 1, ... below it.

    The dtype is int64 where all numbers are ints, else float32.
    """
    graph = current("arange")
    ends = (0, start) if stop is None else (start, stop)
    first, last, step = given = [real("arange", value) for value in (*ends, step)]
    whole_ = all(isinstance(value, int) for value in given)
    if step == 0 or not all(map(math.isfinite, given)):
        raise KernelError(
            f"{graph.kernel}: arange from {first} to {last} by {step}, expected finite "
            "numbers and a step that is not 0; give it another step."
        )
    count = max(0, math.ceil((last - first) / step))
    wanted = dtypes.of(dtype) if dtype else dtypes.int64 if whole_ else DEFAULT
    (count,) = extents("arange", (count,))
    if wanted.kind == "int":  # which has all of them if it has both ends
        for end in (first, first + (count - 1) * step) if count else ():
            number(graph, math.trunc(end), wanted)
    numbered = wanted if wanted in {dtypes.int32, dtypes.int64} else dtypes.int64
    places = Array(graph, graph.arange(count, numbered))
    if (first, step) == (0, 1):
        return places.astype(wanted)
    exact = numbered if whole_ and wanted.kind == "int" else dtypes.float64
    return (places.astype(exact) * step + first).astype(wanted)


def linspace(
    start: float,
    stop: float,
    /,
    num: int,
    *,
    dtype: DType | str | None = None,
    endpoint: bool = True,
) -> Array:
    """Return num numbers from start to stop, evenly spaced; `endpoint`: stop is one.

    They are computed in float64, and by default float32.
    """
    (count,) = extents("linspace", (num,))
    start, stop = real("linspace", start), real("linspace", stop)
    steps = max(1, count - 1 if endpoint else count)
    places = arange(count, dtype="float64")
    line = places * ((stop - start) / steps) + start
    last = places == float(steps)
    return apply("where", last, float(stop), line, first=1).astype(dtype or DEFAULT)


def eye(
    n_rows: int,
    n_cols: int | None = None,
    /,
    *,
    k: int = 0,
    dtype: DType | str | None = None,
) -> Array:
    """Return ones on the diagonal that begins k columns from the left, else zeros."""
    shape = extents("eye", (n_rows, n_rows if n_cols is None else n_cols))
    return (
        apply("equal", _off_diagonal(shape), integer("eye", k))
        .astype("int32")
        .astype(dtype or DEFAULT)
    )


def tril(x: Array, /, *, k: int = 0) -> Array:
    """Return the matrices' elements up to the k-th diagonal, zeros above."""
    return _where_diagonal("tril", "less_equal", x, k)


def triu(x: Array, /, *, k: int = 0) -> Array:
    """Return the matrices' elements from the k-th diagonal on, zeros below."""
    return _where_diagonal("triu", "greater_equal", x, k)


def _where_diagonal(name: str, kept: str, x: Array, k: int) -> Array:
    x = as_array(x, name)
    if x.ndim < 2:
        raise KernelError(
            f"{x.graph.kernel}: {name} of shape {x.shape}, expected matrices; reshape it "
            "first."
        )
    inside = apply(kept, _off_diagonal(x.shape[-2:]), integer(name, k))
    return apply("where", inside, x, zeros_like(x), first=1)


def _off_diagonal(shape: Shape) -> Array:
    """Return by how many columns each element of a matrix is right of the diagonal."""
    rows, columns = (arange(extent, dtype="int32") for extent in shape)
    return apply("subtract", reshape(columns, (1, -1)), reshape(rows, (-1, 1)))


def meshgrid(*arrays: Array, indexing: str = "xy") -> list[Array]:
    """Return each array along an axis of its own; "xy" swaps the first two axes."""
    arrays = tuple([as_array(each, "meshgrid") for each in arrays])
    if indexing not in {"xy", "ij"} or any(each.ndim > 1 for each in arrays):
        shapes = ", ".join(str(each.shape) for each in arrays)
        raise KernelError(
            f"{current('meshgrid').kernel}: meshgrid of shapes {shapes}, indexing "
            f"{indexing!r}, expected arrays of one axis, and 'xy' or 'ij'."
        )
    count = len(arrays)
    order = [1, 0, *range(2, count)] if indexing == "xy" and count > 1 else range(count)
    sizes = [prod(arrays[place].shape) for place in order]
    return [
        broadcast_to(
            reshape(each, tuple(-1 if axis == place else 1 for axis in order)),
            tuple(sizes),
        )
        for place, each in enumerate(arrays)
    ]


def asarray(
    obj: Any,
    /,
    *,
    dtype: DType | str | None = None,
    copy: bool | None = None,
) -> Array:
    """Return an array as it is, a Python number as one of shape ().

    NumPy's arrays and scalars are constants of their dtypes, nested lists of Python's
    numbers of bool, int64 or float32: integers in steps, or values that change at most
    `CHANGES` times on the way from the first to the last. No value changes, so that a copy
    is the same.
    """
    del copy
    is_constant = isinstance(obj, np.ndarray | np.generic | list | tuple)
    x = _constant(obj) if is_constant else as_array(obj, "asarray")
    if dtype is None:
        own = isinstance(obj, list | tuple) and not _has_numpys(obj)
        return x.astype(DEFAULT) if own and x.dtype.kind == "float" else x
    wanted = dtypes.of(dtype)
    if isinstance(obj, int | list | tuple) and {x.dtype.kind, wanted.kind} == {"int"}:
        for each in np.unique(np.asarray(obj)):  # few: it was a constant
            number(x.graph, int(each), wanted)
    return x.astype(wanted)


def _has_numpys(values: Any) -> bool:
    """Say whether nested lists have values of NumPy's, which have dtypes."""
    if isinstance(values, list | tuple):
        return any(map(_has_numpys, values))
    return isinstance(values, np.ndarray | np.generic)


CHANGES: Final = 64
"""Of a constant's values, from one to the next: each is a choice for every element."""


def _constant(values: Any) -> Array:
    graph = current("asarray")
    try:
        array = np.asarray(values)
        dtype = dtypes.of(array.dtype)
    except (ValueError, KernelError) as error:  # of rows of several lengths, of objects
        raise KernelError(f"{graph.kernel}: asarray: {error}") from None
    flat = array.reshape(-1)
    bits = flat.view(np.uint8).reshape(flat.size, flat.itemsize)  # of 0.0 and -0.0
    starts = np.flatnonzero((bits[1:] != bits[:-1]).any(axis=1)) + 1
    found = full((), flat[0].item() if flat.size else 0, dtype)
    in_steps = dtype.kind == "int" and dtype is not dtypes.uint64
    if flat.size > 2 and in_steps and not np.any(np.diff(flat, 2)):
        step = int(flat[1]) - int(flat[0])
        found = (arange(flat.size) * step + int(flat[0])).astype(dtype)
    elif len(starts) > CHANGES:
        raise KernelError(
            f"{graph.kernel}: asarray of {array.shape} values that change {len(starts)} "
            f"times, at most {CHANGES} are supported; pass it as a parameter."
        )
    else:
        places = arange(flat.size)
        for start in starts:
            value = full((), flat[start].item(), dtype)
            found = apply("where", places < int(start), found, value, first=1)
    return reshape(broadcast_to(found, flat.shape), array.shape)


def full(
    shape: Shape | int, fill_value: float, dtype: DType | str | None = None
) -> Array:
    """Return an array of one value, by default of bool, int64 or float32 as that is."""
    kind = kind_of(real("full", fill_value))
    own = {"bool": dtypes.bool_, "int": dtypes.int64}.get(kind, DEFAULT)
    return _filled("full", shape, fill_value, dtype or own)


def _filled(what: str, shape: Shape | int, value: object, dtype: DType | str) -> Array:
    graph = current(what)
    constant = number(graph, real(what, value), dtypes.of(dtype))
    return Array(graph, graph.broadcast(constant, extents(what, shape)))


def zeros(shape: Shape | int, dtype: DType | str | None = None) -> Array:
    """Return an array of zeros, by default of float32."""
    return full(shape, 0, dtype or DEFAULT)


def ones(shape: Shape | int, dtype: DType | str | None = None) -> Array:
    """Return an array of ones, by default of float32."""
    return full(shape, 1, dtype or DEFAULT)


def empty(shape: Shape | int, dtype: DType | str | None = None) -> Array:
    """Return zeros: values have no memory whose contents could be left."""
    return zeros(shape, dtype)


def full_like(
    x: Array, fill_value: float, *, dtype: DType | str | None = None
) -> Array:
    """Return an array of one value, of another's shape and, by default, dtype."""
    x = as_array(x, "full_like")
    return _filled("full_like", x.shape, fill_value, dtype or x.dtype)


def zeros_like(x: Array, *, dtype: DType | str | None = None) -> Array:
    """Return zeros of another array's shape and, by default, dtype."""
    return full_like(x, 0, dtype=dtype)


def ones_like(x: Array, *, dtype: DType | str | None = None) -> Array:
    """Return ones of another array's shape and, by default, dtype."""
    return full_like(x, 1, dtype=dtype)


def empty_like(x: Array, *, dtype: DType | str | None = None) -> Array:
    """Return zeros of another array's shape and, by default, dtype."""
    return zeros_like(x, dtype=dtype)


def broadcast_to(x: Array | float, shape: Shape | int) -> Array:
    """Return the values repeated into a larger shape."""
    x = as_array(x, "broadcast_to")
    return Array(x.graph, x.graph.broadcast(x.node, extents("broadcast_to", shape)))


def reshape(x: Array, shape: Shape | int, *, copy: bool | None = None) -> Array:
    """Return the elements in the same order in another shape; one extent may be -1.

    No value changes, so that a copy is the same.
    """
    del copy
    x = as_array(x, "reshape")
    asked = extents("reshape", shape, least=-1)
    known = prod(extent for extent in asked if extent != -1)
    if -1 in asked and not known:
        raise KernelError(
            f"{x.graph.kernel}: cannot reshape {x.shape} to {asked}: any extent for -1 "
            "has no elements; pass the one that is meant."
        )
    if asked.count(-1) == 1 and prod(x.shape) % known == 0:
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
    axes = axis if isinstance(axis, Sequence) else [axis]
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
    place = whole(axis)
    if place is None or not -count <= place < count:
        raise KernelError(
            f"{x.graph.kernel}: axis {axis!r} of shape {x.shape}, expected {-count} to "
            f"{count - 1}; name an axis that there is."
        )
    return place % count


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


def integer(what: str, value: object) -> int:
    """Return an int of Python's or NumPy's; raises KernelError for what is none."""
    found = whole(value)
    if found is None:
        raise KernelError(
            f"{current(what).kernel}: {what} got {_shown(value)}, expected an int; shapes "
            "are known when the kernel is traced."
        )
    return found


def real(what: str, value: object) -> float:
    """Return a Python number, also of NumPy's; raises KernelError for what is none."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float | int):
        return value
    raise KernelError(
        f"{current(what).kernel}: {what} got a {type(value).__name__}, expected a Python "
        "number; repeat an array's values with broadcast_to."
    )


def _shown(shape: object) -> str:
    return type(shape).__name__ if isinstance(shape, Array) else repr(shape)
