"""A loop's body as programs of their own: what launches compute in each of its turns.

Carries, arrays and rows of arrays are their inputs, the turn is a runtime scalar. A new
carry overwrites the old one where launches can, or changes places with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import count
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from steelyard_kernels.expression import expr
from steelyard_kernels.expression.bodies import linear
from steelyard_kernels.expression.expr import Node, Program
from steelyard_kernels.expression.graph import Graph
from steelyard_kernels.expression.indices import axis
from steelyard_kernels.expression.rewrite import Again
from steelyard_kernels.expression.rows import gathered_row
from steelyard_kernels.expression.structure import closure, everywhere, reachable
from steelyard_kernels.nest.carried.tensor import FUNCTION
from steelyard_kernels.ops import OPERATIONS
from steelyard_kernels.plan.cuts import nbytes, spreads
from steelyard_kernels.plan.launches import Launch, Plan, roots

Planner: TypeAlias = Callable[[Program], Plan]


class Read(Struct, frozen=True):
    """What a turn reads: a carry, an array, or a row of one.

    A row begins `first` bytes behind its array's begin, and `step` more in each turn.
    """

    node: Node
    is_row: bool = False
    first: int = 0
    step: int = 0


class BodyPart(Struct, frozen=True):
    """Launches of a body, what their inputs are, and what places of results they give.

    Buffers of `swapped` have a new carry at the end, and change places with the old one.
    """

    plan: Plan
    reads: tuple[Read, ...]
    gives: tuple[int, ...]
    swapped: Mapping[int, int]


class Body:
    """A loop whose turns are launches: which, and what must lie in memory before."""

    def __init__(self, loop: expr.Loop, name: str, planner: Planner) -> None:
        self.loop, self.name, self._planner = loop, name, planner
        own = [*loop.carries, loop.index, *loop.nodes]
        self._inside = {node.number for node in own}
        every = [node for node in everywhere(loop.nodes) if isinstance(node, expr.Row)]
        self._rows = {_in_memory(node.arg)[0].number for node in every}

    @cached_property
    def _every(self) -> list[Node]:
        """All that turns compute, and what they read."""
        loop = self.loop
        ends = [] if loop.condition is None else [loop.condition]
        return self._needed([*loop.nexts, *loop.stacked, *ends])

    @property
    def reads(self) -> set[Node]:
        """The arrays that turns read, in whole or in part."""
        parts = [each for each in (self.turn, self.condition) if each is not None]
        return {read.node for part in parts for read in part.reads}

    @cached_property
    def memory(self) -> tuple[Node, ...]:
        """The arrays and values that lie in memory before the first turn."""
        found = [self._read(node).node for node in self._every if self._is_read(node)]
        found += self.loop.inits
        if isinstance(self.length, Node) and not isinstance(self.length, expr.Scalar):
            found.append(self.length)
        kept = [node for node in found if not isinstance(node, expr.Parameter)]
        return tuple(dict.fromkeys(kept))

    @property
    def stored(self) -> tuple[Node, ...]:
        """Those of them that are computed before."""
        kinds = (expr.Input, expr.Result)
        return tuple([node for node in self.memory if not isinstance(node, kinds)])

    @cached_property
    def length(self) -> int | Node:
        """How many turns there are: none for less than 0."""
        node = self.loop.length
        while isinstance(node, expr.Apply) and node.op in {"maximum", "subtract"}:
            *_, last = node.args
            if not (isinstance(last, expr.Constant) and last.value == 0):
                break
            node = node.args[0]
        return node

    @cached_property
    def index(self) -> str:
        """The name of the scalar that counts turns."""
        every = everywhere(self._every)
        taken = {node.name for node in every if isinstance(node, expr.Scalar)}
        return next(each for n in count() if (each := f"turn{n}") not in taken)

    @cached_property
    def turn(self) -> BodyPart | None:
        """The launches of a turn; None where it changes nothing."""
        loop = self.loop
        pairs = zip(loop.carries, loop.nexts, strict=True)
        values = {k: new for k, (old, new) in enumerate(pairs) if old is not new}
        values |= dict(enumerate(loop.stacked, len(loop.nexts)))
        return self._part(values) if values else None

    @cached_property
    def condition(self) -> BodyPart | None:
        """The launches that say whether there is another turn."""
        found = self.loop.condition
        return None if found is None else self._part({-1: found})

    def _part(self, values: Mapping[int, Node]) -> BodyPart:
        graph = Graph(self.name)
        needed = self._needed(values.values())
        reads = [node for node in needed if self._is_read(node)]
        again = Again(graph, self._gathered)
        inputs = []
        for place, node in enumerate(reads):
            inputs.append(graph.input(f"x{place}", place, node.shape, node.dtype))
            again.made[node.number] = inputs[-1]
        again.made[self.loop.index.number] = graph.scalar(
            self.index, self.loop.index.dtype
        )
        again.add([node for node in needed if not self._is_read(node)])
        carries = {node.number: place for place, node in enumerate(reads)}
        outputs = []
        for number, (place, value) in enumerate(values.items()):
            carried = 0 <= place < len(self.loop.nexts)
            old = self.loop.carries[place].number if carried else -1
            made = again.made[value.number]
            outputs.append(expr.Output(f"y{number}", made, carries.get(old)))
        nodes = reachable(output.value for output in outputs)
        scalars = tuple(node for node in nodes if isinstance(node, expr.Scalar))
        program = Program(self.name, tuple(inputs), scalars, tuple(outputs), nodes)
        plan, swapped = _swapped(self._planner(program), program, tuple(values))
        return BodyPart(plan, tuple(map(self._read, reads)), tuple(values), swapped)

    def _needed(self, roots: Iterable[Node]) -> list[Node]:
        """Return what a turn computes some values of, and what it reads, in order."""
        return closure(
            roots,
            lambda node: () if self._is_read(node) else expr.operands(node),
            lambda node: node is not self.loop.index,
        )

    def _is_read(self, node: Node) -> bool:
        """Say whether a turn finds a value in memory."""
        if node.number in self._inside:
            return isinstance(node, expr.Parameter) or self._row(node) is not None
        if node.number in self._rows or isinstance(node, expr.Input | expr.Result):
            return True
        return not (spreads(node) or _is_counted(node))

    def _read(self, node: Node) -> Read:
        return self._row(node) or Read(node)

    def _row(self, node: Node) -> Read | None:
        """Return the row that a node of the body is of what is in memory."""
        if not isinstance(node, expr.Row):
            return None
        array, scale, first = _in_memory(node.arg)
        place = linear(node.index, self.loop)
        if place is None or array.number in self._inside:
            return None
        size = nbytes(node)
        first, step = (scale * place[1] + first) * size, scale * place[0] * size
        return Read(array, True, first, step)

    def _gathered(
        self, graph: Graph, node: Node, made: Mapping[int, Node]
    ) -> Node | None:
        """Return a row of the body as elements that are taken."""
        if not isinstance(node, expr.Row) or node.number not in self._inside:
            return None
        return gathered_row(graph, made[node.arg.number], made[node.index.number])


def _is_counted(node: Node) -> bool:
    """Say whether a node is little work on numbers of places, constants and scalars."""
    pending, seen, work = [node], set[int](), 0.0
    while pending and work < FUNCTION:
        node = pending.pop()
        if node.number in seen:
            continue
        seen.add(node.number)
        pending += expr.operands(node)
        if isinstance(node, expr.Apply):
            work += OPERATIONS[node.op].cost.cpu
        elif not isinstance(node, COUNTED):
            return False
    return work < FUNCTION


COUNTED: Final = (
    expr.Scalar,
    expr.Constant,
    expr.Arange,
    expr.Cast,
    expr.Broadcast,
    expr.View,
    expr.Reshape,
)


def _in_memory(node: Node) -> tuple[Node, int, int]:
    """Return the array of whose rows a node's are, and which: of its row i i * a + b."""
    scale, first = 1, 0
    while isinstance(node, expr.View) and len(node.shape) == len(node.index):
        start, *others = node.index
        whole = others == [axis(k) for k in range(1, len(node.shape))]
        whole = whole and node.shape[1:] == node.arg.shape[1:]
        step = start.step(0) if start.axes == {0} else None
        if step is None or not whole or node.guards:
            break
        scale, first = scale * step, first * step + start.constant
        node = node.arg
    array = node
    while isinstance(array, expr.Reshape):
        array = array.arg
    return (
        (array if isinstance(array, expr.Input | expr.Result) else node),
        scale,
        first,
    )


def _swapped(
    plan: Plan, program: Program, gives: Sequence[int]
) -> tuple[Plan, dict[int, int]]:
    """Return a plan without copies of new carries, and the buffers that have these.

    They are made at its end, and nothing else is done to where carries are.
    """
    pairs = zip(program.outputs, gives, strict=True)
    every = [root for e in plan.launches for home in e.writes for root in roots(home)]
    carries = {
        output.name: place
        for output, place in pairs
        if output.updates is not None and every.count(output.name) == 1
    }
    found: dict[int, int] = {}
    launches = []
    for launch in plan.launches:
        if not is_copy(launch.program):
            launches.append(launch)
            continue
        kept = []
        for home, into in zip(launch.reads, launch.writes, strict=True):
            place = carries.get(into) if isinstance(into, str) else None
            if isinstance(home, int) and home not in found and place is not None:
                found[home] = place
            else:
                kept.append((home, into))
        if kept:
            reads, writes = zip(*kept, strict=True)
            copies = replace(launch.program, copies=len(kept))
            launches.append(Launch(copies, reads, writes, launch.reason))
    return replace(plan, launches=tuple(launches)), found


def is_copy(program: Program) -> bool:
    """Say whether a program only copies one array."""
    pairs = [(output.value, output.updates) for output in program.outputs]
    return pairs == [(node, None) for node in program.inputs[:1]]
