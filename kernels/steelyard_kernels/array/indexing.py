"""Elements of an array at indices: Python's, and computed ones."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from types import EllipsisType
from typing import Any, TypeAlias

import numpy as np

from steelyard_kernels import dtypes
from steelyard_kernels.array.moves import moveaxis
from steelyard_kernels.array.shapes import asarray, place_of, reshape
from steelyard_kernels.array.value import Array, as_array, whole
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression import rows, views
from steelyard_kernels.expression.expr import Constant
from steelyard_kernels.expression.indices import axis as axis_of

Entry: TypeAlias = "int | slice | Array | None"


def indexed(x: Array, index: Any) -> Array:
    """Return x[index] of ints, slices, None, one `...` and arrays of ints, as NumPy's.

    Arrays and the ints beside them broadcast to one shape. It stands where they do if
    these are next to one another, else first. Indices below 0 count from the end; those
    of arrays are held at the ends of the axis. Raises KernelError for anything else, and
    for ints outside of their axis, also those of lists and of NumPy's arrays.
    """
    given = index if isinstance(index, tuple) else (index,)
    entries = [_entry(x, each) for each in given]
    key = _key(x, entries)
    known = {id(e): each for e, each in zip(entries, given, strict=True)}
    for place, each in enumerate([e for e in key if e is not None]):
        _check_known(x, known.get(id(each)), place)
    arrays = [each for each in key if isinstance(each, Array)]
    if len(given) == 1 and isinstance(entries[0], int):
        return _row(x, entries[0])
    if len(given) == 1 and arrays and not arrays[0].shape:
        return _row(x, arrays[0])
    if any(each.shape for each in arrays):
        chosen = [n for n, each in enumerate(entries) if isinstance(each, int | Array)]
        return _gathered(x, key, beside=chosen[-1] - chosen[0] < len(chosen))
    basic = [slice(None) if isinstance(each, Array) else each for each in key]
    part = Array(x.graph, views.sliced(x.graph, x.node, tuple(basic)))
    axes = [each for each in key if not isinstance(each, int)]
    places = [place for place, each in enumerate(axes) if isinstance(each, Array)]
    for gone, (place, each) in enumerate(zip(places, arrays, strict=True)):
        part = _row(moveaxis(part, place - gone, 0), each)
    return part


Array.indexed = indexed


def _entry(x: Array, given: Any) -> Entry | EllipsisType:
    """Return an index as what it is: one that is known as an int, a list as an array."""
    place = whole(given)
    if place is not None or given is None or given is ...:
        return place if given is not ... else given
    if isinstance(given, slice):
        parts = (given.start, given.stop, given.step)
        known = all(each is None or whole(each) is not None for each in parts)
        if known and given.step != 0:
            return given
    each = asarray(given) if isinstance(given, list | np.ndarray | Array) else given
    if isinstance(each, Array) and each.dtype.kind == "int":
        return int(each.node.value) if isinstance(each.node, Constant) else each
    seen = f"{each.dtype} {each.shape}" if isinstance(each, Array) else ""
    seen = seen or f"a {type(given).__name__}"
    seen += " of step 0" if isinstance(given, slice) and whole(given.step) == 0 else ""
    raise KernelError(
        f"{x.graph.kernel}: a value of shape {x.shape} is indexed by {seen}, expected "
        "ints, slices between such, None, one `...` and arrays of ints; choose by a mask "
        "with where, and take a slice from a computed start on by start + arange(count)."
    )


def _check_known(x: Array, indices: object, place: int) -> None:
    """Raise KernelError where some of NumPy's indices lie outside of an axis."""
    if isinstance(indices, list | np.ndarray):
        for each in np.unique(np.asarray(indices)):
            views.place_in(x.graph, x.node, int(each), place)


def _key(x: Array, entries: Sequence[Entry | EllipsisType]) -> list[Entry]:
    """Return entries of all axes, those that `...` stands for, or none names, as slices."""
    dots = [place for place, each in enumerate(entries) if each is ...]
    if len(dots) > 1:
        raise KernelError(
            f"{x.graph.kernel}: a value of shape {x.shape} is indexed by {len(dots)} "
            "`...`, expected one; write slices for the others."
        )
    known: list[Entry] = [e for e in entries if not isinstance(e, EllipsisType)]
    place = dots[0] if dots else len(known)
    rest = x.ndim - sum(each is not None for each in known)
    if rest < 0:
        raise KernelError(
            f"{x.graph.kernel}: {x.ndim - rest} indices of a value of shape {x.shape}; "
            "give at most one for each of its axes."
        )
    return [*known[:place], *[slice(None)] * rest, *known[place:]]


def _row(x: Array, index: int | Array) -> Array:
    """Return x[index] along the first axis."""
    graph = x.graph
    if isinstance(index, Array):
        extent = x.shape[0] if x.shape else 0
        if x.shape and not extent:
            raise KernelError(
                f"{graph.kernel}: a value of shape {x.shape} is indexed, but it has no "
                "rows; index an array whose first axis has one or more."
            )
        held = views.held(graph, _from_front(x, index, 0).node, extent)
        return Array(graph, rows.row(graph, x.node, held))
    known = views.place_in(graph, x.node, index, 0) if x.shape else 0
    constant = graph.constant(known, dtypes.int64)
    return Array(graph, rows.row(graph, x.node, constant))


def _gathered(x: Array, key: Sequence[Entry], *, beside: bool) -> Array:
    """Return x[key], taken along one axis: of all from the first array's to the last's.

    `beside`: arrays and ints stand side by side.
    """
    arrays = [n for n, each in enumerate(key) if isinstance(each, Array)]
    within = range(arrays[0], arrays[-1] + 1)
    first = sum(each is not None for each in key[: within.start])
    along = [each for n in within if (each := key[n]) is not None]
    which, behind = _along_one(x, along, first), first + len(along)
    shape = *x.shape[:first], prod(x.shape[first:behind]), *x.shape[behind:]
    found = take(reshape(x, shape), which, axis=first)
    rank = which.ndim - sum(isinstance(each, slice) for each in along)
    left: list[int | slice | None] = []
    for n, each in enumerate(key):
        if n not in within and not isinstance(each, Array):
            left.append(each)
        elif each is None or isinstance(each, slice):
            left.append(None if each is None else slice(None))
    at = within.start
    if not beside:
        found, at = moveaxis(found, range(first, first + rank), range(rank)), 0
    left[at:at] = [slice(None)] * rank
    return Array(x.graph, views.sliced(x.graph, found.node, tuple(left)))


def _along_one(x: Array, entries: Sequence[int | slice | Array], first: int) -> Array:
    """Return the places along one axis made of those from `first` on.

    Its own axes are those of the arrays together and, behind, one for each slice.
    """
    if len(entries) == 1 and isinstance(entries[0], Array):
        return entries[0]
    slices = sum(isinstance(each, slice) for each in entries)
    found: Array | None = None
    behind = slices
    for place, each in enumerate(entries, first):
        own = _places(x, each, place)
        behind -= isinstance(each, slice)
        free = behind if isinstance(each, slice) else slices
        own = reshape(own, (*own.shape, *(1,) * free))
        found = own if found is None else found * x.shape[place] + own
    assert found is not None
    return found


def _places(x: Array, entry: int | slice | Array, place: int) -> Array:
    """Return the places along an axis that an entry names, as int32."""
    graph, extent = x.graph, x.shape[place]
    if isinstance(entry, Array):
        held = views.held(graph, _from_front(x, entry, place).node, max(extent, 1))
        return Array(graph, graph.cast(held, dtypes.int32))
    every = graph.arange(extent, dtypes.int32)
    return Array(graph, views.sliced(graph, every, (entry,)))


def _from_front(x: Array, indices: Array, place: int) -> Array:
    """Return indices along an axis with those below 0 counted from its end."""
    extent = x.shape[place] if x.shape else 0
    return Array(x.graph, views.from_front(x.graph, indices.node, extent))


def take(x: Array, indices: Array, axis: int | None = None) -> Array:
    """Return the elements at indices along an axis, which these stand in the place of.

    Indices are ints of any number of axes. Those below 0 count from the end; beyond the
    axis they are held at its ends. Raises KernelError for such that are NumPy's.
    """
    x, known, indices = as_array(x, "take"), indices, as_array(indices, "take")
    place = place_of(x, 0 if axis is None and x.ndim == 1 else axis, x.ndim)
    _check_known(x, known, place)
    inner, rank = x.shape[place + 1 :], indices.ndim
    shape = (*x.shape[:place], *indices.shape, *inner)
    which = reshape(indices, (*indices.shape, *(1,) * len(inner)))
    which = _from_front(x, which, place)
    index = [axis_of(each + (rank - 1) * (each > place)) for each in range(x.ndim)]
    node = x.graph.broadcast(which.node, shape)
    return Array(x.graph, views.gathered(x.graph, x.node, node, tuple(index), place))


def take_along_axis(x: Array, indices: Array, *, axis: int = -1) -> Array:
    """Return the elements at indices along an axis, each of its own row.

    `indices` are as those of `take`, with as many axes as the array; the others broadcast.
    """
    known, what = indices, "take_along_axis"
    x, indices = as_array(x, what), as_array(indices, what)
    place = place_of(x, axis, x.ndim)
    _check_known(x, known, place)
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
    which = _from_front(x, indices, place)
    node = x.graph.broadcast(which.node, tuple(shape))
    index = [axis_of(each) * (x.shape[each] > 1) for each in range(x.ndim)]
    return Array(x.graph, views.gathered(x.graph, x.node, node, tuple(index), place))
