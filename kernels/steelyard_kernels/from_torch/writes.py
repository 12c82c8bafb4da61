"""ATen's operations that write elements at computed places."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Final

from steelyard_kernels import array as xp
from steelyard_kernels import dtypes
from steelyard_kernels.array import Array, lines
from steelyard_kernels.from_torch.call import Row, Site, converted


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
        if not x.ndim:
            x, index = (xp.reshape(each, (1,)) for each in (x, index))
        source = converted(source, site.dtype)
        if source.ndim:  # of which as much is read as there are indices
            source = source[tuple(slice(extent) for extent in index.shape)]
        indices: list[Array | None] = []
        for axis, extent in enumerate(index.shape):
            line = [extent if each == axis else 1 for each in range(index.ndim)]
            place = xp.reshape(xp.arange(extent), tuple(line))
            own = index if axis == dim % x.ndim else place
            indices.append(xp.broadcast_to(own, index.shape))
        return xp.reshape(_put(site, x, indices, source, add), site.shape)

    return row


ROWS: Final[dict[str, Row]] = {
    "index_put": _put,
    "scatter": _scattered(add=False),
    "scatter_add": _scattered(add=True),
}
