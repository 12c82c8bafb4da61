"""Primitives of JAX's that move elements: other shapes, what is put together.

All are views. Keys move as their two words.
"""

from __future__ import annotations

from math import prod
from typing import Final

from steelyard_kernels import array as xp
from steelyard_kernels import dtypes
from steelyard_kernels.from_jax.equation import Equation, Rule, word_by_word
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


def _transpose(equation: Equation) -> Value:
    return xp.permute_dims(equation.array(0), equation.params["permutation"])


def _iota(equation: Equation) -> Value:
    dtype, shape = element(equation.params["dtype"]), tuple(equation.params["shape"])
    axis = equation.params["dimension"]
    count = arange(
        equation.graph, shape[axis], dtype if dtype.kind == "int" else dtypes.int32
    )
    spread = reshape(count, (shape[axis], *(1 for _ in shape[axis + 1 :])))
    return xp.broadcast_to(xp.astype(spread, dtype), shape)


def _concatenate(equation: Equation) -> Value:
    return xp.concat(equation.arrays(), equation.params["dimension"])


def _stack(equation: Equation) -> Value:
    return xp.stack(equation.arrays(), equation.params["axis"])


def _tile(equation: Equation) -> Value:
    return xp.tile(equation.array(0), equation.params["reps"])


def _rev(equation: Equation) -> Value:
    return xp.flip(equation.array(0), equation.params["dimensions"])


def _pad(equation: Equation) -> Value:
    """Return an array with a value around it."""
    x, filler = equation.arrays()
    config = equation.params["padding_config"]
    if any(low < 0 or high < 0 or inner for low, high, inner in config):
        raise equation.refusal(
            "takes elements away or puts them between; only padding around is supported"
        )
    return xp.pad(x, [(low, high) for low, high, _ in config], value=filler)


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
