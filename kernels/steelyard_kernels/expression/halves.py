"""Sums of halves that a GPU adds as halves: Program -> Program, the same outputs.

Twice the bits of a half and two more are in a float32: a sum or a difference of two halves
in float32 that is rounded to one is theirs (Figueroa, "When is double rounding innocuous?",
1995). A CPU adds in float32 anyway, and has arrays that rows share widened once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from steelyard_kernels.dtypes import HALVES, float32
from steelyard_kernels.expression.expr import Apply, Broadcast, Cast, Node, Program
from steelyard_kernels.expression.graph import Graph
from steelyard_kernels.expression.rewrite import rewritten
from steelyard_kernels.expression.structure import everywhere, users

SUMS: Final = frozenset({("add", float32), ("subtract", float32)})


@lru_cache(maxsize=2)  # a build asks for it to choose a schedule, then to lower
def in_halves(program: Program) -> Program:
    """Return the program with such sums of halves; itself if it has none.

    A sum that is read besides is kept in float32 anyway.
    """
    every = tuple(everywhere(program.nodes))
    used = users(every)
    found = {node.number: halves for node in every if (halves := _halves(node, used))}

    def rule(graph: Graph, node: Node, made: Mapping[int, Node]) -> Node | None:
        if node.number not in found:
            return None
        assert isinstance(node, Cast)
        assert isinstance(node.arg, Apply)
        terms = zip(found[node.number], node.arg.args, strict=True)
        args = [graph.broadcast(made[half.number], at.shape) for half, at in terms]
        return graph.apply(node.arg.op, *args)

    return rewritten(program, rule) if found else program


def _halves(node: Node, used: Mapping[int, int]) -> list[Node]:
    """Return the halves whose float32 sum or difference a node alone reads and rounds."""
    if not isinstance(node, Cast) or node.dtype not in HALVES:
        return []
    total = node.arg
    if not isinstance(total, Apply) or (total.op, total.dtype) not in SUMS:
        return []
    below = [*map(_below, total.args)]
    halves = [each.arg for each in below if isinstance(each, Cast)]
    alike = [each.dtype for each in halves] == [node.dtype] * len(below)
    return halves if alike and used[total.number] == 1 else []


def _below(node: Node) -> Node:
    """Return a node, or what is broadcast to it."""
    while isinstance(node, Broadcast):
        node = node.arg
    return node
