"""Primitives of JAX's along one axis: running totals, orders and the place of an extreme."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from steelyard_kernels import array as xp
from steelyard_kernels import dtypes
from steelyard_kernels.array import Array
from steelyard_kernels.from_jax.equation import Equation, Rule
from steelyard_kernels.from_jax.values import Value, element


def _running(function: Callable[..., Array]) -> Rule:
    """Return the rule of a running total, from the last element on if it is reversed."""

    def rule(equation: Equation) -> Value:
        (x,), axis = equation.arrays(), int(equation.params["axis"])
        if not equation.params["reverse"]:
            return xp.astype(function(x, axis=axis), x.dtype)
        found = function(xp.flip(x, axis=axis), axis=axis)
        return xp.astype(xp.flip(found, axis=axis), x.dtype)

    return rule


def _extreme_place(function: Callable[..., Array]) -> Rule:
    """Return the rule of the place of the first largest or smallest value."""

    def rule(equation: Equation) -> Value:
        (x,), (axis,) = equation.arrays(), equation.params["axes"]
        x = xp.astype(x, "int32") if x.dtype is dtypes.bool_ else x
        found = function(x, axis=int(axis))
        return xp.astype(found, element(equation.params["index_dtype"]))

    return rule


def _sorted(equation: Equation) -> Sequence[Value]:
    """Return arrays in the order of the first ones, the first of all before others."""
    every, axis = equation.arrays(), int(equation.params["dimension"])
    keys = every[: int(equation.params["num_keys"])]
    if len(every) == 1:
        return (xp.sort(every[0], axis=axis),)
    order: Array | None = None
    for key in reversed(keys):  # orders are stable: the first key is the last to move
        if order is None:
            order = xp.argsort(key, axis=axis)
        else:
            moved = xp.argsort(xp.take_along_axis(key, order, axis=axis), axis=axis)
            order = xp.take_along_axis(order, moved, axis=axis)
    assert order is not None
    return [xp.take_along_axis(each, order, axis=axis) for each in every]


def _top(equation: Equation) -> Sequence[Value]:
    """Return the largest values of the last axis, or another, and where they are."""
    x, axis = equation.array(0), int(equation.params.get("axis", -1))
    values, places = xp.topk(x, int(equation.params["k"]), axis=axis)
    return values, xp.astype(places, element(equation.outputs[1].dtype))


RULES: Final[dict[str, Rule]] = {
    "argmax": _extreme_place(xp.argmax),
    "argmin": _extreme_place(xp.argmin),
    "cumlogsumexp": _running(xp.cumulative_logsumexp),
    "cummax": _running(xp.cumulative_max),
    "cummin": _running(xp.cumulative_min),
    "cumprod": _running(xp.cumulative_prod),
    "cumsum": _running(xp.cumulative_sum),
    "sort": _sorted,
    "top_k": _top,
}
