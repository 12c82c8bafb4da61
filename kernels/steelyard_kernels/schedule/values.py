"""Lowering of one node at a time: from tensor expressions to lanes of the loop IR."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from typing import Final, TypeAlias

from msgspec import Struct

from steelyard_kernels import dtypes
from steelyard_kernels.errors import CompilerBug
from steelyard_kernels.expression import expr
from steelyard_kernels.expression.expr import Node
from steelyard_kernels.expression.structure import users
from steelyard_kernels.ir.builder import Builder, const
from steelyard_kernels.ir.functions.exp_log import exp_below, exp_of_lower
from steelyard_kernels.ir.functions.floats import Number
from steelyard_kernels.ir.loops import Operand

Env: TypeAlias = dict[int, Operand]
Fused: TypeAlias = Mapping[int, "Fusion"]

# What gives one of its operands, or one with another sign.
_UNROUNDED: Final = frozenset({"negative", "abs", "maximum", "minimum", "where"})


class Fusion(Struct, frozen=True):
    """A sum that takes up a product: a * b + c, or c - a * b where `negated`."""

    product: int
    a: Node
    b: Node
    c: Node
    negated: bool


def fusions(
    nodes: Iterable[Node], level: Mapping[int, object], kept: Container[int]
) -> Fused:
    """Find, by the sum's number, the sums that take up a product nobody else needs.

    Sums and products of different levels stay apart (the product is computed less
    often), and so do products in `kept`. So do two products: one would be rounded and
    the other not, and the difference of equal ones would not be 0.
    """
    nodes = tuple(nodes)
    count = users(nodes)
    found: dict[int, Fusion] = {}
    for node in nodes:
        if not isinstance(node, expr.Apply) or node.op not in {"add", "subtract"}:
            continue
        if node.dtype not in {dtypes.float32, dtypes.float64}:
            continue
        for place, product in enumerate(node.args):
            if (
                isinstance(product, expr.Apply)
                and product.op == "multiply"
                and count[product.number] == 1
                and level[product.number] == level[node.number]
                and product.number not in kept
                and (node.op == "add" or place == 1)
                and not _may_be_product(node.args[1 - place])
            ):
                (x, y), other = product.args, node.args[1 - place]
                negated = node.op == "subtract"
                found[node.number] = Fusion(product.number, x, y, other, negated)
                break
    return found


def _may_be_product(node: Node) -> bool:
    """Say whether a value was rounded last as a product, but for its sign or a choice.

    A power of two times something is not rounded.
    """
    pending = [node]
    while pending:
        node = pending.pop()
        if isinstance(node, expr.Apply) and node.op == "multiply":
            if not any(map(_is_power_of_two, node.args)):
                return True
            pending += node.args
        elif isinstance(node, expr.Broadcast) or (
            isinstance(node, expr.Apply) and node.op in _UNROUNDED
        ):
            pending += expr.operands(node)
    return False


def _is_power_of_two(node: Node) -> bool:
    return (
        isinstance(node, expr.Constant) and abs(math.frexp(float(node.value))[0]) == 0.5
    )


def lower(
    b: Builder,
    env: Env,
    node: Node,
    lanes: int,
    fused: Fused,
    *,
    target: str = "cpu",
    summed: Container[int] = (),
) -> Operand:
    """Emit the value of a node whose operands are in the environment.

    `summed`: the numbers of the nodes that are only added up.
    """
    if isinstance(node, expr.Constant):
        return const(node.value, node.dtype, lanes)
    if isinstance(node, expr.Cast):
        return b.cast(env[node.arg.number], node.dtype)
    if isinstance(node, expr.Broadcast):
        return env[node.arg.number]
    if not isinstance(node, expr.Apply):
        raise CompilerBug(f"no elementwise value for a {type(node).__name__}")
    if node.number in fused:
        sum_ = fused[node.number]
        left = env[sum_.a.number]
        if sum_.negated:
            left = b.let("negative", left)
        right, addend = env[sum_.b.number], env[sum_.c.number]
        return b.let("fma", left, right, addend)
    args = [env[arg.number] for arg in node.args]
    if target == "cpu" and largest_of(node) is not None:
        return exp_of_lower(Number(b, args[0])).operand
    if target == "cuda" and largest_of(node) is not None:
        return exp_below(Number(b, args[0]), summed=node.number in summed).operand
    if (
        target == "cpu"
        and node.op == "add"
        and node.dtype is dtypes.float32
        and any(map(_widened, node.args))
    ):
        # x * 1 + y is x + y, rounded as often; but where conversions of halves keep the
        # adders busy, multipliers stand idle: 6 % of a float16 LayerNorm's walk on Zen 4.
        return b.let("fma", args[0], const(1.0, node.dtype, lanes), args[1])
    return b.let(node.op, *args)


def largest_of(node: Node) -> expr.Reduce | None:
    """Return the largest value m of e**(x - m), of float32 values x of a line."""
    if not isinstance(node, expr.Apply) or node.op != "exp":
        return None
    (below,) = node.args
    if not isinstance(below, expr.Apply) or below.op != "subtract":
        return None
    value, most = below.args
    while isinstance(most, expr.Broadcast):
        most = most.arg
    if isinstance(most, expr.Reduce) and (most.op, most.arg) == ("max", value):
        return most if node.dtype is dtypes.float32 else None
    return None


def _widened(node: Node) -> bool:
    return isinstance(node, expr.Cast) and node.arg.dtype in dtypes.HALVES
