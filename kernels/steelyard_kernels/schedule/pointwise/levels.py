"""How often each value of a pointwise program is computed: once, by row, by element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from steelyard_kernels.expression.expr import Node, Program, Reshape, operands
from steelyard_kernels.schedule.pointwise.operands import read, source, stored
from steelyard_kernels.schedule.space import Space
from steelyard_kernels.schedule.values import Fused, fusions

ONCE: Final = 0
ROW: Final = 1
ELEMENT: Final = 2


@dataclass(frozen=True, slots=True)
class Levels:
    """The nodes to compute at each level, in order, and what they need to know.

    `operands` are the operands' places in the space by node number, `fused` the sums
    that take up a product, `wanted` the numbers of nodes that are read for every
    element.
    """

    at: tuple[tuple[Node, ...], tuple[Node, ...], tuple[Node, ...]]
    operands: dict[int, int]
    fused: Fused
    wanted: frozenset[int]


def levels(program: Program, space: Space) -> Levels:
    """Return the levels of a program in its space."""
    places = {node.number: place for place, node in enumerate(read(program))}
    level = _level(program, space, places)
    kept = {stored(output).number for output in program.outputs}
    fused = fusions(program.nodes, level, kept)
    gone = {fusion.product for fusion in fused.values()}
    gone |= {n.number for n in program.nodes if _beside(n) and n.number not in places}
    once, row, element = (
        tuple(
            node
            for node in program.nodes
            if level[node.number] == each and node.number not in gone
        )
        for each in (ONCE, ROW, ELEMENT)
    )
    wanted = kept | {arg.number for node in element for arg in operands(node)}
    for node in element:
        fusion = fused.get(node.number)
        if fusion:
            wanted |= {fusion.a.number, fusion.b.number}
    return Levels((once, row, element), places, fused, frozenset(wanted))


def _beside(node: Node) -> bool:
    """Say whether a node is only on the way to an operand or to an output."""
    return isinstance(node, Reshape) or source(node) is not None


def _level(program: Program, space: Space, places: dict[int, int]) -> dict[int, int]:
    level: dict[int, int] = {}
    for node in program.nodes:
        if node.number in places:
            strides = space.strides[places[node.number]]
            across = ROW if any(strides) else ONCE
            level[node.number] = ELEMENT if strides[-1] else across
        else:
            below = [level[arg.number] for arg in operands(node)]
            level[node.number] = max(below, default=ONCE)
    return level
