"""ATen's operations that write elements at computed places."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Final

from steelyard_kernels import array as xp
from steelyard_kernels import dtypes
from steelyard_kernels.array import Array, lines
from steelyard_kernels.from_torch.call import Row, Site, converted
from steelyard_kernels.from_torch.elementwise import ROWS as ROUNDED
from steelyard_kernels.monoids import MONOIDS


def _rows(x: Array, indices: Sequence[Array | None]) -> tuple[list[int], Array]:
    """Return the axes of an array that indices are along, first, and where in these they are.

    That is in a row of their elements; -1 where an index is outside of its axis.
    """
    axes = [axis for axis, each in enumerate(indices) if each is not None]
    found = inside = None
    for axis in axes:
        index, extent = indices[axis], x.shape[axis]
        assert index is not None
        index = index.astype("int64")
        index = xp.where(index < 0, index + extent, index)
        here = (index >= 0) & (index < extent)
        inside = here if inside is None else inside & here
        found = index if found is None else found * extent + index
    assert found is not None
    return axes, xp.where(inside, found, -1)


def _put(
    site: Site,
    x: Array,
    indices: Sequence[Array | None],
    values: Array,
    accumulate: bool = False,
) -> Array:
    """Return an array with values at indices, of those at one place the last."""
    given = [each for each in indices if each is not None]
    if any(each.dtype is dtypes.bool_ for each in given):
        return _put_where(site, x, indices, values, accumulate)
    axes, which = _rows(x, indices)
    rest = [axis for axis in range(x.ndim) if axis not in axes]
    rows = xp.permute_dims(x, [*axes, *rest])
    kept = [x.shape[axis] for axis in rest]
    shape = list(kept)
    beside = axes == list(range(axes[0], axes[0] + len(axes)))
    place = axes[0] if beside else 0
    shape[place:place] = which.shape
    values = xp.broadcast_to(values, tuple(shape))
    moved = range(place, place + which.ndim)
    values = xp.moveaxis(values, list(moved), list(range(which.ndim)))
    found = _written_rows(
        xp.reshape(rows, (prod(rows.shape[: len(axes)]), *kept)),
        xp.reshape(which, (-1,)),
        xp.reshape(values, (which.size, *kept)),
        accumulate,
    )
    back = sorted(range(x.ndim), key=[*axes, *rest].__getitem__)
    return xp.permute_dims(xp.reshape(found, rows.shape), back)


def _written_rows(x: Array, which: Array, values: Array, accumulate: bool) -> Array:
    """Return an array with values in some of its rows: the last ones, or all added up."""
    count, extent = which.size, x.shape[0]
    if not count or not x.size:
        return x
    if accumulate:
        total = lines.sums_at(values, which, extent)
        return x + total.astype(x.dtype)
    hits = xp.reshape(xp.arange(extent), (-1, 1)) == which
    last = xp.max(xp.where(hits, xp.arange(count), -1), axis=1)
    new = xp.take(values, xp.maximum(last, 0), axis=0)
    written = xp.reshape(last >= 0, (-1, *[1] * (x.ndim - 1)))
    return xp.where(written, new, x)


def _put_where(
    site: Site,
    x: Array,
    indices: Sequence[Array | None],
    values: Array,
    accumulate: bool,
) -> Array:
    """Return an array with a value where a mask is true, the same for each such place."""
    axis = next(axis for axis, each in enumerate(indices) if each is not None)
    mask = indices[axis]
    assert mask is not None
    behind = x.ndim - axis - mask.ndim
    several = values.shape[: max(values.ndim - behind, 0)]
    if len(indices) > axis + 1 or set(several) - {1} or (axis and several):
        raise site.refusal(
            "writes as many values as a mask says, expected one for all of them; choose "
            "with torch.where"
        )
    values = xp.reshape(values, values.shape[len(several) :])
    mask = xp.reshape(mask, (*mask.shape, *[1] * behind))
    return xp.where(mask, x + values if accumulate else values, x)


def _scattered(add: bool) -> Row:
    """Return the row of values written, or added, along an axis where indices say."""

    def row(site: Site, x: Array, dim: int, index: Array, source: Any) -> Array:
        source = converted(source, site.dtype)
        if source.ndim:  # of which as much is read as there are indices
            source = source[tuple(slice(extent) for extent in index.shape)]
        indices = xp.meshgrid(*map(xp.arange, index.shape), indexing="ij")
        indices[dim] = index
        return _put(site, x, indices, source, add)

    return row


_REDUCTIONS: Final = {
    "mean": "sum",
    "add": "sum",
    "multiply": "prod",
    "amax": "max",
    "amin": "min",
}
"""ATen's names of reductions, by which they are rows of `MONOIDS`."""


def _reduced_at(  # noqa: PLR0917 - as ATen has them
    site: Site,
    x: Array,
    dim: int,
    index: Array,
    source: Any,
    reduce: str,
    include_self: bool = True,
) -> Array:
    """Return an array that takes in, along an axis, what a reduction makes of values."""
    source = converted(source, site.dtype)
    source = source if source.ndim else xp.broadcast_to(source, index.shape)
    x, index, source = (xp.moveaxis(each, dim, -1) for each in (x, index, source))
    source = source[tuple(slice(extent) for extent in index.shape)]
    pairs = zip(x.shape[:-1], index.shape[:-1], strict=True)
    beyond = [*((0, most - extent) for most, extent in pairs), (0, 0)]
    index, source = xp.pad(index, beyond, value=-1), xp.pad(source, beyond)
    hits = index[..., None, :] == xp.arange(x.shape[-1])[:, None]
    row = MONOIDS[_REDUCTIONS.get(reduce, reduce)]
    given = xp.where(hits, source[..., None, :], row.neutral(source.dtype))
    total = getattr(xp, row.name)(given, axis=-1).astype(x.dtype)
    count = xp.count_nonzero(hits, axis=-1)
    if include_self:
        total, count = getattr(xp, row.combine)(x, total), count + 1
    if reduce == "mean":
        mode = None if site.dtype.kind == "float" else "floor"
        total = ROUNDED["div"](site, total, xp.maximum(count, 1), rounding_mode=mode)
    return xp.moveaxis(xp.where(count > 0, total, x), -1, dim)


def _reduced_rows(
    site: Site, x: Array, dim: int, index: Array, source: Array, *how: Any, **named: Any
) -> Array:
    """Return an array that takes in whole rows along an axis."""
    line = [-1 if axis == dim % x.ndim else 1 for axis in range(x.ndim)]
    index = xp.broadcast_to(xp.reshape(index, tuple(line)), source.shape)
    return _reduced_at(site, x, dim, index, source, *how, **named)


def _bags(  # noqa: PLR0917 - as ATen has them
    site: Site,
    weight: Array,
    indices: Array,
    offsets: Array,
    scale: bool = False,
    mode: int = 0,
    sparse: bool = False,
    factors: Array | None = None,
    ends: bool = False,
    padding: int = -1,
) -> tuple[Array, ...]:
    """Return the sum, mean or largest (0, 1, 2) of rows of each bag; of none 0."""
    del scale, sparse
    count = offsets.shape[0] - ends
    rows = converted(xp.take(weight, indices, axis=0), site.wide)
    rows = rows if factors is None else rows * factors.astype(site.wide)[:, None]
    which = xp.searchsorted(offsets, xp.arange(indices.shape[0]), side="right") - 1
    which = xp.where(indices == padding, -1, which)
    if mode == 2:
        hits = xp.arange(count)[:, None] == which
        given = xp.where(hits[..., None], rows, -xp.inf)
        none = ~xp.any(hits, axis=1, keepdims=True)
        return (xp.where(none, 0.0, xp.max(given, axis=1)),)
    total = lines.sums_at(rows, which, count)
    if mode == 0:
        return (total,)
    own = lines.sums_at(xp.ones(rows.shape[:1], site.wide), which, count)
    return (total / xp.maximum(own, 1)[:, None],)


ROWS: Final[dict[str, Row]] = {
    "_embedding_bag": _bags,
    "_embedding_bag_forward_only": _bags,
    "index_put": _put,
    "index_reduce": _reduced_rows,
    "scatter": _scattered(add=False),
    "scatter.reduce": _reduced_at,
    "scatter.value_reduce": _reduced_at,
    "scatter_add": _scattered(add=True),
    "scatter_reduce.two": _reduced_at,
}
