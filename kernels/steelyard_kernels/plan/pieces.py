"""A part of a program as a program of its own: some of its values, of others in memory."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from steelyard_kernels.expression.expr import (
    Input,
    Node,
    Output,
    Program,
    Scalar,
    operands,
)
from steelyard_kernels.expression.graph import Graph
from steelyard_kernels.expression.rewrite import Again
from steelyard_kernels.expression.structure import in_words, reachable
from steelyard_kernels.plan.cuts import MOVED, Needs


@dataclass(eq=False, slots=True)
class Group:
    """Values that one launch stores, the reductions for them, and what it reads.

    What others store it may compute `again`, by their numbers.
    """

    values: list[Node]
    needs: Needs
    again: frozenset[int] = frozenset()
    reads: list[Node] = field(default_factory=list)
    behind: list[Group] = field(default_factory=list)  # what reads before it overwrites
    program: Program | None = None  # once it was asked for

    @property
    def is_elementwise(self) -> bool:
        """Whether it reduces nothing."""
        return not self.needs - {MOVED}


def computed(values: Iterable[Node], memory: Container[int]) -> Iterator[Node]:
    """Yield what computes some values, readers first, as far as it is asked for."""
    pending = list(values)
    own = {node.number for node in pending}
    seen: set[int] = set()
    while pending:
        node = pending.pop()
        stored = node.number in memory and node.number not in own
        if not (isinstance(node, Input) or stored or node.number in seen):
            seen.add(node.number)
            pending += operands(node)
            yield node


def inside(
    values: Iterable[Node], memory: Container[int]
) -> tuple[list[Node], list[Node]]:
    """Return what computes some values, operands first, and what that reads, in order.

    `memory` are the numbers of what other launches store; the values are computed. The
    order is that in which values need nodes, so that equal parts of a program are equal.
    """
    pending = [*values][::-1]
    own = {node.number for node in pending}
    found: dict[int, Node] = {}
    read: dict[int, Node] = {}
    opened: set[int] = set()
    while pending:
        node = pending[-1]
        stored = node.number in memory and node.number not in own
        if isinstance(node, Input) or stored:
            read[node.number] = node
        elif node.number not in opened:
            opened.add(node.number)
            pending += operands(node)[::-1]
            continue
        else:
            found[node.number] = node
        pending.pop()
    nodes = list(found.values())
    first = {arg.number: None for node in nodes for arg in operands(node)}
    order = dict.fromkeys([*[n for n in first if n in read], *sorted(read)])
    return nodes, [read[number] for number in order]


class Pieces:
    """Parts of programs as programs: those that say the same are one, made once."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._made: dict[object, Program] = {}

    def of(
        self,
        values: Sequence[Node],
        memory: Container[int],
        updates: Sequence[int | None] = (),
    ) -> tuple[Program, list[Node]]:
        """Return a program of some values, and the nodes that are its inputs, in order.

        `updates` are the numbers of the inputs that values overwrite.
        """
        nodes, read = inside(values, memory)
        position = {node.number: place for place, node in enumerate(read)}
        inputs = tuple((node.shape, node.dtype) for node in read)
        into = tuple(None if n is None else position[n] for n in updates)
        into = into or (None,) * len(values)
        said = tuple(in_words(nodes, position))
        key = inputs, said, tuple(position[node.number] for node in values), into
        if key not in self._made:
            self._made[key] = _program(self.name, values, nodes, read, into)
        return self._made[key], read


def _program(
    name: str,
    values: Sequence[Node],
    nodes: Iterable[Node],
    read: Iterable[Node],
    updates: Iterable[int | None],
) -> Program:
    """Return a program of nodes; names of parameters are alike in all programs."""
    again = Again(Graph(name), lambda *_: None)
    inputs = []
    for place, node in enumerate(read):
        made = again.graph.input(f"x{place}", place, node.shape, node.dtype)
        again.made[node.number] = made
        inputs.append(made)
    again.add(nodes)
    outputs = tuple(
        Output(f"y{k}", again.made[node.number], into)
        for k, (node, into) in enumerate(zip(values, updates, strict=True))
    )
    found = reachable(output.value for output in outputs)
    scalars = tuple(node for node in found if isinstance(node, Scalar))
    return Program(name, tuple(inputs), scalars, outputs, found)


def copying(name: str, value: Node) -> Program:
    """Return a program that copies an array like a value."""
    node = Graph(name).input("x0", 0, value.shape, value.dtype)
    return Program(name, (node,), (), (Output("y0", node, None),), (node,))
