"""Two-pass statistics as a rewriting of the program: mean first, then deviations."""

from __future__ import annotations

from collections.abc import Mapping

from steelyard_kernels import dtypes
from steelyard_kernels.expression.expr import Node, Program, Reduce
from steelyard_kernels.expression.graph import Graph
from steelyard_kernels.expression.rewrite import rewritten


def expand_variance(program: Program) -> Program:
    """Spell every variance out as the mean of squared differences to the mean."""
    return rewritten(program, _two_pass)


def _two_pass(graph: Graph, node: Node, made: Mapping[int, Node]) -> Node | None:
    if not (isinstance(node, Reduce) and node.op == "var"):
        return None
    halves = node.dtype in dtypes.HALVES
    arg = made[node.arg.number]
    values = graph.cast(arg, dtypes.float32) if halves else arg
    mean = graph.reduce("mean", values, keepdims=True)
    difference = graph.apply("subtract", values, mean)
    square = graph.apply("multiply", difference, difference)
    return graph.cast(graph.reduce("mean", square, keepdims=node.keepdims), node.dtype)
