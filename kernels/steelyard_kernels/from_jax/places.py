"""Primitives of JAX's that take or write a part of an array.

A row is taken where its values come from, other parts are views; what is written is
chosen among all elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Final

import numpy as np

from steelyard_kernels import array as xp
from steelyard_kernels.array import Array
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import Constant
from steelyard_kernels.from_jax.equation import Equation, Rule, calling, word_by_word
from steelyard_kernels.from_jax.gathers import scattered
from steelyard_kernels.from_jax.values import (
    Stack,
    Value,
    array,
    element,
    reshape,
    row,
)


def _broadcast_in_dim(equation: Equation) -> Value:
    x, shape = equation.array(0), tuple(equation.params["shape"])
    spread = [1] * len(shape)
    for axis, extent in zip(
        equation.params["broadcast_dimensions"], x.shape, strict=True
    ):
        spread[axis] = extent
    return xp.broadcast_to(reshape(x, spread if x.shape else ()), shape)


def _reshaped(equation: Equation) -> Value:
    """Reshape, squeeze or expand to the shape that JAX says comes of it."""
    shape, value = tuple(equation.outputs[0].shape), equation.values[0]
    order = equation.params.get("dimensions")
    if equation.primitive == "reshape" and order is not None:
        return reshape(xp.permute_dims(equation.array(0), order), shape)
    if isinstance(value, Stack) and shape[-1:] == (len(value),):
        size = prod(shape[:-1])
        if size == prod(value[0].shape):
            return Stack(reshape(part, shape[:-1]) for part in value)
    return reshape(equation.array(0), shape)


def _iota(equation: Equation) -> Value:
    dtype, shape = element(equation.params["dtype"]), tuple(equation.params["shape"])
    axis = equation.params["dimension"]
    count = xp.arange(shape[axis], dtype=dtype)
    spread = reshape(count, (shape[axis], *(1 for _ in shape[axis + 1 :])))
    return xp.broadcast_to(spread, shape)


def _pad(equation: Equation) -> Value:
    """Return an array with a value around it and between, or with elements taken away."""
    x, filler = equation.arrays()
    return padded(x, filler, equation.params["padding_config"])


def padded(
    x: Array, filler: Array | float, config: Sequence[tuple[int, int, int]]
) -> Array:
    """Return an array with so many of a value before, behind and between each axis's."""
    for axis, (_, _, inner) in enumerate(config):
        if inner and x.shape[axis]:
            apart = reshape(x, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]))
            widths = [(0, 0)] * apart.ndim
            widths[axis + 1] = 0, inner
            shape = list(x.shape)
            shape[axis] *= inner + 1
            x = reshape(xp.pad(apart, widths, value=filler), shape)
            x = x[(*[slice(None)] * axis, slice(shape[axis] - inner))]
    return xp.pad(x, [(low, high) for low, high, _ in config], value=filler)


def _slice(equation: Equation) -> Value:
    """Return a part with fixed bounds; of the words of keys each by itself."""
    starts = tuple(equation.params["start_indices"])
    strides = equation.params["strides"] or (1,) * len(starts)
    bounds = [
        slice(*bound)
        for bound in zip(starts, equation.params["limit_indices"], strides, strict=True)
    ]
    value = equation.values[0]
    if not isinstance(value, Stack):
        return _part(equation.array(0), bounds)
    kept = value[bounds[-1]]
    parts = Stack(_part(part, bounds[:-1]) for part in kept)
    if len(kept) == len(value):
        return parts
    return array(equation.graph, parts)


def _part(x: Array, bounds: Sequence[slice]) -> Array:
    """Return x[bounds]; of one row, what that is computed of."""
    if bounds and len(range(*bounds[0].indices(x.shape[0]))) == 1:
        inside = _part(row(x, bounds[0].start), bounds[1:])
        return reshape(inside, (1, *inside.shape))
    return x[tuple(bounds)]


def _split(equation: Equation) -> Sequence[Value]:
    """Return the parts of such sizes along an axis."""
    x, axis, parts, start = equation.array(0), equation.params["axis"], [], 0
    for size in equation.params["sizes"]:
        bounds = [slice(0, extent) for extent in x.shape]
        bounds[axis] = slice(start, start + int(size))
        parts.append(_part(x, bounds))
        start += int(size)
    return parts


def _dynamic_slice(equation: Equation) -> Value:
    """Return a part at computed indices, kept inside of the array as JAX does."""
    sizes = tuple(equation.params["slice_sizes"])
    found = _at(equation, equation.array(0), equation.values[1:], sizes)
    return reshape(found, sizes)


def _at(
    equation: Equation, x: Array, starts: Sequence[Value], sizes: Sequence[int]
) -> Array:
    """Return x from starts on, without the first axes as long as it takes one of each."""
    if tuple(sizes) == x.shape:
        return x
    if sizes[0] == 1:
        first = _inside(equation, starts[0], x.shape[0])
        return _at(equation, _row(x, first), starts[1:], sizes[1:])
    for axis, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        if size != x.shape[axis]:
            first = _inside(equation, start, x.shape[axis] - size + 1)
            x = xp.take(x, xp.arange(size) + first, axis)
    return x


def _inside(equation: Equation, start: Value, extent: int) -> int | Array:
    """Return a start, of one element, that is a place in the array."""
    if isinstance(start, np.generic):
        return min(max(int(start), 0), extent - 1)
    index = array(equation.graph, start)
    if isinstance(index.node, Constant):
        return min(max(int(index.node.value), 0), extent - 1)
    return xp.minimum(xp.maximum(xp.astype(index, "int64"), 0), extent - 1)


def _row(x: Array, start: int | Array) -> Array:
    """Return a row, taken where its values come from if that can be."""
    if isinstance(start, int):
        return row(x, start)
    try:
        return row(x, start.node)
    except KernelError:
        return xp.take(x, start, axis=0)


def _dynamic_update_slice(equation: Equation) -> Value:
    """Return an array of which a part from computed places on is another's."""
    x, update = equation.array(0), equation.array(1)
    mask: Array | None = None
    for axis, start in enumerate(equation.values[2:]):
        extent, size = x.shape[axis], update.shape[axis]
        if size == extent:
            continue
        first = _inside(equation, start, extent - size + 1)
        places = _places(x, axis)
        here = places == first
        if size > 1:
            here = xp.logical_and(places >= first, places < first + size)
            steps = xp.arange(extent) - first
            update = xp.take(update, steps, axis)  # held within it
        mask = here if mask is None else xp.logical_and(mask, here)
    return update if mask is None else xp.where(mask, update, x)


def _scatter(combine: Callable[[Array, Array], Array]) -> Rule:
    """Return the rule of an update x.at[i].set(v): of one place, or of computed ones."""

    def rule(equation: Equation) -> Value:
        x, indices, update = equation.arrays()
        if equation.primitive == "scatter" and equation.params["update_jaxpr"]:
            raise equation.refusal(
                "of a function of what is there is not supported; take elements, and "
                "set what is made of them"
            )
        numbers = equation.params["dimension_numbers"]
        axes = tuple(numbers.scatter_dims_to_operand_dims)
        one = indices.ndim == 1 and tuple(numbers.inserted_window_dims) == axes
        whole = tuple(e for axis, e in enumerate(x.shape) if axis not in axes)
        if not one or update.shape != whole:
            return scattered(equation, combine)
        spread = tuple(1 if axis in axes else e for axis, e in enumerate(x.shape))
        new = combine(x, reshape(update, spread))
        clips = "CLIP" in str(equation.params["mode"])
        mask: Array | None = None
        for word, axis in enumerate(axes):
            extent = x.shape[axis]
            index = xp.astype(row(indices, word), "int64")
            if clips:
                index = xp.minimum(xp.maximum(index, 0), extent - 1)
            here = _places(x, axis) == index
            mask = here if mask is None else xp.logical_and(mask, here)
        return new if mask is None else xp.where(mask, new, x)

    return rule


def _places(x: Array, axis: int) -> Array:
    """Return where along an axis each element is, to be broadcast."""
    extent = x.shape[axis]
    return reshape(xp.arange(extent), (extent, *(1 for _ in x.shape[axis + 1 :])))


RULES: Final[dict[str, Rule]] = {
    "broadcast_in_dim": word_by_word(_broadcast_in_dim),
    "concatenate": word_by_word(
        lambda equation: xp.concat(equation.arrays(), equation.params["dimension"])
    ),
    "iota": _iota,
    "pad": _pad,
    "reshape": word_by_word(_reshaped),
    "rev": word_by_word(calling(xp.flip, "dimensions")),
    "squeeze": word_by_word(_reshaped),
    "stack": word_by_word(
        lambda equation: xp.stack(equation.arrays(), equation.params["axis"])
    ),
    "tile": calling(xp.tile, "reps"),
    "transpose": word_by_word(calling(xp.permute_dims, "permutation")),
    "dynamic_slice": word_by_word(_dynamic_slice),
    "dynamic_update_slice": _dynamic_update_slice,
    "scatter": _scatter(lambda _, new: new),
    "scatter-add": _scatter(xp.add),
    "scatter-max": _scatter(xp.maximum),
    "scatter-min": _scatter(xp.minimum),
    "scatter-mul": _scatter(xp.multiply),
    "scatter-sub": _scatter(xp.subtract),
    "slice": word_by_word(_slice),
    "split": _split,
}
