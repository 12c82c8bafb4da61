"""Runtime integers of a kernel, and those computed of them: each has to fit its dtype.

One that does not is refused, as Python's and NumPy's are; results of operations on bits
are not looked at.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

from steelyard_kernels.dtypes import int64
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import Apply, Cast, Constant, Node, Scalar

_EXACT: Final[dict[str, Callable[..., Any]]] = {
    "abs": abs,
    "add": operator.add,
    "floor_divide": operator.floordiv,
    "maximum": max,
    "minimum": min,
    "multiply": operator.mul,
    "negative": operator.neg,
    "remainder": operator.mod,
    "subtract": operator.sub,
}
"""Operations as Python has them, of integers of any size."""


class Computed(Struct, frozen=True):
    """An integer that a kernel computes of numbers: constants and scalars, `names`."""

    node: Apply | Cast
    names: frozenset[str]


def computed(nodes: Iterable[Node]) -> tuple[Computed, ...]:
    """Return the integers that are made of numbers alone, in their order.

    These are of int64 until they meet an array; arithmetic in other dtypes may wrap.
    """
    known: dict[Node, frozenset[str]] = {}
    found = []
    for node in nodes:
        if node.dtype.kind != "int" or node.shape:
            continue
        if isinstance(node, Scalar | Constant):
            known[node] = frozenset([node.name] if isinstance(node, Scalar) else [])
        elif isinstance(node, Cast) or (isinstance(node, Apply) and node.op in _EXACT):
            args = node.args if isinstance(node, Apply) else (node.arg,)
            inner = all(arg in known and arg.dtype is int64 for arg in args)
            if inner and (isinstance(node, Cast) or node.dtype is int64):
                known[node] = frozenset[str]().union(*[known[arg] for arg in args])
                found.append(Computed(node, known[node]))
    return tuple(found)


def check(kernel: str, every: Iterable[Computed], scalars: Mapping[str, float]) -> None:
    """Raise KernelError for an int that its dtype does not hold."""
    values: dict[Node, int] = {}

    def value(node: Node) -> int:
        if isinstance(node, Scalar):
            return int(scalars[node.name])
        return int(node.value) if isinstance(node, Constant) else values[node]

    for each in every:
        node, dtype = each.node, each.node.dtype
        if isinstance(node, Cast):
            found = value(node.arg)
        elif 0 in [value(arg) for arg in node.args[1:]] and node.op in _DIVISIONS:
            found = 0  # divisions by zero are the kernel's own
        else:
            found = _EXACT[node.op](*[value(arg) for arg in node.args])
        if not dtype.smallest <= found <= dtype.largest:
            names = sorted(each.names)
            given = ", ".join(f"scalar {name} is {scalars[name]}" for name in names)
            if not (isinstance(node, Cast) and isinstance(node.arg, Scalar)):
                what = f"{found} is computed"
                given = f"{given}, of which {what}" if given else f"{what} of numbers"
            raise KernelError(
                f"{kernel}: {given}, expected a number of {dtype}, the dtype of the "
                "computation; pass one, or cast the array to a wider dtype."
            )
        values[node] = found


_DIVISIONS: Final = {"floor_divide", "remainder"}


def fitting(
    every: Iterable[Computed], defaults: Mapping[str, float] | None
) -> Mapping[str, float] | None:
    """Return the scalars' defaults; None where a call that gives none is refused."""
    try:
        check("", every, defaults or {})
    except (KernelError, KeyError):
        return None
    return defaults
