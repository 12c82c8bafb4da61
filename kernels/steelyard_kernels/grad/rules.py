"""What elementwise operations pass back: the gradients of their rows."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from steelyard_kernels.expression.expr import Apply, Node, operands
from steelyard_kernels.ops import OPERATIONS


def varied(nodes: Iterable[Node], leaves: AbstractSet[int]) -> set[int]:
    """Return the leaves and which of the nodes, by number, change with them smoothly.

    `nodes` are in evaluation order; a loop's results change with all that it reads.
    """
    found = set(leaves)
    for node in nodes:
        stops = isinstance(node, Apply) and not OPERATIONS[node.op].gradient
        if node.dtype.kind != "float" or stops:
            continue
        if any(arg.number in found for arg in operands(node)):
            found.add(node.number)
    return found
