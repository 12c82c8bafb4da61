"""What is done where: in registers or memory, once a launch, ahead, in an iteration."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import prod
from typing import Final, TypeGuard

from msgspec import Struct

from steelyard_kernels.expression.expr import (
    Apply,
    Broadcast,
    Cast,
    Chain,
    Chains,
    Dot,
    Gather,
    Input,
    Loop,
    Node,
    Program,
    Reduce,
    Reshape,
    Result,
    Row,
    View,
    operands,
)
from steelyard_kernels.expression.structure import closure, everywhere
from steelyard_kernels.ops import OPERATIONS
from steelyard_kernels.schedule.values import Fused, fusions

# What can be computed for iterations side by side: all that reads no memory.
_AHEAD: Final = (Apply, Cast, Broadcast, Reduce, Reshape, View, Dot)
# Ahead every element is a vector of its own: more than so many fill vectors anyhow.
AHEAD_ELEMENTS: Final = 8
# Operations that are worth a way through memory.
AHEAD_OPERATIONS: Final = 8


class Body(Struct, frozen=True):
    """Nodes to emit one after another, without products that sums take up."""

    nodes: tuple[Node, ...]
    fused: Fused

    def reads(self, node: Node) -> tuple[Node, ...]:
        """Return what a node is computed of."""
        fusion = self.fused.get(node.number)
        return (fusion.a, fusion.b, fusion.c) if fusion else operands(node)


class Outline(Struct, frozen=True):
    """The parts of one loop: what `each` iteration does, and what is done ahead.

    `kept` are the nodes of `ahead` that iterations fetch; `condition` is what tells
    whether there is a next one.
    """

    ahead: Body
    kept: tuple[Node, ...]
    each: Body
    condition: Body


def in_memory(node: Node) -> bool:
    """Say whether a node is a part of memory that nothing need be computed for."""
    while _is_part(node):
        node = node.arg
    return isinstance(node, Input | Chain) or (isinstance(node, Result) and node.stacks)


def _is_part(node: Node) -> TypeGuard[Row | Reshape | View]:
    """Say whether a node is a part of memory where its operand is one."""
    return isinstance(node, Row | Reshape) or (isinstance(node, View) and node.strided)


def in_registers(program: Program) -> frozenset[int]:
    """Return the numbers of all nodes, in bodies too, whose values are computed with.

    Others are only looked at in part, as rows of an input.
    """
    found = set()
    for node in everywhere(program.nodes):
        if (isinstance(node, Gather) or _is_part(node)) and in_memory(node.arg):
            if isinstance(node, Row | Gather):
                found.add((node.index if isinstance(node, Row) else node.which).number)
            continue
        if not isinstance(node, Chain | Chains):
            found.update(arg.number for arg in _read(node))
    for output in program.outputs:
        value = output.each
        if not (isinstance(value, Result) and value.stacks):
            found.add(value.number)
    return frozenset(found)


def _read(node: Node) -> Iterable[Node]:
    """Return what a node computes with; of a loop, all but what its body reads."""
    if not isinstance(node, Result):
        return operands(node)
    loop = node.loop
    length = () if isinstance(loop.length, int) else (loop.length,)
    condition = () if loop.condition is None else (loop.condition,)
    return *loop.inits, *loop.nexts, *loop.stacked, *condition, *length


def varying(program: Program) -> frozenset[int]:
    """Return the numbers of the nodes that differ by chain, or are stored by chain."""
    inside: set[int] = set()
    loops = {
        id(output.value.arg.loop)
        for output in program.outputs
        if isinstance(output.value, Chains) and isinstance(output.value.arg, Result)
    }
    for node in program.nodes:
        by_chain = isinstance(node, Chain | Chains) or (
            isinstance(node, Result) and id(node.loop) in loops
        )
        if by_chain or any(arg.number in inside for arg in operands(node)):
            inside.add(node.number)
    return frozenset(inside)


def body(nodes: Iterable[Node], kept: Iterable[Node]) -> Body:
    """Return nodes to emit; `kept` are read by others than nodes."""
    nodes = tuple(nodes)
    level = {arg.number: 0 for node in nodes for arg in operands(node)}
    level.update((node.number, 1) for node in nodes)
    fused = fusions(nodes, level, {node.number for node in kept})
    gone = {fusion.product for fusion in fused.values()}
    return Body(tuple(node for node in nodes if node.number not in gone), fused)


@lru_cache(maxsize=16)  # asked for to propose schedules, and to rank them
def of_all(loop: Loop, *, ahead: bool) -> Outline:
    """Sort a loop's nodes where all of its results are wanted."""
    places = range(len(loop.nexts) + len(loop.stacked))
    return outline(loop, places, ahead=ahead)


def outline(loop: Loop, places: Iterable[int], *, ahead: bool) -> Outline:
    """Sort a loop's nodes; `places` are the results that are wanted.

    `ahead`: what needs no carry may be computed for several iterations at once.
    """
    count = len(loop.nexts)
    stacked = [loop.stacked[place - count] for place in places if place >= count]
    roots = [*loop.nexts, *stacked]
    inside = {node.number: node for node in loop.nodes}
    kept = _kept(loop, roots, inside) if ahead else ()
    numbers = {node.number for node in kept}
    each = _needed(roots, inside, stop=numbers)
    ends = [] if loop.condition is None else [loop.condition]
    return Outline(
        body(_needed(kept, inside), kept),
        kept,
        body([node for node in each if node.number not in numbers], roots),
        body(_needed(ends, inside), ends),
    )


def _needed(
    roots: Iterable[Node], inside: dict[int, Node], stop: Iterable[int] = ()
) -> list[Node]:
    """Return the nodes of a body that roots need, in order, not beyond `stop`."""
    stop = frozenset(stop)
    return closure(
        roots,
        lambda node: () if node.number in stop else operands(node),
        lambda node: node.number in inside,
    )


def _kept(
    loop: Loop, roots: Sequence[Node], inside: dict[int, Node]
) -> tuple[Node, ...]:
    """Return what iterations read of what can be computed ahead and is worth it."""
    possible = {loop.index.number}
    for node in loop.nodes:
        small = prod(node.shape) <= AHEAD_ELEMENTS
        if isinstance(node, _AHEAD) and small and not in_memory(node):
            needs = {arg.number for arg in operands(node) if arg.number in inside}
            reads = {arg.number for arg in operands(node)} & {
                carry.number for carry in loop.carries
            }
            if not reads and needs <= possible:
                possible.add(node.number)
    wanted = {root.number for root in roots}
    for node in _needed(roots, inside):
        if node.number not in possible:
            wanted.update(arg.number for arg in operands(node))
    ready = [inside[number] for number in sorted(wanted & possible & set(inside))]
    return tuple(
        node for node in ready if _cost(_needed([node], inside)) >= AHEAD_OPERATIONS
    )


def _cost(nodes: Iterable[Node]) -> int:
    """Count the operations of nodes, element by element."""
    return sum(
        OPERATIONS[node.op].cost.count * prod(node.shape)
        for node in nodes
        if isinstance(node, Apply)
    )
