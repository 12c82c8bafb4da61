"""What belongs to a loop's body, and what a loop may be made of."""

from __future__ import annotations

from collections.abc import Sequence

from steelyard_kernels import dtypes
from steelyard_kernels.dtypes import int32
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import (
    Apply,
    Cast,
    Constant,
    Loop,
    Node,
    operands,
)
from steelyard_kernels.expression.structure import closure


def check_loop(kernel: str, loop: Loop) -> None:
    """Raise KernelError for a loop that is none, in a sentence that says why."""
    pairs = zip(loop.carries, loop.nexts, strict=True)
    for place, (carry, node) in enumerate(pairs):
        if carry.shape != node.shape or carry.dtype is not node.dtype:
            raise KernelError(
                f"{kernel}: carry {place} of a loop begins as {carry.dtype} "
                f"{carry.shape} and goes on as {node.dtype} {node.shape}; return what "
                "it began as."
            )
    condition, length = loop.condition, loop.length
    if condition is not None and (condition.shape or condition.dtype.kind != "bool"):
        raise KernelError(
            f"{kernel}: a loop's condition is {condition.dtype} {condition.shape}, "
            "expected one bool; of several take xp.max(condition.astype('int32')) > 0 for "
            "any, xp.min of them for all."
        )
    if not isinstance(length, int):
        _check_runtime_length(kernel, length, loop.stacked)
    elif not 0 <= length < 1 << 63:
        raise KernelError(
            f"{kernel}: a loop of {length} iterations, expected 0 to 2**63 - 1; pass "
            "its length."
        )


def _check_runtime_length(kernel: str, length: Node, stacked: Sequence[Node]) -> None:
    if length.shape or length.dtype is not dtypes.int64:
        raise KernelError(
            f"{kernel}: a loop's length is {length.dtype} {length.shape}, expected one "
            "int64; pass a keyword-only int."
        )
    if stacked:
        raise KernelError(
            f"{kernel}: a loop whose length is given at launch cannot stack what it "
            "computes; return None for it, or pass the length as an int."
        )


def body(
    roots: Sequence[Node], parameters: set[int]
) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """Return what depends on a loop's parameters, and the rest that it reads.

    Numbers grow from operands to users: what is older than the parameters depends on
    none of them and is not looked into.
    """
    oldest = min(parameters)
    every = closure(roots, lambda node: operands(node) if node.number > oldest else ())
    inside = set(parameters)
    nodes = []
    for node in every:
        if any(arg.number in inside for arg in operands(node)):
            inside.add(node.number)
            nodes.append(node)
    read = {root.number for root in roots}
    read.update(arg.number for node in nodes for arg in operands(node))
    free = [node for node in every if node.number in read - inside]
    return tuple(nodes), tuple(free)


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
