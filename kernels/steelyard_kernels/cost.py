"""What a program must move and compute, counted from its expression alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from steelyard_kernels.expression import expr
from steelyard_kernels.expression.expr import Node, Program
from steelyard_kernels.expression.structure import everywhere
from steelyard_kernels.monoids import ALONG, MONOIDS
from steelyard_kernels.ops import OPERATIONS


def bytes_moved(program: Program) -> int:
    """Return the bytes of every input that is read, once, and every output, once.

    A broadcast input counts its own size, not the size it is broadcast to, and one that
    is read at some places alone what is read of it; hidden memory is written and read.
    """
    readers: dict[int, list[Node]] = {}
    for node in everywhere(program.nodes):
        for arg in expr.operands(node):
            if isinstance(arg, expr.Input):
                readers.setdefault(arg.number, []).append(node)
    read = sum(
        _elements(node, readers.get(node.number, ())) * node.dtype.bytes
        for node in program.nodes
        if isinstance(node, expr.Input)
    )
    written = sum(
        prod(output.value.shape) * output.value.dtype.bytes * (1 + output.hidden)
        for output in program.outputs
    )
    return (read + written) * program.copies


def _elements(node: expr.Input, readers: Sequence[Node]) -> int:
    """Return how many elements of an input its readers read."""
    whole = prod(node.shape)
    chosen = [
        isinstance(each, expr.View)
        or (isinstance(each, expr.Gather) and each.which is not node)
        for each in readers
    ]
    if not readers or not all(chosen):
        return whole
    return min(whole, sum(prod(each.shape) for each in readers))


def operations(program: Program) -> int:
    """Return the arithmetic operations; casts, copies and selections count nothing.

    exp, log and square roots count one each; mean, max and a running total count one an
    element, an order nothing, var three (subtract, multiply, add), a product of matrices two a product. A loop's
    body counts as often as it may run; where its length is given at launch, once.
    """
    chained = _chained(program)
    return _operations(program.nodes, chained, program.chains) * program.copies


def _operations(nodes: Iterable[Node], chained: set[int], chains: int) -> int:
    """Return the operations of nodes and of the loops among them."""
    total = 0
    for node in nodes:
        total += _of(node) * (chains if node.number in chained else 1)
    for loop in expr.loops(nodes):
        times = loop.length if isinstance(loop.length, int) else 1
        total += times * _operations(loop.nodes, chained, chains)
    return total


def _of(node: Node) -> int:
    if isinstance(node, expr.Apply):
        return prod(node.shape) * OPERATIONS[node.op].cost.count
    if isinstance(node, expr.Reduce):
        return prod(node.arg.shape) * MONOIDS[node.op].count
    if isinstance(node, expr.Segments):
        return prod(node.arg.shape)
    if isinstance(node, expr.Along):
        return prod(node.shape) * bool(ALONG[node.op].total)
    if isinstance(node, expr.Dot):
        return 2 * prod(node.shape) * node.b.shape[0]
    return 0


def _chained(program: Program) -> set[int]:
    """Return the numbers of the nodes that differ between chains."""
    found: set[int] = set()
    if not program.chains:
        return found
    inits = _inits(program)
    every = tuple(everywhere(program.nodes))
    before = -1
    while before != len(found):  # a carry may become so through what it becomes
        before = len(found)
        for node in every:
            reads = [*expr.operands(node), *inits.get(node.number, ())]
            if isinstance(node, expr.Chain) or any(
                arg.number in found for arg in reads
            ):
                found.add(node.number)
    return found


def _inits(program: Program) -> dict[int, tuple[Node, Node]]:
    """Return what every carry begins as and goes on as, by the carry's number."""
    found: dict[int, tuple[Node, Node]] = {}
    pending = list(expr.loops(program.nodes))
    while pending:
        loop = pending.pop()
        pending += expr.loops(loop.nodes)
        triples = zip(loop.carries, loop.inits, loop.nexts, strict=True)
        found |= {carry.number: (init, new) for carry, init, new in triples}
    return found
