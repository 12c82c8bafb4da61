"""Reductions over axes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TypeAlias

from steelyard_kernels.array.shapes import place_of
from steelyard_kernels.array.value import Array, as_array
from steelyard_kernels.errors import KernelError

Axis: TypeAlias = int | Sequence[int] | None  # None: all axes


def sum(x: Array, axis: Axis = None, *, keepdims: bool = False) -> Array:  # noqa: A001 - as abs
    """Return the sum; integers add up in int64."""
    return _reduce("sum", x, axis, keepdims)


def max(x: Array, axis: Axis = None, *, keepdims: bool = False) -> Array:  # noqa: A001 - as abs
    """Return the largest value; NaN when there is one."""
    return _reduce("max", x, axis, keepdims)


def min(x: Array, axis: Axis = None, *, keepdims: bool = False) -> Array:  # noqa: A001 - as abs
    """Return the smallest value; NaN when there is one."""
    return _reduce("min", x, axis, keepdims)


def mean(x: Array, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Return the mean."""
    return _reduce("mean", x, axis, keepdims)


def var(
    x: Array, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False
) -> Array:
    """Return the variance, divided by (count - correction)."""
    result = _reduce("var", x, axis, keepdims)
    if correction == 0:
        return result
    count = prod(x.shape[place] for place in _axes("var", x, axis))
    if count <= correction:
        raise KernelError(
            f"{x.graph.kernel}: var with correction {correction} needs more elements "
            f"than the {count} of the axes that are reduced; lower the correction."
        )
    return result * (count / (count - correction))


def _reduce(op: str, x: Array, axis: Axis, keepdims: bool) -> Array:
    x = as_array(x, op)
    if axis is None and x.ndim == 0:  # all of one element, and no axis to keep
        row = x.graph.broadcast(x.node, (1,))
        return Array(x.graph, x.graph.reduce(op, row, keepdims=False), x.weak)
    axes = _axes(op, x, axis)
    return Array(x.graph, x.graph.reduce(op, x.node, axes, keepdims=keepdims))


def _axes(op: str, x: Array, axis: Axis) -> tuple[int, ...]:
    """Return the axes that are reduced, counted from the front, in order."""
    if axis is None:
        return tuple(range(x.ndim))
    given = axis if isinstance(axis, Sequence) else (axis,)
    axes = sorted(place_of(x, each, x.ndim) for each in given)
    if not axes or len(set(axes)) < len(axes):
        raise KernelError(
            f"{x.graph.kernel}: {op} over the axes {axis!r} of shape {x.shape}, expected "
            "one or more, each once; name axes that there are."
        )
    return tuple(axes)
