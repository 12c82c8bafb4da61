"""Primitives of JAX's that add up: products of small matrices, and reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import prod
from string import ascii_letters
from typing import Final

from steelyard_kernels import array as xp
from steelyard_kernels import dtypes
from steelyard_kernels.array import Array
from steelyard_kernels.from_jax.equation import Equation, Rule
from steelyard_kernels.from_jax.shapes import permuted
from steelyard_kernels.from_jax.values import (
    Value,
    constant,
    element,
    elements,
    reshape,
)


def _dot_general(equation: Equation) -> Value:
    """Return the sums of products over the contracted axes, batch axes first."""
    (over_a, over_b), (batch_a, batch_b) = equation.params["dimension_numbers"]
    to = element(equation.outputs[0].dtype)
    if to.kind != "float":
        raise equation.refusal(
            f"of {equation.outputs[0].dtype} is not supported; convert it to floats"
        )
    a, b = (xp.astype(each, to) for each in equation.arrays())
    free_a = _others(a, over_a, batch_a)
    free_b = _others(b, over_b, batch_b)
    shape = tuple(equation.outputs[0].shape)
    orders = (*batch_a, *free_a, *over_a), (*batch_b, *free_b, *over_b)
    fit = all(permuted(x, n) is not None for x, n in zip((a, b), orders, strict=True))
    if batch_a and (to in dtypes.HALVES or not fit):
        letters = _letters((a, over_a, batch_a), (b, over_b, batch_b))
        kept = [letters[0][axis] for axis in (*batch_a, *free_a)]
        kept += [letters[1][axis] for axis in free_b]
        return xp.einsum(f"{','.join(letters)}->{''.join(kept)}", a, b)
    a = _ordered(equation, a, orders[0])
    count = prod(a.shape[a.ndim - len(over_a) :])
    rows = prod(a.shape[len(batch_a) : a.ndim - len(over_a)])
    if batch_a:
        b = _ordered(equation, b, orders[1])
        columns = prod(b.shape[len(batch_b) : b.ndim - len(over_b)])
        batch = a.shape[: len(batch_a)]
        left = reshape(a, (*batch, rows, 1, count))
        right = reshape(b, (*batch, 1, columns, count))
        return reshape(xp.sum(left * right, axis=-1), shape)
    b = _ordered(equation, b, (*over_b, *free_b))
    columns = prod(b.shape[len(over_b) :])
    return reshape(_dot(a, b, rows, count, columns), shape)


def _dot(a: Array, b: Array, rows: int, count: int, columns: int) -> Array:
    """Return the matrix product (rows, count) x (count, columns) of such elements."""
    if count == 1:  # every product is a result
        return reshape(a, (rows, 1)) * reshape(b, (1, columns))
    if columns == 1 and rows > 1:  # the matrix on the right has its lanes filled
        matrix = reshape(a, (rows, count))
        return xp.dot(reshape(b, (count,)), xp.transpose(matrix))
    left = reshape(a, (rows, count) if rows > 1 else (count,))
    return xp.dot(left, reshape(b, (count, columns)))


def _convolution(equation: Equation) -> Value:
    """Return a convolution, whose dimension numbers are places already."""
    x, w = equation.arrays()
    given = equation.params
    layouts = given["dimension_numbers"]
    return xp.conv_general_dilated(
        x,
        w,
        given["window_strides"],
        given["padding"],
        given["lhs_dilation"],
        given["rhs_dilation"],
        (layouts.lhs_spec, layouts.rhs_spec, layouts.out_spec),
        given["feature_group_count"],
        given["batch_group_count"],
    ).astype(element(equation.outputs[0].dtype))


def _letters(
    left: tuple[Array, Sequence[int], Sequence[int]],
    right: tuple[Array, Sequence[int], Sequence[int]],
) -> tuple[str, str]:
    """Return a letter for each axis, one for those of both arrays that go together."""
    (a, over_a, batch_a), (b, over_b, batch_b) = left, right
    first = ascii_letters[: a.ndim]
    second = list(ascii_letters[a.ndim :][: b.ndim])
    for i, j in (
        *zip(over_a, over_b, strict=True),
        *zip(batch_a, batch_b, strict=True),
    ):
        second[j] = first[i]
    return first, "".join(second)


def _others(x: Array, *taken: Sequence[int]) -> tuple[int, ...]:
    used = {axis for axes in taken for axis in axes}
    return tuple(axis for axis in range(x.ndim) if axis not in used)


def _ordered(equation: Equation, x: Array, order: Sequence[int]) -> Array:
    """Return the array with its axes in an order."""
    found = permuted(x, order)
    if found is None:
        raise equation.refusal(
            f"takes the axes of shape {x.shape} in the order {tuple(order)}; only the "
            "last two can be swapped"
        )
    return found


def _reduction(function: Callable[..., Array]) -> Rule:
    """Return the rule of a reduction over any axes that can be moved to the end."""

    def rule(equation: Equation) -> Value:
        (x,), axes = equation.arrays(), tuple(equation.params["axes"])
        dtype = x.dtype
        kept = tuple(axis for axis in range(x.ndim) if axis not in axes)
        moved = _ordered(equation, x, (*kept, *axes))
        shape = tuple(x.shape[axis] for axis in kept)
        count = prod(x.shape[axis] for axis in axes)
        if dtype is dtypes.bool_:
            moved = xp.astype(moved, "int32")
        found = function(reshape(moved, (*shape, count)), axis=-1)
        if dtype is dtypes.bool_:
            return xp.not_equal(found, 0)
        return xp.astype(found, dtype)

    return rule


def _reduce_prod(equation: Equation) -> Value:
    """Return the product of all elements of a small array."""
    x = equation.array(0)
    if len(equation.params["axes"]) < x.ndim:
        raise equation.refusal("over some axes is not supported; multiply all elements")
    apart: list[Array] = list(elements(x).flat)
    return reduce(xp.multiply, apart, constant(equation.graph, 1, x.dtype))


RULES: Final[dict[str, Rule]] = {
    "conv_general_dilated": _convolution,
    "dot_general": _dot_general,
    "reduce_and": _reduction(xp.min),
    "reduce_max": _reduction(xp.max),
    "reduce_min": _reduction(xp.min),
    "reduce_or": _reduction(xp.max),
    "reduce_prod": _reduce_prod,
    "reduce_sum": _reduction(xp.sum),
}
