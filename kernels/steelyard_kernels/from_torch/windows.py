"""ATen's operations on windows: pooling, unfolding, and resampling by nearest elements."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Final

import numpy as np

from steelyard_kernels import array as xp
from steelyard_kernels.array import Array
from steelyard_kernels.array.windows import Window, windowed
from steelyard_kernels.from_torch import elementwise
from steelyard_kernels.from_torch.call import Row, Site, converted
from steelyard_kernels.monoids import MONOIDS


def _each(given: Any, rank: int) -> tuple[int, ...]:
    """Return a number for each spatial axis."""
    several = tuple(given) if isinstance(given, Sequence) else (given,)
    return several * (rank // len(several))


def _counts(site: Site) -> tuple[int, ...]:
    """Return how many windows there are along each spatial axis."""
    return site.shape[-site.rank :]


def _pooled(
    site: Site, x: Array, windows: Sequence[Window], within: Array | None = None
) -> tuple[Array, Array]:
    """Return the elements of windows, and which of them are elements of the array.

    `within` has those of windows that are shorter than the others.
    """
    counts = _counts(site)
    ones = xp.full(x.shape[-len(windows) :], fill_value=True, dtype="bool")
    inside = windowed(ones, counts, windows)
    inside = inside if within is None else inside & within
    return windowed(x, counts, windows), inside


def _largest(
    site: Site, x: Array, windows: Sequence[Window], within: Array | None = None
) -> tuple[Array, Array]:
    """Return the largest value of each window, and where in the plane it is.

    That is the first of equal ones, and the last NaN.
    """
    axes, plane = tuple(range(-site.rank, 0)), x.shape[-site.rank :]
    values, inside = _pooled(site, x, windows, within)
    values = xp.where(inside, values, MONOIDS["max"].neutral(x.dtype))
    best = xp.max(values, axis=axes, keepdims=True)
    places = xp.reshape(xp.arange(prod(plane)), plane)
    places = windowed(places, _counts(site), windows)
    hits = inside & (values == best)
    found = xp.min(xp.where(hits, places, prod(plane)), axis=axes)
    if x.dtype.kind == "float":
        last = xp.max(xp.where(xp.isnan(values), places, -1), axis=axes)
        found = xp.where(last < 0, found, last)
    return xp.squeeze(best, axes), found


def _windows(site: Site, size: Any, stride: Any, *rest: Any) -> list[Window]:
    """Return each axis's windows; without a stride they stand side by side."""
    numbers = [_each(given, site.rank) for given in (size, stride or size, *rest)]
    return [Window(*each) for each in zip(*numbers, strict=True)]


def _max_pool(  # noqa: PLR0917 - as ATen has them
    site: Site,
    x: Array,
    size: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> tuple[Array, Array]:
    del ceil_mode  # the result's shape says as much
    return _largest(site, x, _windows(site, size, stride, padding, dilation))


def _mean(site: Site, total: Array, count: Array | int) -> Array:
    """Return total / count, of integers without its fraction."""
    mode = None if site.dtype.kind == "float" else "trunc"
    found: Array = elementwise.ROWS["div"](site, total, count, rounding_mode=mode)
    return found


def _average_pool(  # noqa: PLR0917 - as ATen has them
    site: Site,
    x: Array,
    size: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Array:
    del ceil_mode
    windows = _windows(site, size, stride, padding)
    values, _ = _pooled(site, converted(x, site.wide), windows)
    total = xp.sum(values, axis=tuple(range(-site.rank, 0)))
    if divisor_override:
        return _mean(site, total, divisor_override)
    count: Array | int = 1
    for axis, each in enumerate(windows, -site.rank):
        around = each.low if count_include_pad else 0
        own = _lengths(each, site.shape[axis], -around, x.shape[axis] + around)
        count = _along(own, axis) * count
    return _mean(site, total, count)


def _lengths(window: Window, count: int, first: int, last: int) -> Array | int:
    """Return how many elements from the first to before the last each window has."""
    starts = [place * window.step - window.low for place in range(count)]
    every = {min(s + window.size, last) - max(s, first) for s in starts}
    if len(every) < 2:
        return every.pop() if every else 1
    start = xp.arange(count) * window.step - window.low
    return xp.minimum(start + window.size, last) - xp.maximum(start, first)


def _along(x: Array | int, axis: int) -> Array | int:
    """Return an array of one axis as that axis, counted from the last one."""
    return x if isinstance(x, int) else xp.reshape(x, (-1, *[1] * (-axis - 1)))


def _parts(site: Site, x: Array) -> tuple[list[Window], Array | None, Array | int]:
    """Return windows that are nearly equal parts of the axes, as adaptive pooling has them.

    And which of their elements each has, with how many these are.
    """
    windows: list[Window] = []
    within: Array | None = None
    every: Array | int = 1
    for axis, count in enumerate(_counts(site), -site.rank):
        extent = x.shape[axis]
        sizes = {
            -(-(place + 1) * extent // count) - place * extent // count
            for place in range(count)
        }
        windows.append(Window(max(sizes, default=1), extent, over=count))
        length: Array | int = max(sizes, default=1)
        if len(sizes) > 1:
            place = xp.arange(count)
            start = xp.floor_divide(place * extent, count)
            length = -xp.floor_divide((place + 1) * -extent, count) - start
            own = xp.arange(windows[-1].size) < xp.reshape(length, (-1, 1))
            shape = [1] * (2 * site.rank)
            shape[axis - site.rank], shape[axis] = own.shape
            own = xp.reshape(own, tuple(shape))
            within = own if within is None else within & own
        every = _along(length, axis) * every
    return windows, within, every


def _adaptive_average_pool(site: Site, x: Array, _: Any) -> Array:
    windows, within, count = _parts(site, x)
    values, inside = _pooled(site, converted(x, site.wide), windows, within)
    values = values if within is None else xp.where(inside, values, 0)
    return _mean(site, xp.sum(values, axis=tuple(range(-site.rank, 0))), count)


def _adaptive_max_pool(site: Site, x: Array, _: Any) -> tuple[Array, Array]:
    windows, within, _ = _parts(site, x)
    return _largest(site, x, windows, within)


def _nearest(site: Site, x: Array, _: Any, *scales: Any) -> Array:
    """Return an image of another size, each element the nearest's before.

    That is found in float32, as PyTorch finds it.
    """
    several = scales if len(scales) == 2 else scales[0] if scales else None
    for axis, scale in enumerate(several or (None, None), -2):
        extent, count = x.shape[axis], site.shape[axis]
        by = np.float32(1 / scale if scale else extent / count)
        places = np.floor(np.arange(count, dtype=np.float32) * by)
        whole = np.arange(count) * extent // count
        moved = xp.moveaxis(x, axis, -1)
        if count in {extent, 2 * extent} or np.array_equal(places, whole):
            moved = windowed(moved, (count,), [Window(1, extent, over=count)])
            moved = xp.squeeze(moved, -1)
        else:
            at = xp.arange(count).astype("float32") * float(by)
            moved = xp.take(moved, at.astype("int64"), axis=-1)
        x = xp.moveaxis(moved, -1, axis)
    return x


def _unfolded(site: Site, x: Array, axis: int, size: int, step: int) -> Array:
    """Return windows along an axis, with their elements along a last one."""
    place = axis % x.ndim
    moved = xp.moveaxis(x, place, -1)
    found = windowed(moved, (site.shape[place],), [Window(size, step)])
    return xp.moveaxis(found, -2, place)


ROWS: Final[dict[str, Row]] = {
    "_adaptive_avg_pool2d": _adaptive_average_pool,
    "_adaptive_avg_pool3d": _adaptive_average_pool,
    "adaptive_max_pool2d": _adaptive_max_pool,
    "adaptive_max_pool3d": _adaptive_max_pool,
    "avg_pool2d": _average_pool,
    "avg_pool3d": _average_pool,
    "max_pool2d_with_indices": _max_pool,
    "max_pool3d_with_indices": _max_pool,
    "unfold": _unfolded,
    "upsample_nearest2d": _nearest,
}
