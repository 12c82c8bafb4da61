"""Redundant casts, proved redundant and removed: Program -> Program, the same outputs.

For every node there are the types that hold each of its values exactly: an input's are
its own and the wider ones; a negation, a choice, a maximum or a broadcast has those of
what it chooses from; a constant is looked at. A cast to such a type changes no value,
so that a cast behind it may start before it:

    f32(f16(x))  is  x             where x is f32(h), or a maximum of such, for a half h
    f16(f32(y))  is  y             where y is f16(x): a second rounding to the same type
    f32(f64(h))  is  f32(h)        for a half h

Before that, carries of loops that count or that nobody reads are gone: see `carries`. A
row at a computed index is, where there are no loops, elements taken there as any others.
A rounding that changes values stays, as the one between `bias_layernorm`'s two biases.
NaN and -0.0 pass through all of it as they were.

Sums of halves that a GPU adds as halves are such, see `in_halves`. Twice the bits of a
half and two more are in a float32: a sum or a difference of two halves in float32 that is
rounded to one is theirs (Figueroa, "When is double rounding innocuous?", 1995). A CPU
adds in float32 anyway, and has arrays that rows share widened once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, reduce
from operator import and_
from typing import Final

from steelyard_kernels import dtypes
from steelyard_kernels.dtypes import HALVES, bool_, float32, widens
from steelyard_kernels.expression import expr
from steelyard_kernels.expression.carries import lean
from steelyard_kernels.expression.expr import Node, Program
from steelyard_kernels.expression.graph import Graph
from steelyard_kernels.expression.rewrite import rewritten
from steelyard_kernels.expression.rounding import round_constant
from steelyard_kernels.expression.rows import gathered_row
from steelyard_kernels.expression.structure import everywhere, users
from steelyard_kernels.monoids import MONOIDS

_BIT: Final = {dtype: 1 << place for place, dtype in enumerate(dtypes.ALL)}
_HOLDS: Final = {  # a dtype's values are exact in these, as a set of bits
    dtype: sum(
        _BIT[other]
        for other in dtypes.ALL
        if other is dtype or dtype is bool_ or widens(dtype, other)
    )
    for dtype in dtypes.ALL
}
_SIGNS: Final = frozenset({"negative", "abs"})
_EXTREMA: Final = frozenset({"maximum", "minimum"})
_MOVES: Final = (
    expr.Broadcast,
    expr.Reshape,
    expr.View,
    expr.Gather,
    expr.Row,
    expr.Chain,
    expr.Chains,
)


def simplify(program: Program) -> Program:
    """Return the program without redundant casts and carries; itself if it has none."""
    program = _without_rows(lean(program))
    casts = [node for node in everywhere(program.nodes) if isinstance(node, expr.Cast)]
    behind = [node for node in casts if isinstance(_below(node), expr.Cast)]
    if not behind:
        return program  # nothing to prove: most programs
    exact = _exact_casts(program)
    if not any(_below(node).number in exact for node in behind):
        return program
    return _rebuilt(program, exact)


def _without_rows(program: Program) -> Program:
    """Return a program without loops with its rows gathered; itself if it has none."""
    rows = any(isinstance(node, expr.Row) for node in program.nodes)
    if not rows or program.chains or expr.loops(program.nodes):
        return program

    def rule(graph: Graph, node: Node, made: Mapping[int, Node]) -> Node | None:
        if not isinstance(node, expr.Row):
            return None
        return gathered_row(graph, *[made[arg.number] for arg in expr.operands(node)])

    return rewritten(program, rule)


def _below(node: Node) -> Node:
    """Return what a cast converts, whatever it was broadcast to in between."""
    (below,) = expr.operands(node)
    while isinstance(below, expr.Broadcast):
        below = below.arg
    return below


def _exact_casts(program: Program) -> set[int]:
    """Return the numbers of the casts that change no value."""
    exact: set[int] = set()
    holds: dict[int, int] = {}  # by node number: the types, as bits
    for node in everywhere(program.nodes):
        if isinstance(node, expr.Constant):
            types = _of_constant(node)
        else:
            types = _HOLDS[node.dtype]
            chosen = [holds[value.number] for value in _chosen(node)]
            if chosen:
                types = reduce(and_, chosen)
        if isinstance(node, expr.Cast):
            if types & _BIT[node.dtype]:
                exact.add(node.number)
            else:
                types = _HOLDS[node.dtype]
        holds[node.number] = types
    return exact


def _chosen(node: Node) -> tuple[Node, ...]:
    """Return the nodes of whose values, or their negatives, a node's are."""
    if isinstance(node, (*_MOVES, expr.Cast)):
        return (node.arg,)
    if isinstance(node, expr.Reduce):
        return (node.arg,) if MONOIDS[node.op].chooses else ()
    if not isinstance(node, expr.Apply):
        return ()
    if node.op == "where":
        return node.args[1:]
    signed = node.op in _SIGNS and node.dtype.kind == "float"  # integers may wrap
    return node.args if signed or node.op in _EXTREMA else ()


def _of_constant(node: expr.Constant) -> int:
    """Return the types that hold a constant: bits, so that -0.0 is no integer's."""
    kinds = {"float"} if node.dtype.kind == "float" else {"int", "float"}
    types = _HOLDS[node.dtype]
    for dtype in dtypes.ALL:
        if dtype.kind in kinds:
            rounded = round_constant(node.value, dtype)
            if rounded == node.value or rounded != rounded:  # noqa: PLR0124 - NaN
                types |= _BIT[dtype]
    return types


def _rebuilt(program: Program, exact: set[int]) -> Program:
    """Make the program again, with every cast started before the exact ones below it."""
    source: dict[int, Node] = {}  # the same values before exact casts, where there are

    def rule(graph: Graph, node: Node, made: Mapping[int, Node]) -> Node | None:
        if not isinstance(node, expr.Cast | expr.Broadcast):
            return None
        arg = node.arg.number
        before = source.get(arg, made[arg])
        if isinstance(node, expr.Cast):
            if node.number in exact:
                source[node.number] = before
            return graph.cast(before, node.dtype)
        new = graph.broadcast(made[arg], node.shape)
        if arg in source:
            source[node.number] = graph.broadcast(before, node.shape)
        return new

    return rewritten(program, rule)


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
        assert isinstance(node, expr.Cast)
        assert isinstance(node.arg, expr.Apply)
        terms = zip(found[node.number], node.arg.args, strict=True)
        args = [graph.broadcast(made[half.number], at.shape) for half, at in terms]
        return graph.apply(node.arg.op, *args)

    return rewritten(program, rule) if found else program


def _halves(node: Node, used: Mapping[int, int]) -> list[Node]:
    """Return the halves whose float32 sum or difference a node alone reads and rounds."""
    if not isinstance(node, expr.Cast) or node.dtype not in HALVES:
        return []
    total = node.arg
    if not isinstance(total, expr.Apply) or (total.op, total.dtype) not in SUMS:
        return []
    below = [*map(_unspread, total.args)]
    halves = [each.arg for each in below if isinstance(each, expr.Cast)]
    alike = [each.dtype for each in halves] == [node.dtype] * len(below)
    return halves if alike and used[total.number] == 1 else []


def _unspread(node: Node) -> Node:
    """Return a node, or what is broadcast to it."""
    while isinstance(node, expr.Broadcast):
        node = node.arg
    return node
