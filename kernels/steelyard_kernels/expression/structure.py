"""All that a program says but its names: what two programs that compute the same share.

And which nodes there are, and how often they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, Final, Protocol, TypeVar

from steelyard_kernels.expression import expr
from steelyard_kernels.expression.expr import Node, Program


class Numbered(Protocol):
    """A node, or a value of a nest."""

    @property
    def number(self) -> int:
        """Its own; it is made of smaller ones."""
        ...


T = TypeVar("T", bound=Numbered)


def everywhere(nodes: Iterable[Node]) -> Iterator[Node]:
    """Give nodes in evaluation order, loops' parameters and bodies before results."""
    said: set[int] = set()
    for node in nodes:
        if isinstance(node, expr.Result) and id(node.loop) not in said:
            said.add(id(node.loop))
            yield from (*node.loop.carries, node.loop.index)
            yield from everywhere(node.loop.nodes)
        yield node


def reachable(roots: Iterable[Node]) -> tuple[Node, ...]:
    """Return every node that the roots need, in evaluation order."""
    return tuple(closure(roots, expr.operands))


def closure(
    roots: Iterable[T],
    follow: Callable[[T], Iterable[T]],
    fits: Callable[[T], bool] = lambda _: True,
) -> list[T]:
    """Return roots, and what follows from each in turn, by number, each once.

    Those that do not fit are left out, with what follows from them alone.
    """
    found: dict[int, T] = {}
    pending = [*roots]
    while pending:
        each = pending.pop()
        if each.number not in found and fits(each):
            found[each.number] = each
            pending += follow(each)
    return [found[number] for number in sorted(found)]


def structure(program: Program) -> tuple[object, ...]:
    """Return all that a program says but its kernel's and parameters' names.

    Equal structures compute the same; the tuple is hashable, and its repr says as much.
    """
    position: dict[int, int] = {}
    return (
        tuple((node.shape, node.dtype) for node in program.inputs),
        tuple(in_words(program.nodes, position)),
        tuple((position[o.value.number], o.updates, o.hidden) for o in program.outputs),
        program.chains,
        program.copies,
    )


def in_words(
    nodes: Iterable[Node], position: dict[int, int]
) -> Iterator[tuple[object, ...]]:
    """Give all that nodes say but their numbers, which `position` counts from 0."""
    for node in everywhere(nodes):
        position[node.number] = len(position)
        name, what, *rest = word(node)
        if isinstance(node, expr.Result):
            what = (what, *_loop(node, position))
        args = tuple(position[arg.number] for arg in expr.operands(node))
        yield name, what, *rest, args


# By type, as what a node reads is (`operands`).
_SAYS: Final[Mapping[type, Callable[[Any], object]]] = {
    expr.Along: attrgetter("op", "axis", "reverse"),
    expr.Apply: attrgetter("op"),
    expr.Constant: lambda node: repr(node.value),
    expr.Gather: attrgetter("index", "place"),
    expr.Handed: attrgetter("op", "axis", "reverse"),
    expr.Input: attrgetter("index"),
    expr.Parameter: attrgetter("role", "place"),
    expr.Reduce: attrgetter("op", "axes", "keepdims"),
    expr.Result: attrgetter("place"),
    expr.Scalar: attrgetter("name"),
    expr.Segments: attrgetter("axis"),
    expr.View: attrgetter("index"),
}


def word(node: Node) -> tuple[object, ...]:
    """Return what a node says itself: neither what it reads nor a loop's body."""
    says = _SAYS.get(type(node))
    what = says(node) if says else None
    return type(node).__name__, what, node.shape, node.dtype


def _loop(node: expr.Result, position: Mapping[int, int]) -> tuple[object, ...]:
    """Return what a result's loop says beside its body, which stands before."""
    loop = node.loop
    groups = (loop.inits, loop.carries, loop.nexts, loop.stacked)
    ends = [loop.index, *([] if loop.condition is None else [loop.condition])]
    return (
        loop.length if isinstance(loop.length, int) else "given",
        tuple(tuple(position[n.number] for n in group) for group in groups),
        tuple(position[n.number] for n in ends),
        loop.unroll,
        loop.reverse,
    )


def described(program: Program) -> str:
    """Return a program without its name: two of equal text compute the same."""
    inputs = [node.name for node in program.inputs]
    scalars = [(node.name, node.dtype) for node in program.scalars]
    outputs = [output.name for output in program.outputs]
    return f"{structure(program)}{inputs}{scalars}{outputs}"


def users(nodes: Iterable[Node]) -> dict[int, int]:
    """Count, by node number, how often each node is read by the given nodes."""
    counts: dict[int, int] = {}
    for node in nodes:
        for arg in expr.operands(node):
            counts[arg.number] = counts.get(arg.number, 0) + 1
    return counts
