"""Two-pass statistics as a rewriting of the program: mean first, then deviations.

The mean of the deviations is what the mean's rounding left: it goes to the mean, and its
square leaves the variance (Chan, Golub and LeVeque, "Algorithms for computing the sample
variance", 1983, the corrected two-pass algorithm).
"""

from __future__ import annotations

from collections.abc import Mapping

from steelyard_kernels import dtypes
from steelyard_kernels.dtypes import DType
from steelyard_kernels.expression.expr import Node, Program, Reduce, everywhere
from steelyard_kernels.expression.graph import Graph
from steelyard_kernels.expression.rewrite import rewritten


def expand_variance(program: Program, *, corrected: bool = True) -> Program:
    """Spell every variance out by squared deviations, and the means beside them.

    Where a row is added up by many threads, each few of its elements, the mean is true
    to some ulp and needs not be `corrected`.
    """
    reduces = [node for node in everywhere(program.nodes) if isinstance(node, Reduce)]
    args = {node.arg.number for node in reduces if node.op == "var"}
    if not args:
        return program

    def two_pass(graph: Graph, node: Node, made: Mapping[int, Node]) -> Node | None:
        if not (isinstance(node, Reduce) and node.arg.number in args):
            return None
        if node.op not in ({"mean", "var"} if corrected else {"var"}):
            return None
        halves = node.dtype in dtypes.HALVES
        arg = made[node.arg.number]
        values = graph.cast(arg, dtypes.float32) if halves else arg
        spell = _mean if node.op == "mean" else _variance if corrected else _plain
        return graph.cast(spell(graph, values, keepdims=node.keepdims), node.dtype)

    return rewritten(program, two_pass)


def residue(extent: int, dtype: DType) -> float:
    """Return the share of a mean square that sums may lose to rounding.

    A variance below that is 0.
    """
    return extent * 2.0 ** -(24 if dtype is dtypes.float32 else 53)


def _mean(graph: Graph, values: Node, *, keepdims: bool) -> Node:
    first = graph.reduce("mean", values, keepdims=keepdims)
    rest = graph.reduce("mean", _deviations(graph, values), keepdims=keepdims)
    return graph.apply("add", first, rest)


def _plain(graph: Graph, values: Node, *, keepdims: bool) -> Node:
    off = _deviations(graph, values)
    return graph.reduce("mean", graph.apply("multiply", off, off), keepdims=keepdims)


def _variance(graph: Graph, values: Node, *, keepdims: bool) -> Node:
    off = _deviations(graph, values)
    rest = graph.reduce("mean", off, keepdims=keepdims)
    square = graph.reduce("mean", graph.apply("multiply", off, off), keepdims=keepdims)
    var = graph.apply("subtract", square, graph.apply("multiply", rest, rest))
    limit = graph.constant(residue(values.shape[-1], values.dtype), values.dtype)
    nothing = graph.apply("less", var, graph.apply("multiply", square, limit))
    return graph.apply("where", nothing, graph.constant(0.0, values.dtype), var)


def _deviations(graph: Graph, values: Node) -> Node:
    mean = graph.reduce("mean", values, keepdims=True)
    return graph.apply("subtract", values, mean)
