"""Two-pass statistics as a rewriting of the program: mean first, then deviations."""

from __future__ import annotations

from steelyard_kernels import dtypes
from steelyard_kernels.expr import (
    Apply,
    Broadcast,
    Cast,
    Constant,
    Input,
    Node,
    Output,
    Program,
    Reduce,
    Scalar,
    operands,
    reachable,
)
from steelyard_kernels.graph import Graph


def expand_variance(program: Program) -> Program:
    """Spell every variance out as the mean of squared differences to the mean."""
    graph = Graph(program.name)
    made: dict[int, Node] = {}
    inputs = tuple(
        graph.input(node.name, node.index, node.shape, node.dtype)
        for node in program.inputs
    )
    for old, new in zip(program.inputs, inputs, strict=True):
        made[old.number] = new
    for node in program.nodes:
        if not isinstance(node, Input):
            made[node.number] = _again(graph, node, made)
    outputs = tuple(
        Output(o.name, made[o.value.number], o.updates) for o in program.outputs
    )
    scalars = tuple(made[node.number] for node in program.scalars)
    nodes = reachable(output.value for output in outputs)
    return Program(program.name, inputs, scalars, outputs, nodes)  # type: ignore[arg-type]


def _again(graph: Graph, node: Node, made: dict[int, Node]) -> Node:
    args = [made[arg.number] for arg in operands(node)]
    if isinstance(node, Scalar):
        return graph.scalar(node.name, node.dtype)
    if isinstance(node, Constant):
        return graph.constant(node.value, node.dtype)
    if isinstance(node, Apply):
        return graph.apply(node.op, *args)
    if isinstance(node, Cast):
        return graph.cast(args[0], node.dtype)
    if isinstance(node, Broadcast):
        return graph.broadcast(args[0], node.shape)
    assert isinstance(node, Reduce)
    if node.op != "var":
        return graph.reduce(node.op, args[0], keepdims=node.keepdims)
    halves = node.dtype in dtypes.HALVES
    values = graph.cast(args[0], dtypes.float32) if halves else args[0]
    mean = graph.reduce("mean", values, keepdims=True)
    difference = graph.apply("subtract", values, mean)
    square = graph.apply("multiply", difference, difference)
    return graph.cast(graph.reduce("mean", square, keepdims=node.keepdims), node.dtype)
