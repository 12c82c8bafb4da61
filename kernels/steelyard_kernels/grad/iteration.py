"""One iteration walked back, in terms of its loop's own carries and index."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from msgspec import Struct, field

from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression import expr
from steelyard_kernels.expression.bodies import body, linear
from steelyard_kernels.expression.expr import Node
from steelyard_kernels.expression.graph import Graph
from steelyard_kernels.expression.rows import row
from steelyard_kernels.grad.reverse import Replaced, Reverse, varied


class Iteration(Struct, frozen=True):
    """What an iteration passes back of the cotangents of what it computed.

    `after` stand for the cotangents of the carries at `places` once it is over, and
    `before` are those as it began. `sums` are the cotangents of what every iteration
    reads, to be added up, `rows` those of the row that it reads of an array, as many
    rows as there are iterations. `needed` are the carries that all of these read.
    """

    places: tuple[int, ...]
    after: tuple[expr.Input, ...]
    before: tuple[Node, ...]
    sums: tuple[tuple[Node, Node], ...]
    rows: tuple[tuple[Node, Node], ...]
    needed: tuple[expr.Parameter, ...]
    replaced: Replaced

    @property
    def roots(self) -> list[Node]:
        """All that a backward iteration computes, in the order of the fields."""
        return [*self.before, *(n for _, n in self.sums), *(n for _, n in self.rows)]


def mirrored(graph: Graph, length: int | Node, index: Node) -> Node:
    """Return length - 1 - index."""
    assert isinstance(length, int)
    return graph.apply("subtract", graph.constant(length - 1, index.dtype), index)


class Body(Struct):
    """A loop's body, given which results have cotangents.

    `asked` are the nodes outside of the loop that are to have one.
    """

    reverse: Reverse
    loop: expr.Loop
    bars: Sequence[Node | None]
    asked: AbstractSet[int]
    _after: dict[int, expr.Input] = field(default_factory=dict)

    def passed(self) -> Iteration:
        """Return what an iteration passes back.

        It is that once no more carries turn out to have a cotangent.
        """
        loop = self.loop
        carries = self._varied_carries()
        free = [node for node in loop.free if node.number in self.asked]
        rows = self._rows(free)
        wanted = [*(loop.carries[place] for place in carries), *free, *rows]
        live = [place for place in carries if self.bars[place] is not None]
        while True:
            roots, seeds = self._seeded(live)
            adjoint = self.reverse.adjoint(roots, seeds, wanted)
            found = adjoint.cotangents
            grown = [
                place
                for place, bar in zip(carries, found, strict=False)
                if bar is not None or place in live
            ]
            if grown == live:
                break
            live = grown
        of = {n.number: bar for n, bar in zip(wanted, found, strict=True)}
        graph, changed = self.reverse.graph, [loop.carries[place] for place in live]
        before = tuple(zeros(graph, each, of[each.number]) for each in changed)
        sums = _reached((node, of[node.number]) for node in free)
        read = _reached((row.arg, of[row.number]) for row in rows)
        after = tuple(self._after[place] for place in live)
        roots = [*before, *(bar for _, bar in sums), *(bar for _, bar in read)]
        needed = self._needed(roots)
        return Iteration(
            tuple(live), after, before, sums, read, needed, adjoint.replaced
        )

    def _varied_carries(self) -> list[int]:
        """Return the places of the carries that change smoothly with what is asked."""
        loop = self.loop
        outside = {node.number for node in loop.free if node.number in self.asked}
        places = [
            place for place, init in enumerate(loop.inits) if init.number in self.asked
        ]
        while True:
            leaves = outside | {loop.carries[place].number for place in places}
            changing = varied(loop.nodes, leaves)
            grown = [
                place
                for place, node in enumerate(loop.nexts)
                if node.number in changing or place in places
            ]
            if grown == places:
                return places
            places = grown

    def _rows(self, free: Sequence[Node]) -> list[expr.Row]:
        """Return the rows that iterations read at the place where they stack."""
        loop = self.loop
        assert isinstance(loop.length, int)
        place = (-1, loop.length - 1) if loop.reverse else (1, 0)
        arrays = {node.number for node in free if node.shape[:1] == (loop.length,)}
        return [
            node
            for node in loop.nodes
            if isinstance(node, expr.Row)
            and node.arg.number in arrays
            and linear(node.index, loop) == place
        ]

    def _seeded(self, live: Sequence[int]) -> tuple[list[Node], list[Node]]:
        """Return what is walked back from, and the cotangents of it."""
        graph, loop = self.reverse.graph, self.loop
        for place in live:
            if place not in self._after:
                node = loop.nexts[place]
                stand_in = graph.input("cotangent", -1, node.shape, node.dtype)
                self._after[place] = stand_in
        roots = [loop.nexts[place] for place in live]
        seeds: list[Node] = [self._after[place] for place in live]
        here: Node = loop.index  # where an iteration stacks
        here = mirrored(graph, loop.length, here) if loop.reverse else here
        pairs = zip(loop.stacked, self.bars[len(loop.nexts) :], strict=True)
        for node, bar in pairs:
            if bar is not None:
                roots.append(node)
                seeds.append(self._row(bar, here))
        return roots, seeds

    def _row(self, bar: Node, place: Node) -> Node:
        graph = self.reverse.graph
        try:
            return row(graph, bar, place)
        except KernelError:
            raise KernelError(
                f"{graph.kernel}: the cotangent of what a scan stacked, of shape "
                f"{bar.shape}, cannot be computed row by row; compute what needs whole "
                "columns of it in the scan's carry."
            ) from None

    def _needed(self, roots: Sequence[Node]) -> tuple[expr.Parameter, ...]:
        """Return the carries that the roots read."""
        loop = self.loop
        nodes, _ = body(roots, {node.number for node in (*loop.carries, loop.index)})
        read = {arg.number for node in nodes for arg in expr.operands(node)}
        read |= {root.number for root in roots}
        return tuple(carry for carry in loop.carries if carry.number in read)


def zeros(graph: Graph, like: Node, bar: Node | None = None) -> Node:
    """Return a node's cotangent: zeros of its shape and dtype where there is none."""
    if bar is not None:
        return bar
    return graph.broadcast(graph.constant(0, like.dtype), like.shape)


def _reached(
    pairs: Iterable[tuple[Node, Node | None]],
) -> tuple[tuple[Node, Node], ...]:
    return tuple((node, bar) for node, bar in pairs if bar is not None)
