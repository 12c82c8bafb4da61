"""What each elementwise operation passes back: one row an operation.

A row has a function an operand: of the cotangent g of the result, the result y and the
operands it gives the operand's cotangent, in the shape of the result. What can be
computed without g is, so that a loop that goes backwards waits for one product. All
is as in JAX: maximum and minimum pass half to each of two equal operands, abs all
at 0 and its negative of NaN, and the slopes of tanh and sigmoid are made of their results, so that what is
left of 1 - y near 1 has few digits.
"""

# ruff: noqa: ARG005 - all functions of a row take the same

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import Final, TypeAlias

from steelyard_kernels import array as xp
from steelyard_kernels.array import Array
from steelyard_kernels.expression.expr import Apply, Node, operands

Rule: TypeAlias = Callable[..., Array]  # (g, y, *operands) -> an operand's cotangent


def constant(like: Array, value: float) -> Array:
    """Return a constant of shape () and of another array's dtype."""
    return Array(like.graph, like.graph.constant(value, like.dtype))


def _chosen(g: Array, chosen: Array, tied: Array) -> Array:
    """Return g where an operand was chosen, half of it where both were."""
    share = xp.where(tied, constant(g, 0.5), constant(g, 1.0))
    return g * xp.where(chosen, share, 0.0)


def _of_abs(g: Array, _: Array, x: Array) -> Array:
    return g * xp.where(x >= 0, constant(g, 1.0), constant(g, -1.0))


RULES: Final[dict[str, tuple[Rule, ...]]] = {
    "add": (lambda g, y, a, b: g, lambda g, y, a, b: g),
    "subtract": (lambda g, y, a, b: g, lambda g, y, a, b: -g),
    "multiply": (lambda g, y, a, b: g * b, lambda g, y, a, b: g * a),
    "divide": (lambda g, y, a, b: g / b, lambda g, y, a, b: g * (-y / b)),
    "maximum": (
        lambda g, y, a, b: _chosen(g, a >= b, a == b),
        lambda g, y, a, b: _chosen(g, b >= a, a == b),
    ),
    "minimum": (
        lambda g, y, a, b: _chosen(g, a <= b, a == b),
        lambda g, y, a, b: _chosen(g, b <= a, a == b),
    ),
    "negative": (lambda g, y, x: -g,),
    "abs": (_of_abs,),
    "sqrt": (lambda g, y, x: g * (0.5 / y),),
    "rsqrt": (lambda g, y, x: g * (-0.5 * (y / x)),),
    "exp": (lambda g, y, x: g * y,),
    "log": (lambda g, y, x: g / x,),
    "expm1": (lambda g, y, x: g * (y + 1.0),),
    "log1p": (lambda g, y, x: g / (x + 1.0),),
    "tanh": (lambda g, y, x: g * ((1.0 - y) * (1.0 + y)),),
    "sigmoid": (lambda g, y, x: g * (y * (1.0 - y)),),
    "softplus": (lambda g, y, x: g * xp.sigmoid(x),),
    # erf'(y) = 2 / sqrt(pi) * exp(-y^2), and its inverse has the inverse slope.
    "erf_inv": (lambda g, y, x: g * (math.sqrt(math.pi) / 2 * xp.exp(y * y)),),
    "erf": (lambda g, y, x: g * (2 / math.sqrt(math.pi) * xp.exp(-(x * x))),),
    "sin": (lambda g, y, x: g * xp.cos(x),),
    "cos": (lambda g, y, x: g * -xp.sin(x),),
    "sinpi": (lambda g, y, x: g * (math.pi * xp.cospi(x)),),
    "cospi": (lambda g, y, x: g * (-math.pi * xp.sinpi(x)),),
    "where": (
        lambda g, y, c, a, b: g,  # never asked: a bool passes nothing back
        lambda g, y, c, a, b: xp.where(c, g, 0.0),
        lambda g, y, c, a, b: xp.where(c, 0.0, g),
    ),
}


def varied(nodes: Iterable[Node], leaves: AbstractSet[int]) -> set[int]:
    """Return the leaves and which of the nodes, by number, change with them smoothly.

    `nodes` are in evaluation order; a loop's results change with all that it reads.
    """
    found = set(leaves)
    for node in nodes:
        stops = isinstance(node, Apply) and node.op not in RULES
        if node.dtype.kind != "float" or stops:
            continue
        if any(arg.number in found for arg in operands(node)):
            found.add(node.number)
    return found
