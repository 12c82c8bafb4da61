"""Softmax as one function: exponentials over their sum do not depend on a common shift."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from steelyard_kernels import array as xp
from steelyard_kernels.array import Array
from steelyard_kernels.expression.expr import Apply, Broadcast, Node, Reduce, Reshape


def passed(node: Node, g: Array, leaves: AbstractSet[int]) -> tuple[Node, Array] | None:
    """Return what a softmax is taken of with its cotangent; None if a node is no softmax.

    With w = exp(x - c) / sum(exp(x - c)) it is w * (g - sum(g * w)). What is subtracted
    from all of a row changes no weight: its own cotangent is exactly zero. `leaves` are
    independent, so that no softmax goes through them.
    """
    found = _softmax(node, leaves)
    if found is None:
        return None
    x, axes = found
    w = Array(g.graph, node)
    return x, w * (g - xp.sum(g * w, axis=axes, keepdims=True))


def _softmax(
    node: Node, leaves: AbstractSet[int]
) -> tuple[Node, tuple[int, ...]] | None:
    """Return what a softmax is taken of, and its axes; None if a node is no softmax."""
    if not isinstance(node, Apply) or node.op != "divide":
        return None
    power, total = node.args
    while isinstance(total, Broadcast | Reshape) and total.number not in leaves:
        total = total.arg
    inner = power.args[0] if isinstance(power, Apply) and power.op == "exp" else None
    if (
        not isinstance(total, Reduce)
        or (total.op, total.arg) != ("sum", power)
        or not isinstance(inner, Apply)
        or inner.op != "subtract"
        or leaves & {power.number, total.number, inner.number}
    ):
        return None
    x, shift = inner.args
    sums = tuple(1 if k in total.axes else n for k, n in enumerate(power.shape))
    one = _is_one(node.args[1], sums) and _is_one(shift, sums)
    return (x, total.axes) if one and x.shape == power.shape else None


def _is_one(node: Node, shape: tuple[int, ...]) -> bool:
    """Say whether a node broadcasts to a shape of one element for each of its rows."""
    while isinstance(node, Broadcast):
        node = node.arg
    aligned = (1,) * (len(shape) - len(node.shape)) + node.shape
    return all(n in {1, m} for n, m in zip(aligned, shape, strict=True))
