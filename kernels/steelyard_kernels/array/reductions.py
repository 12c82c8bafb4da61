"""Reductions over the last axis."""

from __future__ import annotations

from typing import TypeAlias

from steelyard_kernels.array.value import Array, as_array
from steelyard_kernels.errors import KernelError

Axis: TypeAlias = int | None  # None: all axes


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
    """Return the variance, divided by (extent - correction)."""
    result = _reduce("var", x, axis, keepdims)
    if correction == 0:
        return result
    extent = x.shape[-1] if x.shape else 1
    if extent <= correction:
        raise KernelError(
            f"{x.graph.kernel}: var with correction {correction} needs more elements "
            f"than the last axis of shape {x.shape} has; lower the correction."
        )
    return result * (extent / (extent - correction))


def _reduce(op: str, x: Array, axis: Axis, keepdims: bool) -> Array:
    """Reduce the last axis; None is all axes, of which there may be one at most."""
    x = as_array(x, op)
    if axis is None and x.ndim == 0:  # all of one element, and no axis to keep
        row = x.graph.broadcast(x.node, (1,))
        return Array(x.graph, x.graph.reduce(op, row, keepdims=False), x.weak)
    if axis not in {-1, x.ndim - 1} and (axis is not None or x.ndim > 1):
        over = "all axes" if axis is None else f"axis {axis}"
        raise KernelError(
            f"{x.graph.kernel}: {op} over {over} of shape {x.shape}, but only the last "
            "can be reduced; pass axis=-1, and where that is another axis an array whose "
            "last axis it is: numpy.ascontiguousarray(numpy.moveaxis(x, axis, -1))."
        )
    return Array(x.graph, x.graph.reduce(op, x.node, keepdims=keepdims))
