"""ATen's operations that make, move or take elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from steelyard_kernels import array as xp
from steelyard_kernels.array import Array
from steelyard_kernels.from_torch.call import Row, Site, converted
from steelyard_kernels.grad import stop_gradient


def _reshaped(site: Site, x: Array, *_: Any) -> Array:
    """Return the elements in the shape that PyTorch says comes of it."""
    return xp.reshape(x, site.shape)


def _itself(site: Site, x: Array, **_: Any) -> Array:
    return converted(x, site.dtype)


def _full(site: Site, _: Any, value: Any, *__: Any, **___: Any) -> Array:
    return xp.broadcast_to(converted(value, site.dtype), site.shape)


def _along(x: Array, axis: int, entry: int | slice) -> Array:
    """Return x[..., entry, ...] at an axis."""
    return x[(*[slice(None)] * (axis % x.ndim), entry)]


def _places(
    extent: int, start: int | None = None, end: int | None = None, step: int = 1
) -> range:
    """Return every step-th place from start to end, held within an axis."""
    return range(extent)[start:end:step]


def _sliced(_: Site, x: Array, dim: int = 0, *bounds: Any) -> Array:
    places = _places(x.shape[dim], *bounds)
    return _along(x, dim, slice(places.start, places.stop, places.step))


def _written(site: Site, x: Array, source: Array, dim: int = 0, *bounds: Any) -> Array:
    """Return an array of which the elements that `_sliced` returns are another's."""
    places = _places(x.shape[dim], *bounds)
    first, after = places.start, max(places.start, places.stop)
    if places.step > 1:
        line = xp.arange(after - first) % places.step == 0
        line = xp.reshape(line, (-1, *[1] * (x.ndim - dim % x.ndim - 1)))
        apart = xp.repeat(source, places.step, axis=dim)
        kept = _along(x, dim, slice(first, after))
        source = xp.where(line, _along(apart, dim, slice(0, after - first)), kept)
    ends = _along(x, dim, slice(0, first)), _along(x, dim, slice(after, x.shape[dim]))
    return _joined(site, (ends[0], source, ends[1]), dim)


def _parted(site: Site, x: Array, _: Any, dim: int = 0) -> tuple[Array, ...]:
    """Return parts along an axis, each as long as PyTorch says it is."""
    found, start = [], 0
    for result in site.call.results:
        stop = start + (result.shape[dim] if result else 0)
        found.append(_along(x, dim, slice(start, stop)))
        start = stop
    return tuple(found)


def _joined(site: Site, arrays: Sequence[Array], dim: int = 0) -> Array:
    """Return arrays behind one another: those that have any, beside PyTorch's (0,)."""
    filled = [x for x in arrays if x.shape[dim : dim + 1 or None] not in {(0,), ()}]
    filled = filled or [max(arrays, key=lambda x: x.ndim)]
    return xp.concat([converted(x, site.dtype) for x in filled], dim)


def _padded(site: Site, x: Array, pad: Sequence[int], value: float = 0) -> Array:
    """Return an array with a value around it, or without its ends: last axis first."""
    pairs = list(zip(pad[::2], pad[1::2], strict=True))[::-1]
    pairs = [(0, 0)] * (x.ndim - len(pairs)) + pairs
    return xp.pad(x, pairs, value=converted(value, site.dtype) if value else 0)


def _indexed(_: Site, x: Array, indices: Sequence[Array | None]) -> Array:
    """Return elements at arrays of indices, which broadcast, as NumPy has them."""
    return x[tuple(slice(None) if each is None else each for each in indices)]


def _gathered(_: Site, x: Array, dim: int, index: Array) -> Array:
    part = [slice(extent) for extent in index.shape]
    part[dim] = slice(None)
    return xp.take_along_axis(x[tuple(part)], index, axis=dim)


def _in_order(
    _: Site, x: Array, dim: int = -1, descending: bool = False, **named: Any
) -> tuple[Array, Array]:
    """Return values in order, equal ones in theirs, and where they were."""
    how = {"axis": named.get("dim", dim)}
    how["descending"] = named.get("descending", descending)
    return xp.sort(x, **how), xp.argsort(x, **how)


def _ranked(site: Site, x: Array, axis: int, rank: Any) -> tuple[Array, Array]:
    """Return the element along an axis that so many are before in order, and its place."""
    order = xp.argsort(x, axis=axis)
    place = xp.take_along_axis(order, rank, axis=axis)
    found = xp.take_along_axis(x, place, axis=axis)
    return xp.reshape(found, site.shape), xp.reshape(place, site.shape)


def _kth(
    site: Site, x: Array, k: int, dim: int = -1, keepdim: bool = False
) -> tuple[Array, Array]:
    del keepdim  # the result's shape says as much
    shape = [1 if axis == dim % x.ndim else e for axis, e in enumerate(x.shape)]
    return _ranked(site, x, dim, xp.full(tuple(shape), k - 1, dtype="int64"))


def _median(*, known: bool) -> Row:
    """Return the row of the lower median, of all or of those that are `known` numbers."""

    def row(site: Site, x: Array, dim: Any = None, keepdim: bool = False) -> Any:
        del keepdim
        x, axis = (xp.reshape(x, (-1,)), 0) if dim is None else (x, int(dim))
        lost = xp.isnan(x) if x.dtype.kind == "float" else xp.not_equal(x, x)
        count, lost = x.shape[axis], xp.count_nonzero(lost, axis=axis, keepdims=True)
        middle = xp.floor_divide(count - 1 - (lost if known else 0 * lost), 2)
        first = xp.where(lost > 0, count - lost, middle)  # NaN are last in order
        rank = xp.maximum(middle, 0) if known else first
        found = _ranked(site, x, axis, rank)
        return found[0] if dim is None else found

    return row


def _so_far(function: Callable[..., Array]) -> Row:
    """Return the row of extremes of elements up to each, and of where the last one is."""

    def row(_: Site, x: Array, dim: int) -> tuple[Array, Array]:
        found, lines = function(x, axis=dim), xp.moveaxis(x, dim, -1)
        places = xp.broadcast_to(xp.arange(lines.shape[-1]), lines.shape)
        here = (x == found) | (x != x)  # noqa: PLR0124 - NaN
        here = xp.where(here, xp.moveaxis(places, -1, dim), 0)
        return found, xp.cumulative_max(here, axis=dim)

    return row


def _searched(
    _: Site,
    row: Array,
    x: Any,
    *,
    right: bool = False,
    side: str | None = None,
    **__: Any,
) -> Array:
    """Return how many elements of rows in order are before values of these rows."""
    values = x if isinstance(x, Array) else converted(x, row.dtype)
    after = right or side == "right"
    if row.ndim == 1:
        return xp.searchsorted(row, values, side="right" if after else "left")
    row, values = row[..., None, :], values[..., None]
    return xp.count_nonzero(row <= values if after else row < values, axis=-1)


def _wedge(site: Site, row: int, col: int, offset: int = 0, *, low: bool) -> Array:
    """Return the rows and columns of a triangle's elements, row by row."""
    there = xp.arange(col) - xp.arange(row)[:, None]
    inside = there <= offset if low else there >= offset
    places = xp.argsort(xp.reshape(~inside, (-1,)).astype("int32"))[: site.shape[1]]
    return xp.stack([places // col, places % col])


def _on_diagonal(
    _: Site, x: Array, source: Array, offset: int = 0, *axes: int
) -> Array:
    """Return an array of which a diagonal's elements are another's."""
    moved = xp.moveaxis(x, axes or (0, 1), (-2, -1))
    rows, columns = (xp.arange(extent) for extent in moved.shape[-2:])
    hits = columns - rows[:, None] == offset
    place = xp.clip(rows + min(offset, 0), 0, max(source.shape[-1] - 1, 0))
    found = xp.where(hits, xp.take(source, place, axis=-1)[..., None], moved)
    return xp.moveaxis(found, (-2, -1), axes or (0, 1))


def _masked(site: Site, x: Array, mask: Array, source: Array) -> Array:
    """Return an array into which a mask lets values, in their order."""
    x, mask = (
        xp.reshape(xp.broadcast_to(each, site.shape), (-1,)) for each in (x, mask)
    )
    place = xp.maximum(xp.cumulative_sum(mask.astype("int64")) - 1, 0)
    found = xp.take(xp.reshape(source, (-1,)), place)
    return xp.reshape(xp.where(mask, found, x), site.shape)


def _top(
    _: Site, x: Array, k: int, dim: int = -1, largest: bool = True, *__: Any
) -> tuple[Array, Array]:
    return xp.topk(x, k, axis=dim, largest=largest)


ROWS: Final[dict[str, Row]] = {
    "_to_copy": _itself,
    "alias": _itself,
    "arange": lambda site, *ends, **_: xp.arange(*ends, dtype=site.dtype),
    "bucketize": lambda site, x, row, **how: _searched(site, row, x, **how),
    "cat": _joined,
    "clone": _itself,
    "cummax": _so_far(xp.cumulative_max),
    "cummin": _so_far(xp.cumulative_min),
    "constant_pad_nd": _padded,
    "copy": _full,
    "detach": lambda _, x: stop_gradient(x),
    "diagonal_scatter": _on_diagonal,
    "diagonal": lambda _, x, offset=0, *axes: xp.diagonal(
        xp.moveaxis(x, axes or (0, 1), (-2, -1)), offset=offset
    ),
    "embedding": lambda _, weight, indices, *__: xp.take(weight, indices, axis=0),
    "empty": lambda site, *_, **__: xp.zeros(site.shape, site.dtype),
    "empty_permuted": lambda site, *_, **__: xp.zeros(site.shape, site.dtype),
    "expand": lambda site, x, *_: xp.broadcast_to(x, site.shape),
    "flip": lambda _, x, axes: xp.flip(x, axes),
    "full": _full,
    "full_like": _full,
    "gather": _gathered,
    "getitem": lambda _, values, index: values[index],
    "index": _indexed,
    "index_select": lambda _, x, axis, index: xp.take(x, index, axis),
    "kthvalue": _kth,
    "masked_scatter": _masked,
    "median": _median(known=False),
    "nanmedian": _median(known=True),
    "permute": lambda _, x, axes: xp.permute_dims(x, axes),
    "repeat": lambda _, x, times: xp.tile(x, times),
    "scalar_tensor": lambda site, value, **_: converted(value, site.dtype),
    "searchsorted.Tensor": _searched,
    "select": lambda _, x, axis, index: _along(x, axis, index),
    "slice": _sliced,
    "slice_scatter": _written,
    "sort": _in_order,
    "split_with_sizes": _parted,
    "squeeze": _reshaped,
    "topk": _top,
    "tril_indices": lambda *given, **_: _wedge(*given, low=True),
    "triu_indices": lambda *given, **_: _wedge(*given, low=False),
    "unsqueeze": _reshaped,
    "view": _reshaped,
    "view.dtype": lambda site, x, _: xp.bitcast(x, site.dtype),
}
