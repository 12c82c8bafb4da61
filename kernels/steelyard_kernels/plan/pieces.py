"""A part of a program as a program of its own: some of its values, of others in memory."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet

from msgspec import Struct, field

from steelyard_kernels.expression import expr
from steelyard_kernels.expression.expr import Node, Program
from steelyard_kernels.expression.graph import Graph
from steelyard_kernels.expression.rewrite import Again
from steelyard_kernels.expression.structure import in_words, reachable, word
from steelyard_kernels.plan.cuts import MOVED, Needs


class Group(Struct, eq=False):
    """Values that one launch stores, the reductions for them, and what it reads.

    What others store it may compute `again`, by their numbers.
    """

    values: list[Node]
    needs: Needs
    again: frozenset[int] = frozenset()
    reads: list[Node] = field(default_factory=list)
    behind: list[Group] = field(default_factory=list)  # what reads before it overwrites
    program: Program | None = None  # once it was asked for
    reason: str = ""  # why it is a launch, once it was asked for

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
        number = node.number
        if number in seen:
            continue
        seen.add(number)
        stored = number in memory and number not in own
        if not (stored or isinstance(node, expr.Input)):
            pending += expr.operands(node)
            yield node


class _Part(Struct, eq=False):
    """What computes some values, operands first, and what that reads, in order."""

    nodes: list[Node]
    read: list[Node]
    computed: set[int]  # which no memory holds, beside the values
    stored: set[int]  # which memory holds
    made: dict[tuple[int | None, ...], Program] = field(default_factory=dict)


def _part(values: Sequence[Node], memory: AbstractSet[int]) -> _Part:
    """Find what computes some values, in the order in which these need nodes.

    So equal parts of a program are equal.
    """
    pending = [*values][::-1]
    own = {node.number for node in pending}
    found: dict[int, Node] = {}
    read: dict[int, Node] = {}
    opened: dict[int, tuple[Node, ...]] = {}  # with what they read
    while pending:
        node = pending[-1]
        number = node.number
        if number in opened:
            found[number] = pending.pop()
        elif isinstance(node, expr.Input) or (number in memory and number not in own):
            read[number] = pending.pop()
        else:
            opened[number] = expr.operands(node)
            pending += [n for n in opened[number][::-1] if n.number not in opened]
    nodes = list(found.values())
    first = {arg.number: None for number in found for arg in opened[number]}
    order = dict.fromkeys([*[n for n in first if n in read], *sorted(read)])
    given = {number for number, node in read.items() if isinstance(node, expr.Input)}
    every = [read[number] for number in order]
    return _Part(nodes, every, found.keys() - own, read.keys() - given)


class Pieces:
    """Parts of a program as programs: those that say the same are one, made once."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._made: dict[object, Program] = {}
        self._parts: dict[tuple[int, ...], list[_Part]] = {}  # by values' numbers
        self._words: dict[object, int] = {}  # which nodes say, each by its place
        self._said: dict[int, tuple[int, Sequence[int]]] = {}  # with operands' numbers

    def inside(
        self, values: Sequence[Node], memory: AbstractSet[int]
    ) -> tuple[list[Node], list[Node]]:
        """Return what computes some values, operands first, and what that reads, in order.

        `memory` are the numbers of what other launches store; the values are computed.
        """
        part = self._part(values, memory)
        return part.nodes, part.read

    def of(
        self,
        values: Sequence[Node],
        memory: AbstractSet[int],
        updates: Sequence[int | None] = (),
    ) -> tuple[Program, list[Node]]:
        """Return a program of some values, and the nodes that are its inputs, in order.

        `updates` are the numbers of the inputs that values overwrite.
        """
        part = self._part(values, memory)
        overwritten = tuple(updates) or (None,) * len(values)
        if overwritten not in part.made:
            part.made[overwritten] = self._program(values, part, overwritten)
        return part.made[overwritten], part.read

    def _part(self, values: Sequence[Node], memory: AbstractSet[int]) -> _Part:
        """Return what was found before where memory holds as much of it."""
        known = self._parts.setdefault(tuple([node.number for node in values]), [])
        for part in known:
            if part.stored <= memory and memory.isdisjoint(part.computed):
                return part
        known.append(_part(values, memory))
        return known[-1]

    def _program(
        self, values: Sequence[Node], part: _Part, updates: Sequence[int | None]
    ) -> Program:
        """Return a program of a part, the one of an equal part if there is one."""
        position = {node.number: place for place, node in enumerate(part.read)}
        inputs = tuple((node.shape, node.dtype) for node in part.read)
        into = tuple(None if n is None else position[n] for n in updates)
        if any(isinstance(node, expr.Result) for node in part.nodes):
            said: tuple[object, ...] = tuple(in_words(part.nodes, position))
        else:
            said = self._say(part.nodes, position)
        key = inputs, said, tuple(position[node.number] for node in values), into
        if key not in self._made:
            self._made[key] = _program(self.name, values, part.nodes, part.read, into)
        return self._made[key]

    def _say(
        self, nodes: Iterable[Node], position: dict[int, int]
    ) -> tuple[tuple[int, ...], ...]:
        """Return all that nodes say but their numbers, which `position` counts from 0."""
        found = []
        for node in nodes:
            said = self._said.get(node.number)
            if said is None:
                place = self._words.setdefault(word(node), len(self._words))
                said = place, [arg.number for arg in expr.operands(node)]
                self._said[node.number] = said
            place, args = said
            position[node.number] = len(position)
            found.append((place, *map(position.__getitem__, args)))
        return tuple(found)


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
        expr.Output(f"y{k}", again.made[node.number], into)
        for k, (node, into) in enumerate(zip(values, updates, strict=True))
    )
    found = reachable(output.value for output in outputs)
    scalars = tuple(node for node in found if isinstance(node, expr.Scalar))
    return Program(name, tuple(inputs), scalars, outputs, found)


def copying(name: str, value: Node) -> Program:
    """Return a program that copies an array like a value."""
    node = Graph(name).input("x0", 0, value.shape, value.dtype)
    return Program(name, (node,), (), (expr.Output("y0", node, None),), (node,))
