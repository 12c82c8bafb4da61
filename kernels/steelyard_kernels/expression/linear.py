"""Which row an iteration reads: a times its number plus b."""

from __future__ import annotations

from steelyard_kernels.dtypes import int32
from steelyard_kernels.expression.expr import Apply, Cast, Constant, Loop, Node


def linear(node: Node, loop: Loop) -> tuple[int, int] | None:
    """Return (a, b) where an int node of a loop's body is a * index + b, else None.

    What holds an index within bounds that it never reaches is looked through.
    """
    if node is loop.index:
        return 1, 0
    if isinstance(node, Constant):
        return 0, int(node.value)
    if isinstance(node, Cast) and {node.dtype.kind, node.arg.dtype.kind} == {"int"}:
        wraps = node.dtype.bytes < int32.bytes  # rows are numbered below 2**31
        return None if wraps else linear(node.arg, loop)
    if not isinstance(node, Apply) or len(node.args) != 2:
        return None
    left, right = (linear(arg, loop) for arg in node.args)
    if left is None or right is None:
        return None
    if node.op in {"add", "subtract"}:
        sign = 1 if node.op == "add" else -1
        return left[0] + sign * right[0], left[1] + sign * right[1]
    if node.op == "multiply" and 0 in (left[0], right[0]):
        times, (slope, start) = (left[1], right) if left[0] == 0 else (right[1], left)
        return times * slope, times * start
    if node.op in {"minimum", "maximum"} and isinstance(loop.length, int):
        return _outer(node.op, left, right, loop.length - 1)
    return None


def _outer(
    op: str, left: tuple[int, int], right: tuple[int, int], last: int
) -> tuple[int, int] | None:
    """Return which of two is the minimum or maximum in iterations 0 and `last`."""
    ends = [(left[0] - right[0]) * at + left[1] - right[1] for at in (0, last)]
    if min(ends) < 0 < max(ends):
        return None
    return left if (op == "minimum") == (max(ends) <= 0) else right
