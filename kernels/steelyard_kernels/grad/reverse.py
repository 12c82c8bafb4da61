"""Reverse mode: from the cotangents of what was computed to those of what it was of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TypeAlias

from msgspec import Struct, field

from steelyard_kernels import array as xp
from steelyard_kernels.array import Array
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression import expr
from steelyard_kernels.expression.bodies import body
from steelyard_kernels.expression.expr import Apply, Broadcast, Node, Reduce, Reshape
from steelyard_kernels.expression.graph import Graph
from steelyard_kernels.expression.rewrite import Again
from steelyard_kernels.grad import shapes
from steelyard_kernels.ops import OPERATIONS

# By the id of a loop: what its results are taken from instead, in their order.
Replaced: TypeAlias = Mapping[int, Sequence[Node]]


def again(
    graph: Graph,
    roots: Sequence[Node],
    made: Mapping[int, Node],
    replaced: Replaced,
) -> list[Node]:
    """Return what `roots` become where `made` has other nodes, by number.

    What depends on none of these stays the node it is, loops included. Results of the
    loops in `replaced` are those of the loops that stand for them, so that no loop is
    run twice.
    """

    def rule(_: Graph, node: Node, __: Mapping[int, Node]) -> Node | None:
        if not isinstance(node, expr.Result) or id(node.loop) not in replaced:
            return None
        target = replaced[id(node.loop)][node.place]
        add([target])
        return work.made[target.number]

    def add(nodes: Sequence[Node]) -> None:
        inside, free = body(nodes, set(made))
        for node in free:
            work.made.setdefault(node.number, node)
        work.add(inside)

    work = Again(graph, rule)
    work.made.update(made)
    add(roots)
    return [work.made[root.number] for root in roots]


def varied(nodes: Iterable[Node], leaves: AbstractSet[int]) -> set[int]:
    """Return the leaves and which of the nodes, by number, change with them smoothly.

    `nodes` are in evaluation order; a loop's results change with all that it reads.
    """
    found = set(leaves)
    for node in nodes:
        stops = isinstance(node, expr.Apply) and not OPERATIONS[node.op].gradient
        if node.dtype.kind != "float" or stops:
            continue
        if any(arg.number in found for arg in expr.operands(node)):
            found.add(node.number)
    return found


class Adjoint(Struct, frozen=True):
    """Cotangents of what was wanted, None where none reaches it.

    `replaced` is what loops of the walked expressions must be replaced by, for the
    cotangents read what these keep.
    """

    cotangents: list[Node | None]
    replaced: Replaced


class Passed(Struct, frozen=True):
    """What a loop passes back, and what its results are taken from instead, if any."""

    cotangents: list[tuple[Node, Node]]
    results: Sequence[Node]


class Reverse(Struct, frozen=True):
    """The walk back through one graph; `memory` is what a loop's carries may take.

    `loop` goes back through a loop, given the cotangents of its results and the numbers
    of the nodes that are to have one; it walks back through an iteration in turn.
    """

    graph: Graph
    memory: int
    loop: Callable[
        [Reverse, expr.Loop, Sequence[Node | None], AbstractSet[int]], Passed
    ]

    def adjoint(
        self, roots: Sequence[Node], cotangents: Sequence[Node], wanted: Sequence[Node]
    ) -> Adjoint:
        """Return the cotangents of `wanted`, which are taken as independent.

        Raises KernelError for what cannot be walked back through.
        """
        leaves = {node.number for node in wanted}
        nodes, _ = body(roots, leaves)
        walk = _Walk(self, leaves, varied(nodes, leaves))
        for root, cotangent in zip(roots, cotangents, strict=True):
            walk.add(root, cotangent)
        for node in reversed(nodes):
            if node.number not in leaves:
                walk.back(node, nodes)
        found = [walk.bars.get(node.number) for node in wanted]
        return Adjoint(found, walk.replaced)


class _Walk(Struct):
    """The cotangents found so far, `bars`, by node number; of `asked` nodes alone."""

    reverse: Reverse
    leaves: AbstractSet[int]
    asked: set[int]
    bars: dict[int, Node] = field(default_factory=dict)
    replaced: dict[int, Sequence[Node]] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)  # ids of loops

    def add(self, node: Node, cotangent: Node) -> None:
        """Add to a node's cotangent, if it is asked for one."""
        if node.number not in self.asked:
            return
        if node.number in self.bars:
            before = self.bars[node.number]
            cotangent = self.reverse.graph.apply("add", before, cotangent)
        self.bars[node.number] = cotangent

    def back(self, node: Node, nodes: Sequence[Node]) -> None:
        """Pass a node's cotangent to its operands."""
        bar = self.bars.get(node.number)
        if bar is None:
            return
        if isinstance(node, expr.Result):
            if id(node.loop) not in self.done:
                self.done.add(id(node.loop))
                self._loop(node.loop, nodes)
            return
        for arg, cotangent in self._passed(node, Array(self.reverse.graph, bar)):
            self.add(arg, cotangent.node)

    def _loop(self, loop: expr.Loop, nodes: Sequence[Node]) -> None:
        """Pass back what is known of all of a loop's results: their users are done."""
        bars: list[Node | None] = [None] * (len(loop.nexts) + len(loop.stacked))
        for node in nodes:
            if isinstance(node, expr.Result) and node.loop is loop:
                bars[node.place] = self.bars.get(node.number)
        passed = self.reverse.loop(self.reverse, loop, bars, self.asked)
        if passed.results:
            self.replaced[id(loop)] = passed.results
        for node, cotangent in passed.cotangents:
            self.add(node, cotangent)

    def _passed(self, node: Node, g: Array) -> Iterator[tuple[Node, Array]]:
        """Give operands with their cotangents, those that are asked for one."""
        whole = through_softmax(node, g, self.leaves)
        if whole is not None:
            yield whole
            return
        if isinstance(node, expr.Apply):
            y, args = Array(g.graph, node), [Array(g.graph, arg) for arg in node.args]
            for arg, rule in zip(node.args, OPERATIONS[node.op].gradient, strict=True):
                if arg.number in self.asked:
                    yield arg, shapes.summed_to(rule(xp, g, y, *args), arg.shape)
            return
        if isinstance(node, expr.Chain | expr.Chains):
            raise KernelError(
                f"{g.graph.kernel}: a gradient of what many chains computed, expected "
                "that of one; take vmap of the gradient, not the gradient of vmap."
            )
        passed = shapes.RULES[type(node)](g, node)
        for arg, cotangent in zip(expr.operands(node), passed, strict=False):
            if arg.number in self.asked:
                yield arg, cotangent()


def through_softmax(
    node: Node, g: Array, leaves: AbstractSet[int]
) -> tuple[Node, Array] | None:
    """Return what a softmax is taken of with its cotangent; None if a node is no softmax.

    With w = exp(x - c) / sum(exp(x - c)) it is w * (g - sum(g * w)). What is subtracted
    from all of a row changes no weight: its own cotangent is exactly zero. `leaves` are
    independent, so that no softmax goes through them.
    """
    found = _softmax(node, leaves)
    if found is None:
        return None
    x, axes = found
    w = Array(g.graph, node)
    return x, w * (g - xp.sum(g * w, axis=axes, keepdims=True))


def _softmax(
    node: Node, leaves: AbstractSet[int]
) -> tuple[Node, tuple[int, ...]] | None:
    """Return what a softmax is taken of, and its axes; None if a node is no softmax."""
    if not isinstance(node, Apply) or node.op != "divide":
        return None
    power, total = node.args
    while isinstance(total, Broadcast | Reshape) and total.number not in leaves:
        total = total.arg
    inner = power.args[0] if isinstance(power, Apply) and power.op == "exp" else None
    if (
        not isinstance(total, Reduce)
        or (total.op, total.arg) != ("sum", power)
        or not isinstance(inner, Apply)
        or inner.op != "subtract"
        or leaves & {power.number, total.number, inner.number}
    ):
        return None
    x, shift = inner.args
    sums = tuple(1 if k in total.axes else n for k, n in enumerate(power.shape))
    one = _is_one(node.args[1], sums) and _is_one(shift, sums)
    return (x, total.axes) if one and x.shape == power.shape else None


def _is_one(node: Node, shape: tuple[int, ...]) -> bool:
    """Say whether a node broadcasts to a shape of one element for each of its rows."""
    while isinstance(node, Broadcast):
        node = node.arg
    aligned = (1,) * (len(shape) - len(node.shape)) + node.shape
    return all(n in {1, m} for n, m in zip(aligned, shape, strict=True))
