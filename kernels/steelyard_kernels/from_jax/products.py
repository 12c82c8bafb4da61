"""Primitives of JAX's that add up: products of small matrices, and reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from string import ascii_letters
from typing import Final

import numpy as np

from steelyard_kernels import array as xp
from steelyard_kernels import dtypes
from steelyard_kernels.array import Array
from steelyard_kernels.array.windows import Window, windowed
from steelyard_kernels.dtypes import DType
from steelyard_kernels.from_jax.equation import Equation, Rule
from steelyard_kernels.from_jax.places import padded
from steelyard_kernels.from_jax.values import Value, element, reshape
from steelyard_kernels.monoids import MONOIDS


def _dot_general(equation: Equation) -> Value:
    """Return the sums of products; of bools whether there is one."""
    to = element(equation.outputs[0].dtype)
    if to is dtypes.bool_:
        return xp.not_equal(_sums_of_products(equation, dtypes.int32), 0)
    return _sums_of_products(equation, to)


def _sums_of_products(equation: Equation, to: DType) -> Array:
    """Return sums over the contracted axes, batch axes first."""
    (over_a, over_b), (batch_a, batch_b) = equation.params["dimension_numbers"]
    a, b = (xp.astype(each, to) for each in equation.arrays())
    free_a = _others(a, over_a, batch_a)
    free_b = _others(b, over_b, batch_b)
    if batch_a:
        letters = _letters((a, over_a, batch_a), (b, over_b, batch_b))
        kept = [letters[0][axis] for axis in (*batch_a, *free_a)]
        kept += [letters[1][axis] for axis in free_b]
        return xp.einsum(f"{','.join(letters)}->{''.join(kept)}", a, b)
    rows, count, columns = (
        prod(x.shape[axis] for axis in axes)
        for x, axes in ((a, free_a), (a, over_a), (b, free_b))
    )
    a = xp.permute_dims(a, (*free_a, *over_a))
    b = xp.permute_dims(b, (*over_b, *free_b))
    shape = tuple(equation.outputs[0].shape)
    if to.kind != "float":  # whose sums wrap as JAX's do
        a, b = reshape(a, (rows, count)), reshape(b, (count, columns))
        return reshape(xp.matmul(a, b), shape)
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


def _reduction(function: Callable[..., Array]) -> Rule:
    """Return the rule of a reduction over some axes."""

    def rule(equation: Equation) -> Value:
        (x,), axes = equation.arrays(), tuple(map(int, equation.params["axes"]))
        if not axes:
            return x
        if x.dtype is dtypes.bool_:
            return xp.not_equal(function(xp.astype(x, "int32"), axis=axes), 0)
        return xp.astype(function(x, axis=axes), x.dtype)

    return rule


def _windows(
    equation: Equation, x: Array, counts: Sequence[int], around: float
) -> Array:
    """Return the windows of all axes, with a value around the array."""
    given = equation.params
    pads = [low for low, _ in given["padding"]]
    apart = given.get("window_dilation", [1] * x.ndim)
    numbers = given["window_dimensions"], given["window_strides"], pads, apart
    windows = [Window(*map(int, each)) for each in zip(*numbers, strict=True)]
    values = windowed(x, counts, windows)
    if not around:
        return values
    ones = xp.full(x.shape, fill_value=True, dtype="bool")
    return xp.where(windowed(ones, counts, windows), values, around)


def _added_where_chosen(equation: Equation) -> Value:
    """Return, for each element, the sum of what belongs to windows that it is chosen of."""
    source, x = equation.arrays()
    if not source.size:
        return xp.zeros(x.shape, x.dtype)
    largest = str(equation.params["select_prim"]) == "ge"
    around = MONOIDS["max" if largest else "min"].neutral(x.dtype)
    values = _windows(equation, x, source.shape, around)
    flat = xp.reshape(values, (*source.shape, -1))
    chosen = (xp.argmax if largest else xp.argmin)(flat, axis=-1)
    places = np.ndindex(*equation.params["window_dimensions"])
    total: Array | None = None
    for number, place in enumerate(places):
        config = []
        for axis, step in enumerate(equation.params["window_strides"]):
            low = place[axis] - int(equation.params["padding"][axis][0])
            last = low + (source.shape[axis] - 1) * step
            config.append((low, x.shape[axis] - 1 - last, step - 1))
        part = padded(xp.where(chosen == number, source, 0.0), 0.0, config)
        total = part if total is None else total + part
    assert total is not None
    return total


def _of_windows(reduction: str) -> Rule:
    """Return the rule of a reduction of windows."""
    row = MONOIDS[reduction]

    def rule(equation: Equation) -> Value:
        if any(each != 1 for each in equation.params["base_dilation"]):
            raise equation.refusal("of a dilated array is not supported")
        (x,) = equation.arrays()
        values = _windows(equation, x, equation.outputs[0].shape, row.neutral(x.dtype))
        found = getattr(xp, reduction)(values, axis=tuple(range(-x.ndim, 0)))
        return xp.astype(found, x.dtype)

    return rule


RULES: Final[dict[str, Rule]] = {
    "conv_general_dilated": _convolution,
    "dot_general": _dot_general,
    "reduce_and": _reduction(xp.min),
    "reduce_max": _reduction(xp.max),
    "reduce_min": _reduction(xp.min),
    "reduce_or": _reduction(xp.max),
    "reduce_prod": _reduction(xp.prod),
    "reduce_sum": _reduction(xp.sum),
    "reduce_window_max": _of_windows("max"),
    "reduce_window_min": _of_windows("min"),
    "reduce_window_sum": _of_windows("sum"),
    "select_and_scatter_add": _added_where_chosen,
}
