"""Makes a program again, node by node, with something else for some of its nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from msgspec.structs import replace

from steelyard_kernels.expression import expr
from steelyard_kernels.expression.expr import Node, Program
from steelyard_kernels.expression.graph import Graph
from steelyard_kernels.expression.lines import along, handed, merge, segments
from steelyard_kernels.expression.rows import row
from steelyard_kernels.expression.structure import reachable
from steelyard_kernels.expression.views import gathered

# What stands for a node in a program made again, given what stands for those before it;
# None: itself. Nodes of loops' bodies are asked for as all others.
Rule: TypeAlias = Callable[[Graph, Node, Mapping[int, Node]], Node | None]


def rewritten(program: Program, rule: Rule) -> Program:
    """Return the program with what a rule puts for some of its nodes.

    Raises KernelError where the rule's nodes do not fit where they are read.
    """
    return remade(program, Again(Graph(program.name), rule))


def remade(program: Program, again: Again) -> Program:
    """Return the program made again in an empty graph."""
    again.graph.chains = program.chains  # which no node says if none reads its part
    inputs = tuple(
        again.graph.input(node.name, node.index, node.shape, node.dtype)
        for node in program.inputs
    )
    for old, new in zip(program.inputs, inputs, strict=True):
        again.made[old.number] = new
    again.add(program.nodes)
    made = again.made
    outputs = tuple(
        expr.Output(o.name, made[o.value.number], o.updates, o.hidden)
        for o in program.outputs
    )
    scalars = tuple(made[node.number] for node in program.scalars)
    nodes = reachable(output.value for output in outputs)
    return replace(
        program,
        inputs=inputs,
        scalars=scalars,
        outputs=outputs,
        nodes=nodes,
    )


class Again:
    """Nodes made again in a graph; `made` is what stands for each, by number."""

    def __init__(self, graph: Graph, rule: Rule) -> None:
        self.graph = graph
        self.rule = rule
        self.made: dict[int, Node] = {}
        self._loops: dict[int, Sequence[Node]] = {}  # results, by the old one's id

    def add(self, nodes: Iterable[Node]) -> None:
        """Make every node again that is not yet, in evaluation order."""
        for node in nodes:
            if node.number not in self.made:
                new = self.rule(self.graph, node, self.made)
                self.made[node.number] = self._node(node) if new is None else new

    def _node(self, node: Node) -> Node:
        if isinstance(node, expr.Result):
            return self._results(node.loop)[node.place]
        args = [self.made[arg.number] for arg in expr.operands(node)]
        return _MADE[type(node)](self.graph, node, *args)

    def _results(self, loop: expr.Loop) -> Sequence[Node]:
        if id(loop) not in self._loops:
            self._loops[id(loop)] = self.results(loop)
        return self._loops[id(loop)]

    def results(self, loop: expr.Loop) -> Sequence[Node]:
        """Make a loop again and return what its results are, by their places."""
        inits = [self.made[init.number] for init in loop.inits]
        carries, index = self.graph.parameters(inits)
        pairs = zip(loop.carries, carries, strict=True)
        self.made |= {old.number: new for old, new in pairs}
        self.made[loop.index.number] = index
        self.add(loop.nodes)
        return self.loop(loop, inits, (carries, index), loop.nexts, loop.stacked)

    def loop(
        self,
        old: expr.Loop,
        inits: Sequence[Node],
        parameters: tuple[tuple[expr.Parameter, ...], expr.Parameter],
        nexts: Sequence[Node],
        stacked: Sequence[Node],
    ) -> tuple[Node, ...]:
        """Return the results of a loop like an old one, of some of its old nodes."""
        made, length, condition = self.made, old.length, old.condition
        return self.graph.loop(
            length if isinstance(length, int) else made[length.number],
            inits,
            parameters,
            [made[node.number] for node in nexts],
            [made[node.number] for node in stacked],
            condition=None if condition is None else made[condition.number],
            unroll=old.unroll,
            reverse=old.reverse,
        )


# What makes a node again of what stands for its operands; inputs and parameters are made
# with their program or their loop.
_MADE: Final[Mapping[type, Callable[..., Node]]] = {
    expr.Along: lambda graph, x, arg: along(
        graph, x.op, arg, x.axis, reverse=x.reverse
    ),
    expr.Apply: lambda graph, x, *args: graph.apply(x.op, *args),
    expr.Arange: lambda graph, x: graph.arange(x.shape[0], x.dtype),
    expr.Broadcast: lambda graph, x, arg: graph.broadcast(arg, x.shape),
    expr.Cast: lambda graph, x, arg: graph.cast(arg, x.dtype),
    expr.Chain: lambda graph, _, arg: graph.chain(arg),
    expr.Chains: lambda graph, _, arg: graph.chains_of(arg),
    expr.Constant: lambda graph, x: graph.constant(x.value, x.dtype),
    expr.Dot: lambda graph, _, a, b: graph.dot(a, b),
    expr.Gather: lambda graph, x, arg, at: gathered(graph, arg, at, x.index, x.place),
    expr.Handed: lambda graph, x, arg, memory: handed(
        graph, x.op, arg, memory, axis=x.axis, reverse=x.reverse
    ),
    expr.Merge: lambda graph, x, arg: merge(graph, arg, x.shape[-1]),
    expr.Reduce: lambda graph, x, arg: graph.reduce(
        x.op, arg, x.axes, keepdims=x.keepdims
    ),
    expr.Reshape: lambda graph, x, arg: graph.reshape(arg, x.shape),
    expr.Row: lambda graph, _, arg, index: row(graph, arg, index),
    expr.Scalar: lambda graph, x: graph.scalar(x.name, x.dtype),
    expr.Segments: lambda graph, x, arg, starts: segments(graph, arg, starts, x.axis),
    expr.View: lambda graph, x, arg: graph.view(arg, x.index, x.shape),
}
