"""Loops' carries that count, and those that nobody reads: Program -> Program.

A carry that grows by the same integer in every iteration is a product of the index:

    c[i + 1] = c[i] + s   is   c[i] = c[0] + i * s

so that what depends on it, a counter's random numbers, waits for no iteration before.
A carry that neither a result nor another carry needs goes, and so does what is stacked
for nobody. Integers wrap alike both ways.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from steelyard_kernels.expression import expr
from steelyard_kernels.expression.expr import Node, Program
from steelyard_kernels.expression.graph import Graph
from steelyard_kernels.expression.rewrite import Again, remade
from steelyard_kernels.expression.structure import everywhere


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


@dataclass(frozen=True, slots=True)
class _Live:
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
