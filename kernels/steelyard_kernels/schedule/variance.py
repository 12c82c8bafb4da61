"""Two-pass statistics as a rewriting of the program: mean first, then deviations.

The mean of the deviations is what the mean's rounding left: it goes to the mean, and its
square leaves the variance (Chan, Golub and LeVeque, "Algorithms for computing the sample
variance", 1983, the corrected two-pass algorithm).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from steelyard_kernels import dtypes
from steelyard_kernels.dtypes import DType
from steelyard_kernels.expression.expr import Node, Program, Reduce, everywhere
from steelyard_kernels.expression.graph import Graph
from steelyard_kernels.expression.rewrite import rewritten


def expand_variance(program: Program) -> Program:
    """Spell every variance out by squared deviations, and the means beside them."""
    reduces = [node for node in everywhere(program.nodes) if isinstance(node, Reduce)]
    args = {node.arg.number for node in reduces if node.op == "var"}
    if not args:
        return program

    def two_pass(graph: Graph, node: Node, made: Mapping[int, Node]) -> Node | None:
        if not (isinstance(node, Reduce) and node.arg.number in args):
            return None
        if node.op not in {"mean", "var"}:
            return None
        halves = node.dtype in dtypes.HALVES
        arg = made[node.arg.number]
        values = graph.cast(arg, dtypes.float32) if halves else arg
        spell = _mean if node.op == "mean" else _variance
        return graph.cast(spell(graph, values, node), node.dtype)

    return rewritten(program, two_pass)


def residue(extent: int, dtype: DType) -> float:
    """Return the share of a mean square that sums may lose to rounding.

    A variance below that is 0.
    """
    return extent * 2.0 ** -(24 if dtype is dtypes.float32 else 53)


def _mean(graph: Graph, values: Node, of: Reduce) -> Node:
    return graph.apply(
        "add",
        _reduced(graph, values, of),
        _reduced(graph, _deviations(graph, values, of), of),
    )


def _variance(graph: Graph, values: Node, of: Reduce) -> Node:
    off = _deviations(graph, values, of)
    rest = _reduced(graph, off, of)
    square = _reduced(graph, graph.apply("multiply", off, off), of)
    var = graph.apply("subtract", square, graph.apply("multiply", rest, rest))
    limit = graph.constant(
        residue(prod([values.shape[k] for k in of.axes]), values.dtype), values.dtype
    )
    nothing = graph.apply("less", var, graph.apply("multiply", square, limit))
    return graph.apply("where", nothing, graph.constant(0.0, values.dtype), var)


def _reduced(graph: Graph, values: Node, of: Reduce) -> Node:
    return graph.reduce("mean", values, of.axes, keepdims=of.keepdims)


def _deviations(graph: Graph, values: Node, of: Reduce) -> Node:
    mean = graph.reduce("mean", values, of.axes, keepdims=True)
    return graph.apply("subtract", values, mean)
