"""Chains as an axis: a program of many chains becomes one of arrays that have all of them.

What differs between chains has them as its first axis, and what does not is computed
once. A loop goes on until all chains have ended: one that has keeps its carries. So the
products of all chains with one matrix are one product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from msgspec.structs import replace

from steelyard_kernels import dtypes
from steelyard_kernels.errors import CompilerBug
from steelyard_kernels.expression import expr
from steelyard_kernels.expression.expr import Node, Program
from steelyard_kernels.expression.graph import Graph
from steelyard_kernels.expression.indices import Index, axis
from steelyard_kernels.expression.lines import along, segments
from steelyard_kernels.expression.rewrite import Again, remade
from steelyard_kernels.expression.rows import row
from steelyard_kernels.expression.structure import everywhere
from steelyard_kernels.expression.views import gathered, permuted
from steelyard_kernels.monoids import accumulator


def batched(program: Program) -> Program:
    """Return a program of chains as one without, of the same inputs and outputs.

    Memory that its one kernel hides is left out.
    """
    again = _Batched(program)
    shown = tuple([output for output in program.outputs if not output.hidden])
    return remade(replace(program, outputs=shown, chains=0), again)


class _Batched(Again):
    """Makes nodes again; those that differ between chains have these in front."""

    def __init__(self, program: Program) -> None:
        super().__init__(Graph(program.name), self._with_chains)
        self.chains = program.chains
        self.differ, self.apart = _different(program)

    def _with_chains(  # noqa: C901, PLR0912 - one case a production
        self, graph: Graph, node: Node, made: Mapping[int, Node]
    ) -> Node | None:
        if isinstance(node, expr.Chains):
            return self._wide(node.arg)
        if node.number not in self.differ or isinstance(node, expr.Result):
            return None
        shape = self.chains, *node.shape
        match node:
            case expr.Chain():
                return made[node.arg.number]
            case expr.Apply():
                rank = len(node.shape)
                args = [self._aligned(arg, rank) for arg in node.args]
                return graph.apply(node.op, *args)
            case expr.Cast():
                return graph.cast(made[node.arg.number], node.dtype)
            case expr.Broadcast():
                arg = self._aligned(node.arg, len(node.shape))
                return graph.broadcast(arg, shape)
            case expr.Reduce():
                axes, kept = tuple([k + 1 for k in node.axes]), node.keepdims
                return graph.reduce(node.op, made[node.arg.number], axes, keepdims=kept)
            case expr.View():
                places = axis(0), *self._behind(node.index, shape)
                return graph.view(made[node.arg.number], places, shape)
            case expr.Gather():
                which, own = self._wide(node.which), self._behind(node.index, shape)
                return self._taken(node.arg, which, own, node.place)
            case expr.Along():
                arg, back = made[node.arg.number], node.reverse
                return along(graph, node.op, arg, node.axis + 1, reverse=back)
            case expr.Segments():
                arg, starts = self._wide(node.arg), self._wide(node.starts)
                return segments(graph, arg, starts, node.axis + 1)
            case expr.Reshape():
                return graph.reshape(made[node.arg.number], shape)
            case expr.Dot():
                return self._product(node)
            case expr.Row():
                return self._row(node)
            case _:
                raise CompilerBug(f"{graph.kernel}: no chains of a {node}; report it.")

    def _wide(self, node: Node) -> Node:
        """Return a node of every chain, also where it is the same for all."""
        made = self.made[node.number]
        if node.number in self.differ:
            return made
        return self.graph.broadcast(made, (self.chains, *node.shape))

    def _aligned(self, node: Node, rank: int) -> Node:
        """Return a node so that it broadcasts with others of a rank, chain by chain."""
        made = self.made[node.number]
        if node.number not in self.differ:
            return made
        ones = (1,) * (rank - len(node.shape))
        return self.graph.reshape(made, (self.chains, *ones, *node.shape))

    @staticmethod
    def _behind(index: Sequence[Index], shape: expr.Shape) -> list[Index]:
        """Return expressions of a view's axes that stand behind the chains'."""
        places = [axis(k + 1) for k in range(len(shape) - 1)]
        return [each.at(places, shape) for each in index]

    def _taken(
        self, arg: Node, which: Node, index: Sequence[Index], place: int
    ) -> Node:
        """Return elements at places of every chain, of an array of its own or of all."""
        array, own = self.made[arg.number], arg.number in self.differ
        full = (axis(0), *index) if own else tuple(index)
        return gathered(self.graph, array, which, full, place + own)

    def _row(self, node: expr.Row) -> Node:
        if node.index.number not in self.differ:
            rows = self._turned(self.made[node.arg.number])
            return row(self.graph, rows, self.made[node.index.number])
        rank, shape = len(node.shape), (self.chains, *node.shape)
        which = self.graph.broadcast(self._aligned(node.index, rank), shape)
        places = [Index(), *[axis(k + 1) for k in range(rank)]]
        return self._taken(node.arg, which, places, 0)

    def _turned(self, node: Node) -> Node:
        """Return a node with its first two axes exchanged."""
        rest = range(2, len(node.shape))
        return permuted(self.graph, node, (1, 0, *rest))

    def _product(self, node: expr.Dot) -> Node:
        """Return the products of all chains: one, if their right factor is the same."""
        graph, a, b = self.graph, self.made[node.a.number], self.made[node.b.number]
        if node.b.number not in self.differ:
            return graph.dot(a, b)
        inner, columns = b.shape[1:]
        shape = self.chains, *node.shape[:-1], columns, inner
        last = len(shape) - 1
        left = [axis(k) for k in range(last - 1)]
        if node.a.number not in self.differ:
            left = left[1:]
        index = (*left, axis(last)), (axis(0), axis(last), axis(last - 1))
        wide = accumulator(node.dtype)
        views = [
            graph.view(graph.cast(factor, wide), each, shape)
            for factor, each in zip((a, b), index, strict=True)
        ]
        found = graph.reduce(
            "sum", graph.apply("multiply", *views), (last,), keepdims=False
        )
        return graph.cast(found, node.dtype)

    def results(self, loop: expr.Loop) -> Sequence[Node]:
        """Make a loop again, which goes on until all chains have ended."""
        graph, made, apart = self.graph, self.made, id(loop) in self.apart
        pairs = [*zip(loop.carries, loop.inits, strict=True)]
        inits = [self._of(old, init) for old, init in pairs]
        if apart:
            goes_on = graph.constant(value=True, dtype=dtypes.bool_)
            inits.append(graph.broadcast(goes_on, (self.chains,)))
        carries, index = graph.parameters(inits)
        made |= {
            old.number: new for old, new in zip(loop.carries, carries, strict=False)
        }
        made[loop.index.number] = index
        self.add(loop.nodes)
        nexts = [self._of(o, n) for o, n in zip(loop.carries, loop.nexts, strict=True)]
        condition = None if loop.condition is None else made[loop.condition.number]
        if apart:
            live = self._live(loop, carries[-1], index)
            nexts = [
                self._where(live, new, old)
                for new, old in zip(nexts, carries, strict=False)
            ]
            nexts.append(live)
            condition = self._any(live)
        length = loop.length
        if not isinstance(length, int):
            most = made[length.number]
            if length.number in self.differ:
                most = graph.reduce("max", most, (0,), keepdims=False)
            length = most
        found = graph.loop(
            length,
            inits,
            (carries, index),
            nexts,
            [made[node.number] for node in loop.stacked],
            condition=condition,
            unroll=loop.unroll,
            reverse=loop.reverse,
        )
        stacks = zip(loop.stacked, found[len(inits) :], strict=True)
        every = [
            self._turned(rows) if node.number in self.differ else rows
            for node, rows in stacks
        ]
        return [*found[: len(loop.nexts)], *every]

    def _of(self, carry: expr.Parameter, node: Node) -> Node:
        """Return what a carry becomes: of every chain where carries are."""
        wide = carry.number in self.differ
        return self._wide(node) if wide else self.made[node.number]

    def _live(self, loop: expr.Loop, before: Node, index: Node) -> Node:
        """Return which chains have a turn more."""
        graph, live = self.graph, before
        if loop.condition is not None:
            live = graph.apply("bitwise_and", live, self.made[loop.condition.number])
        if not isinstance(loop.length, int) and loop.length.number in self.differ:
            most = self.made[loop.length.number]
            live = graph.apply("bitwise_and", live, graph.apply("less", index, most))
        return live

    def _where(self, live: Node, new: Node, old: Node) -> Node:
        ones = (1,) * (len(new.shape) - 1)
        return self.graph.apply(
            "where", self.graph.reshape(live, (self.chains, *ones)), new, old
        )

    def _any(self, flags: Node) -> Node:
        graph = self.graph
        most = graph.reduce(
            "max", graph.cast(flags, dtypes.int32), (0,), keepdims=False
        )
        return graph.apply("not_equal", most, graph.constant(0, most.dtype))


def _different(program: Program) -> tuple[set[int], set[int]]:
    """Return the nodes that differ between chains, and the loops that end apart, by ids."""
    every, found, apart = [*everywhere(program.nodes)], set[int](), set[int]()
    results = [node for node in every if isinstance(node, expr.Result)]
    before = -1
    while before != len(found) + len(apart):
        before = len(found) + len(apart)
        for node in every:
            args = () if isinstance(node, expr.Result) else expr.operands(node)
            if isinstance(node, expr.Chain) or any(arg.number in found for arg in args):
                found.add(node.number)
        for node in results:
            loop = node.loop
            length = () if isinstance(loop.length, int) else (loop.length,)
            asked = () if loop.condition is None else (loop.condition,)
            if any(each.number in found for each in chain(length, asked)):
                apart.add(id(loop))
            for carry, *of in zip(loop.carries, loop.inits, loop.nexts, strict=True):
                if id(loop) in apart or any(each.number in found for each in of):
                    found.add(carry.number)
            each = (*loop.carries, *loop.stacked)[node.place]
            if each.number in found:
                found.add(node.number)
    return found, apart
