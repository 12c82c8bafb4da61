"""Primitives of JAX's that move elements: other shapes, what is put together.

All are views. Keys move as their two words.
"""

from __future__ import annotations

from math import prod
from typing import Final

from steelyard_kernels import array as xp
from steelyard_kernels import dtypes
from steelyard_kernels.from_jax.equation import Equation, Rule, calling, word_by_word
from steelyard_kernels.from_jax.values import (
    Stack,
    Value,
    arange,
    element,
    reshape,
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
    if isinstance(value, Stack) and shape[-1:] == (len(value.parts),):
        size = prod(shape[:-1])
        if size == prod(value.parts[0].shape):
            return Stack(tuple(reshape(part, shape[:-1]) for part in value.parts))
    return reshape(equation.array(0), shape)


def _iota(equation: Equation) -> Value:
    dtype, shape = element(equation.params["dtype"]), tuple(equation.params["shape"])
    axis = equation.params["dimension"]
    count = arange(
        equation.graph, shape[axis], dtype if dtype.kind == "int" else dtypes.int32
    )
    spread = reshape(count, (shape[axis], *(1 for _ in shape[axis + 1 :])))
    return xp.broadcast_to(xp.astype(spread, dtype), shape)


def _pad(equation: Equation) -> Value:
    """Return an array with a value around it and between, or with elements taken away."""
    x, filler = equation.arrays()
    config = equation.params["padding_config"]
    for axis, (_, _, inner) in enumerate(config):
        if inner and x.shape[axis]:
            apart = reshape(x, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]))
            widths = [(0, 0)] * apart.ndim
            widths[axis + 1] = 0, inner
            shape = list(x.shape)
            shape[axis] *= inner + 1
            x = reshape(xp.pad(apart, widths, value=filler), shape)
            x = x[(*[slice(None)] * axis, slice(shape[axis] - inner))]
    kept = [
        slice(max(-low, 0), e - max(-high, 0))
        for (low, high, _), e in zip(config, x.shape, strict=True)
    ]
    around = [(max(low, 0), max(high, 0)) for low, high, _ in config]
    return xp.pad(x[tuple(kept)] if kept else x, around, value=filler)


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
}
