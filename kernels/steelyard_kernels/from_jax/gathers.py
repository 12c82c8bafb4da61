"""Elements at many computed places: JAX's gather, and its scatters as reductions.

Arrays are taken as their elements in a row. What a scatter leaves at each of these is a
reduction of what is written there, in the order of the updates: the same in every run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from steelyard_kernels import array as xp
from steelyard_kernels.array import Array, lines
from steelyard_kernels.dtypes import DType
from steelyard_kernels.from_jax.equation import Equation, Rule
from steelyard_kernels.from_jax.values import Value, reshape
from steelyard_kernels.monoids import MONOIDS


class Windows(NamedTuple):
    """Which axes of an array and of its slices, of `shape`, mean what.

    `inside` maps an axis of the array to one of the slices, `words` to a word of an index,
    `paired` to one of the indices' axes, of which `batch` are the slices'. A slice has
    `sizes` elements.
    """

    shape: tuple[int, ...]
    sizes: tuple[int, ...]
    inside: Mapping[int, int]
    words: Mapping[int, int]
    paired: Mapping[int, int]
    batch: tuple[int, ...]


def _windows(
    rank: int, shape: Sequence[int], sizes: Sequence[int] | None, *axes: Sequence[int]
) -> Windows:
    """Return what the dimension numbers of a gather or of a scatter say of axes."""
    offsets, collapsed, words, paired, pairs = map(tuple, axes)
    kept = [axis for axis in range(rank) if axis not in {*collapsed, *paired}]
    inside = dict(zip(kept, offsets, strict=True))
    if sizes is None:
        sizes = [shape[inside[axis]] if axis in inside else 1 for axis in range(rank)]
    return Windows(
        tuple(shape),
        tuple(sizes),
        inside,
        {axis: word for word, axis in enumerate(words)},
        dict(zip(paired, pairs, strict=True)),
        tuple([axis for axis in range(len(shape)) if axis not in offsets]),
    )


def _located(x: Array, starts: Array, windows: Windows) -> tuple[Array, Array | None]:
    """Return where each element of the slices is in a row, held within the array.

    And which of them are of slices within it; None: all are.
    """
    shape, flat, known = windows.shape, xp.arange(1), None
    for axis, extent in enumerate(x.shape):
        flat = flat * extent
        own = [windows.inside[axis]] if axis in windows.inside else []
        if axis in windows.paired:
            own.append(windows.batch[windows.paired[axis]])
        for each in own:
            count = xp.arange(shape[each])
            flat = flat + _spread(count, [each], shape)
        if axis in windows.words:
            start = xp.astype(starts[..., windows.words[axis]], "int64")
            last = extent - windows.sizes[axis]
            here = xp.logical_and(start >= 0, start <= last)
            known = here if known is None else xp.logical_and(known, here)
            held = xp.minimum(xp.maximum(start, 0), last)
            flat = flat + _spread(held, windows.batch, shape)
    found = None if known is None else _spread(known, windows.batch, shape)
    return xp.broadcast_to(flat, shape) if shape else reshape(flat, ()), found


def _spread(x: Array, axes: Sequence[int], shape: Sequence[int]) -> Array:
    """Return an array whose axes are these of a shape, to be broadcast to it."""
    return reshape(x, tuple(e if axis in axes else 1 for axis, e in enumerate(shape)))


def _gather(equation: Equation) -> Value:
    """Return slices from computed places on, as one take of elements in a row.

    A slice outside is held within the array, or gives the fill value, as JAX says.
    """
    x, starts = equation.arrays()
    given, shape = equation.params, tuple(equation.outputs[0].shape)
    numbers: Any = given["dimension_numbers"]
    windows = _windows(
        x.ndim,
        shape,
        given["slice_sizes"],
        numbers.offset_dims,
        numbers.collapsed_slice_dims,
        numbers.start_index_map,
        numbers.operand_batching_dims,
        numbers.start_indices_batching_dims,
    )
    flat, known = _located(x, starts, windows)
    taken = xp.take(xp.reshape(x, (-1,)), xp.reshape(flat, (-1,)))
    found = reshape(taken, shape)
    if known is None or "FILL" not in str(given["mode"]):
        return found
    fill = given["fill_value"]
    return xp.where(known, found, _filler(x.dtype) if fill is None else fill)


def _filler(dtype: DType) -> float:
    """Return what JAX reads outside of an array: NaN, or an end of the integers."""
    if dtype.kind == "float":
        return math.nan
    return dtype.smallest if dtype.signed else dtype.largest


def scattered(equation: Equation, combine: Callable[[Array, Array], Array]) -> Value:
    """Return an array in which updates are taken in at computed places.

    Many are added up by segments. Else each element reduces all updates: its operations are
    as many as elements times updates.
    Of equal places the last one is kept where nothing is added up.
    """
    x, starts, update = equation.arrays()
    numbers: Any = equation.params["dimension_numbers"]
    windows = _windows(
        x.ndim,
        update.shape,
        None,
        numbers.update_window_dims,
        numbers.inserted_window_dims,
        numbers.scatter_dims_to_operand_dims,
        numbers.operand_batching_dims,
        numbers.scatter_indices_batching_dims,
    )
    flat, known = _located(x, starts, windows)
    if known is not None and "CLIP" not in str(equation.params["mode"]):
        flat = xp.where(known, flat, -1)  # outside: written nowhere
    size, count = math.prod(x.shape), math.prod(update.shape)
    if not size or not count:
        return x
    reduction = REDUCTIONS.get(equation.primitive)
    if reduction == "sum" and size * count > lines.COMPARED:
        total = _added(x, update, flat, windows)
        return combine(x, reshape(xp.astype(total, x.dtype), x.shape))
    own = reshape(xp.arange(size), (size, 1))
    hits = own == reshape(flat, (1, count))
    values = reshape(update, (1, count))
    if reduction is None:
        order = xp.arange(count)
        last = xp.max(xp.where(hits, order, -1), axis=1)
        new = xp.take(reshape(update, (count,)), xp.maximum(last, 0))
        return reshape(xp.where(last < 0, xp.reshape(x, (-1,)), new), x.shape)
    neutral = MONOIDS[reduction].neutral(x.dtype)
    total = getattr(xp, reduction)(xp.where(hits, values, neutral), axis=1)
    return combine(x, reshape(xp.astype(total, x.dtype), x.shape))


def _added(x: Array, update: Array, flat: Array, windows: Windows) -> Array:
    """Return the sums of updates at places of an array in a row, -1: at none.

    The last axes of which updates have all are added up as they lie.
    """
    whole: list[int] = []
    for axis in reversed(range(x.ndim)):
        own = windows.inside.get(axis, -1)
        if own < 0 or axis in windows.words or update.shape[own] != x.shape[axis]:
            break
        whole.insert(0, own)
    order = [*[k for k in range(update.ndim) if k not in whole], *whole]
    part = math.prod(update.shape[k] for k in whole)
    values, places = (
        xp.reshape(xp.permute_dims(each, order), (-1, part)) for each in (update, flat)
    )
    which = xp.floor_divide(places[:, 0], part) + 1
    return lines.sums_at(values, which, math.prod(x.shape) // part + 1)[1:]


REDUCTIONS: Final = {
    "scatter-add": "sum",
    "scatter-max": "max",
    "scatter-min": "min",
    "scatter-mul": "prod",
    "scatter-sub": "sum",
}
"""What takes in all that is written at one place; without one the last stays."""

RULES: Final[dict[str, Rule]] = {"gather": _gather}
