"""Redundant casts, proved redundant and removed: Program -> Program, the same outputs.

For every node there are the types that hold each of its values exactly: an input's are
its own and the wider ones; a negation, a choice, a maximum or a broadcast has those of
what it chooses from; a constant is looked at. A cast to such a type changes no value,
so that a cast behind it may start before it:

    f32(f16(x))  is  x             where x is f32(h), or a maximum of such, for a half h
    f16(f32(y))  is  y             where y is f16(x): a second rounding to the same type
    f32(f64(h))  is  f32(h)        for a half h

Before that, carries of loops that count or that nobody reads are gone: a carry that grows
by the same integer in every iteration is a product of the index,

    c[i + 1] = c[i] + s   is   c[i] = c[0] + i * s

so that what depends on it, a counter's random numbers, waits for no iteration before.
A carry that neither a result nor another carry needs goes, and so does what is stacked
for nobody. Integers wrap alike both ways. A row at a computed index is, where there are
no loops, elements taken there as any others. Bits of a float, read as that, are it.
A rounding that changes values stays, as the one between `bias_layernorm`'s two biases.
NaN and -0.0 pass through all of it as they were.

Sums of halves that a GPU adds as halves are such, see `in_halves`. Twice the bits of a
half and two more are in a float32: a sum or a difference of two halves in float32 that is
rounded to one is theirs (Figueroa, "When is double rounding innocuous?", 1995). A CPU
adds in float32 anyway, and has arrays that rows share widened once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, reduce
from operator import and_
from typing import Final

from msgspec import Struct

from steelyard_kernels import dtypes
from steelyard_kernels.dtypes import HALVES, bool_, float32, widens
from steelyard_kernels.expression import expr
from steelyard_kernels.expression.expr import Node, Program
from steelyard_kernels.expression.graph import Graph
from steelyard_kernels.expression.rewrite import Again, remade, rewritten
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
    program = _without_bits(_without_rows(lean(program)))
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


def _without_bits(program: Program) -> Program:
    """Return a program without bits read as what they are of: stopped gradients."""
    whole = {  # what nodes are, by number
        node.number: node.args[0].args[0]
        for node in everywhere(program.nodes)
        if isinstance(node, expr.Apply)
        and node.op == "bitcast"
        and isinstance(node.args[0], expr.Apply)
        and node.args[0].op == "bitcast"
        and node.args[0].args[0].dtype is node.dtype
    }

    def rule(_: Graph, node: Node, made: Mapping[int, Node]) -> Node | None:
        return made[whole[node.number].number] if node.number in whole else None

    return rewritten(program, rule) if whole else program


def _below(node: Node) -> Node:
    """Return what a cast converts, whatever it was broadcast to in between."""
    (arg,) = expr.operands(node)
    return _unspread(arg)


def _unspread(node: Node) -> Node:
    """Return a node, or what is broadcast to it."""
    while isinstance(node, expr.Broadcast):
        node = node.arg
    return node


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


def lean(program: Program) -> Program:
    """Return the program without such carries; itself if it has none."""
    while (less := _leaner(program)) is not program:  # loops in loops: once for each
        program = less
    return program


def _leaner(program: Program) -> Program:
    """Return the program without what is seen at once to be needless."""
    if not expr.loops(program.nodes):
        return program
    used: dict[int, set[int]] = {}
    found = {}
    for node in everywhere(program.nodes):
        if isinstance(node, expr.Result):
            used.setdefault(id(node.loop), set()).add(node.place)
            found[id(node.loop)] = node.loop
    live = {key: _live(loop, used[key]) for key, loop in found.items()}
    if not any(_changes(loop, live[key]) for key, loop in found.items()):
        return program
    return remade(program, _Lean(Graph(program.name), live))


class _Live(Struct, frozen=True):
    """What of a loop is needed: places of carries, of stacked results, and nodes.

    `steps` are the carries that count, by place, with what each iteration adds.
    """

    carries: tuple[int, ...]
    stacked: tuple[int, ...]
    nodes: frozenset[int]
    steps: Mapping[int, tuple[str, Node]]


def _live(loop: expr.Loop, used: set[int]) -> _Live:
    count = len(loop.nexts)
    steps = _steps(loop)
    carried = {carry.number: place for place, carry in enumerate(loop.carries)}
    inside = {node.number for node in loop.nodes}
    stacked = sorted(place for place in used if place >= count)
    carries = {place for place in used if place < count}
    pending = [loop.nexts[place] for place in carries]
    pending += [loop.stacked[place - count] for place in stacked]
    pending += [] if loop.condition is None else [loop.condition]
    nodes: set[int] = set()
    while pending:
        node = pending.pop()
        place = carried.get(node.number)
        if place is not None and place not in steps and place not in carries:
            carries.add(place)
            pending.append(loop.nexts[place])
        elif node.number in inside and node.number not in nodes:
            nodes.add(node.number)
            pending.extend(expr.operands(node))
    return _Live(tuple(sorted(carries)), tuple(stacked), frozenset(nodes), steps)


def _steps(loop: expr.Loop) -> dict[int, tuple[str, Node]]:
    """Return what the carries that count are changed by, and how, by their places."""
    inside = {node.number for node in (*loop.nodes, *loop.carries, loop.index)}
    found = {}
    for place, (carry, new) in enumerate(zip(loop.carries, loop.nexts, strict=True)):
        if carry.dtype.kind != "int" or not isinstance(new, expr.Apply):
            continue
        if new.op == "add" and new.args[1] is carry:
            step = new.args[0]
        elif new.op in {"add", "subtract"} and new.args[0] is carry:
            step = new.args[1]
        else:
            continue
        if step.number not in inside and step.shape == carry.shape == ():
            found[place] = (new.op, step)
    return found


def _changes(loop: expr.Loop, live: _Live) -> bool:
    every = len(live.carries) + len(live.stacked)
    return bool(live.steps) or every < len(loop.nexts) + len(loop.stacked)


class _Lean(Again):
    """Makes loops again of what is live of them."""

    def __init__(self, graph: Graph, live: Mapping[int, _Live]) -> None:
        super().__init__(graph, lambda *_: None)
        self._live = live

    def results(self, loop: expr.Loop) -> Sequence[Node]:
        """Make a loop's live part; what is not live stands for nothing."""
        live, made = self._live[id(loop)], self.made
        inits = [made[loop.inits[place].number] for place in live.carries]
        carries, index = self.graph.parameters(inits)
        for place, carry in zip(live.carries, carries, strict=True):
            made[loop.carries[place].number] = carry
        made[loop.index.number] = index
        for place, (op, step) in live.steps.items():
            init = made[loop.inits[place].number]
            counted = self._counted(op, init, index, made[step.number])
            made[loop.carries[place].number] = counted
        self.add(node for node in loop.nodes if node.number in live.nodes)
        count = len(loop.nexts)
        nexts = [loop.nexts[place] for place in live.carries]
        stacked = [loop.stacked[place - count] for place in live.stacked]
        results = self.loop(loop, inits, (carries, index), nexts, stacked)
        places = (*live.carries, *live.stacked)
        found = dict(zip(places, results, strict=True))
        return [found.get(p, results[0]) for p in range(count + len(loop.stacked))]

    def _counted(self, op: str, init: Node, index: Node, step: Node) -> Node:
        """Return a counting carry as an expression of the index."""
        graph = self.graph
        taken = graph.cast(index, init.dtype)
        if not (isinstance(step, expr.Constant) and step.value == 1):
            taken = graph.apply("multiply", taken, step)
        if op == "add" and isinstance(init, expr.Constant) and init.value == 0:
            return taken
        return graph.apply(op, init, taken)
