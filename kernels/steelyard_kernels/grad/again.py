"""Makes expressions again in their own graph, with other nodes for some of theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from steelyard_kernels.expression.bodies import body
from steelyard_kernels.expression.expr import Node, Result
from steelyard_kernels.expression.graph import Graph
from steelyard_kernels.expression.rewrite import Again

# By the id of a loop: what its results are taken from instead, in their order.
Replaced: TypeAlias = Mapping[int, Sequence[Node]]


def again(
    graph: Graph,
    roots: Sequence[Node],
    made: Mapping[int, Node],
    replaced: Replaced,
) -> list[Node]:
    """Return what `roots` become where `made` has other nodes, by number.

    What depends on none of these stays the node it is, loops included. Results of the
    loops in `replaced` are those of the loops that stand for them, so that no loop is
    run twice.
    """

    def rule(_: Graph, node: Node, __: Mapping[int, Node]) -> Node | None:
        if not isinstance(node, Result) or id(node.loop) not in replaced:
            return None
        target = replaced[id(node.loop)][node.place]
        add([target])
        return work.made[target.number]

    def add(nodes: Sequence[Node]) -> None:
        inside, free = body(nodes, set(made))
        for node in free:
            work.made.setdefault(node.number, node)
        work.add(inside)

    work = Again(graph, rule)
    work.made.update(made)
    add(roots)
    return [work.made[root.number] for root in roots]
