"""Which nodes are read at which places: what `places` asks for, users first."""

from __future__ import annotations

from dataclasses import dataclass

from steelyard_kernels.expression.expr import (
    Dot,
    Gather,
    Node,
    Program,
    Reduce,
    operands,
    users,
)
from steelyard_kernels.nest.axes import Place, Value


def read_of(node: Node) -> tuple[Node, ...]:
    """Return the nodes that a node asks for: of what is taken two neighbours."""
    if isinstance(node, Gather):
        return node.arg, node.arg, node.which
    return operands(node)


@dataclass(slots=True, eq=False)
class Use:
    """A node at one place: what it reads there, what it reduces, what it comes to."""

    node: Node
    place: Place
    args: tuple[Use, ...] = ()
    over: tuple[int, ...] = ()
    value: Value | None = None


def users_first(program: Program) -> list[Node]:
    """Return nodes in an order in which each stands behind its users.

    Reductions come as late as can be: they take axes that there are by then.
    """
    waits = users(program.nodes)
    ready = [node for node in program.nodes if not waits.get(node.number)]
    found: list[Node] = []
    while ready:
        ready.sort(key=lambda n: (not isinstance(n, Reduce | Dot), n.number))
        found.append(ready.pop())
        for arg in operands(found[-1]):
            waits[arg.number] -= 1
            if not waits[arg.number]:
                ready.append(arg)
    return found


def varies(place: Place) -> frozenset[int]:
    """Return the axes that a place varies with."""
    return frozenset[int]().union(*[index.axes for index in place])


def known(use: Use) -> Value:
    """Return what a use came to, of which the value was made before."""
    assert use.value is not None
    return use.value
