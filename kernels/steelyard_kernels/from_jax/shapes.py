"""Primitives of JAX's that move elements: other shapes, what is put together.

What no shape says is taken apart element by element while it is small. Keys move as
their two words.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

import numpy as np

from steelyard_kernels import array as xp
from steelyard_kernels import dtypes
from steelyard_kernels.array import Array
from steelyard_kernels.from_jax.equation import Equation, Rule, word_by_word
from steelyard_kernels.from_jax.values import (
    SMALL,
    Stack,
    Value,
    arange,
    element,
    elements,
    joined,
    reshape,
    together,
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
        return reshape(_ordered(equation.array(0), order), shape)
    if isinstance(value, Stack) and shape[-1:] == (len(value.parts),):
        size = prod(shape[:-1])
        if size == prod(value.parts[0].shape):
            return Stack(tuple(reshape(part, shape[:-1]) for part in value.parts))
    return reshape(equation.array(0), shape)


def _transpose(equation: Equation) -> Value:
    return _ordered(equation.array(0), equation.params["permutation"])


def _ordered(x: Array, order: Sequence[int]) -> Array:
    """Return axes in another order: of few elements each, of more as a view."""
    found = permuted(x, order)
    if found is None and prod(x.shape) > SMALL:
        return xp.permute_dims(x, order)
    return together(elements(x).transpose(order)) if found is None else found


def permuted(x: Array, order: Sequence[int]) -> Array | None:
    """Return axes in another order; None where that is no swap of two at the end.

    Axes that stay behind one another are one here, and those of one element none.
    """
    groups: list[list[int]] = []
    for axis in order:
        if x.shape[axis] == 1:
            continue
        before = groups[-1][-1] if groups else axis
        if before < axis and all(x.shape[a] == 1 for a in range(before + 1, axis)):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    shape = tuple(x.shape[axis] for axis in order)
    if groups == sorted(groups):
        return reshape(x, shape)
    swapped = [*groups[:-2], groups[-1], groups[-2]]
    if swapped != sorted(groups):
        return None
    merged = reshape(x, tuple(prod(x.shape[a] for a in group) for group in swapped))
    return reshape(xp.transpose(merged), shape)


def _iota(equation: Equation) -> Value:
    dtype, shape = element(equation.params["dtype"]), tuple(equation.params["shape"])
    axis = equation.params["dimension"]
    count = arange(
        equation.graph, shape[axis], dtype if dtype.kind == "int" else dtypes.int32
    )
    spread = reshape(count, (shape[axis], *(1 for _ in shape[axis + 1 :])))
    return xp.broadcast_to(xp.astype(spread, dtype), shape)


def _concatenate(equation: Equation) -> Value:
    """Return arrays behind one another along an axis."""
    arrays, axis = equation.arrays(), equation.params["dimension"]
    filled = [each for each in arrays if each.shape[axis]]
    if not filled:
        return arrays[0]
    if len(filled) == 1:
        return filled[0]
    if all(each.shape[axis] == 1 for each in filled):
        return joined(filled, axis)
    apart = [elements(each) for each in filled]
    return together(np.concatenate(apart, axis))


def _stack(equation: Equation) -> Value:
    """Return arrays along a new axis."""
    axis = equation.params["axis"]
    parts = equation.arrays()
    shape = (*parts[0].shape[:axis], 1, *parts[0].shape[axis:])
    return joined([reshape(part, shape) for part in parts], axis)


def _tile(equation: Equation) -> Value:
    """Return an array repeated behind itself along its axes."""
    x, reps = equation.array(0), equation.params["reps"]
    apart = [n for extent in x.shape for n in (1, extent)]
    pairs = zip(reps, x.shape, strict=True)
    spread = tuple(n for pair in pairs for n in pair)
    repeated = xp.broadcast_to(reshape(x, apart), spread)
    return reshape(repeated, tuple(equation.outputs[0].shape))


def _rev(equation: Equation) -> Value:
    """Reverse axes: of few elements each, which a loop takes too, of more as a view."""
    x, axes = equation.array(0), equation.params["dimensions"]
    if prod(x.shape) > SMALL:
        return xp.flip(x, axes)
    return together(np.flip(elements(x), axes))


def _pad(equation: Equation) -> Value:
    """Return an array with a value around it; few elements."""
    x, filler = equation.arrays()
    config = equation.params["padding_config"]
    if any(low < 0 or high < 0 or inner for low, high, inner in config):
        raise equation.refusal(
            "takes elements away or puts them between; only padding around is supported"
        )
    shape = tuple(
        low + n + high for (low, high, _), n in zip(config, x.shape, strict=True)
    )
    if shape == x.shape:
        return x
    apart = np.empty(shape, object)
    apart.fill(filler)
    inside = tuple(
        slice(low, low + n) for (low, _, _), n in zip(config, x.shape, strict=True)
    )
    apart[inside] = elements(x)
    return together(apart)


RULES: Final[dict[str, Rule]] = {
    "broadcast_in_dim": word_by_word(_broadcast_in_dim),
    "concatenate": word_by_word(_concatenate),
    "iota": _iota,
    "pad": _pad,
    "reshape": word_by_word(_reshaped),
    "rev": word_by_word(_rev),
    "squeeze": word_by_word(_reshaped),
    "stack": word_by_word(_stack),
    "tile": _tile,
    "transpose": word_by_word(_transpose),
}
