"""The elements of a node at other places: each function makes one `View`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from steelyard_kernels.dtypes import int32, int64, widens
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import (
    Apply,
    Arange,
    Broadcast,
    Cast,
    Constant,
    Gather,
    Merge,
    Node,
    Parameter,
    Shape,
    View,
    operands,
)
from steelyard_kernels.expression.graph import Graph
from steelyard_kernels.expression.indices import Index, axis
from steelyard_kernels.expression.lines import along

Key: TypeAlias = tuple[int | slice | None, ...]


def permuted(graph: Graph, node: Node, order: Sequence[int]) -> Node:
    """Return the node with its axes in another order, as in the array API.

    `order` names every axis once; raises KernelError otherwise.
    """
    rank = len(node.shape)
    if sorted(order) != list(range(rank)):
        raise KernelError(
            f"{graph.kernel}: axes {tuple(order)} of shape {node.shape}, expected each of "
            f"0 to {rank - 1} once; name every axis."
        )
    places = {old: axis(new) for new, old in enumerate(order)}
    index = tuple(places[old] for old in range(rank))
    return graph.view(node, index, tuple(node.shape[old] for old in order))


def sliced(graph: Graph, node: Node, key: Key) -> Node:
    """Return node[key]: an int or a slice for each axis, None for a new one of 1.

    Ints may count from the end. Raises KernelError for ints outside of their axes.
    """
    rest = (slice(None),) * (len(node.shape) - sum(each is not None for each in key))
    index: list[Index] = []
    kept: list[int] = []  # the extents of the view, without new axes
    shape: list[int] = []
    for each in (*key, *rest):
        if each is None:
            shape.append(1)
            continue
        extent = node.shape[len(index)]
        if isinstance(each, slice):
            places = range(*each.indices(extent))
            index.append(axis(len(kept)) * places.step + places.start)
            kept.append(len(places))
            shape.append(len(places))
        else:
            index.append(Index(place_in(graph, node, each, len(index))))
    found = graph.view(node, tuple(index), tuple(kept))
    return graph.reshape(found, tuple(shape))


def place_in(graph: Graph, node: Node, index: int, along: int) -> int:
    """Return an index along an axis counted from its front; raises KernelError outside."""
    extent = node.shape[along]
    if not -extent <= index < extent:
        raise KernelError(
            f"{graph.kernel}: index {index} of a value of shape {node.shape}, expected "
            f"{-extent} to {extent - 1}; index within axis {along}."
        )
    return index % extent


def gathered(
    graph: Graph, node: Node, which: Node, index: tuple[Index, ...], place: int
) -> Node:
    """Return node[index] of the shape of `which`, ints, which are axis `place`'s.

    They are held within the axis. What is computed element by element is taken of its
    operands. Raises KernelError where the axis has no element.
    """
    extent = node.shape[place]
    if which.dtype.kind != "int" or not (extent or 0 in which.shape):
        raise KernelError(
            f"{graph.kernel}: elements of shape {node.shape} are taken at {which.dtype} "
            f"along axis {place}, expected ints, and an axis that is not empty; cast the "
            "indices with astype."
        )
    if 0 in which.shape:
        return graph.view(node, index, which.shape)
    index = (*index[:place], Index(), *index[place + 1 :])
    if extent == 1:  # whole: an operation by itself may be rounded in another way
        return graph.view(node, index, which.shape)
    if not isinstance(which, Merge):
        which = held(graph, which, extent)
    return _taken(graph, node, which, index, place)


def held(graph: Graph, which: Node, extent: int) -> Node:
    """Return integers held within an axis of one element or more."""
    ends = 0, min(extent - 1, which.dtype.largest)
    zero, last = (graph.constant(each, which.dtype) for each in ends)
    if isinstance(which, Apply) and which.op == "maximum" and which.args[1] is zero:
        inner, _ = which.args
        if isinstance(inner, Apply) and inner.op == "minimum" and inner.args[1] is last:
            return which
    return graph.apply("maximum", graph.apply("minimum", which, last), zero)


def from_front(graph: Graph, which: Node, extent: int) -> Node:
    """Return indices along an axis as counted from its front: those below 0 are from its end."""
    if which.dtype.kind != "int" or not _may_be_negative(which):
        return which
    if extent > which.dtype.largest:
        which = graph.cast(which, int64)
    zero, count = (graph.constant(each, which.dtype) for each in (0, extent))
    below = graph.apply("less", which, zero)
    return graph.apply("where", below, graph.apply("add", which, count), which)


NEAR: Final = 8
"""Operations that an index is looked through for its sign: few, for each asks several."""

_SIGNS: Final[dict[str, Callable[[Iterable[bool]], bool]]] = {
    **dict.fromkeys(("Broadcast", "Cast", "Gather", "Reshape", "Row", "View"), any),
    **dict.fromkeys(("add", "copy", "max", "min", "minimum", "multiply", "where"), any),
    "maximum": all,
    "order": lambda _: False,
}
"""Whether integers may be below 0 if operands may, by what makes them."""


def _may_be_negative(node: Node, near: int = NEAR) -> bool:
    """Say whether integers may be below 0, unless 32 bits or more have overflown."""
    if not node.dtype.signed or isinstance(node, Arange):
        return False
    if isinstance(node, Constant):
        return node.value < 0
    if isinstance(node, Parameter):
        return node.role != "index"
    rule = _SIGNS.get(getattr(node, "op", type(node).__name__))
    wraps = node.dtype.bytes < int32.bytes
    if isinstance(node, Cast):
        wraps = not widens(node.arg.dtype, node.dtype)
    if rule is None or wraps or not near:
        return True
    return rule(_may_be_negative(each, near - 1) for each in operands(node))


def _taken(
    graph: Graph, node: Node, which: Node, index: tuple[Index, ...], place: int
) -> Node:
    """Return node[index] with `which` along an axis, taken where its values come from."""
    key = node.number, which.number, index, place
    if key not in graph.taken:
        graph.taken[key] = _found(graph, node, which, index, place)
    return graph.taken[key]


def _found(
    graph: Graph, node: Node, which: Node, index: tuple[Index, ...], place: int
) -> Node:
    """Return the same where it has not been found yet."""
    if isinstance(node, Apply | Cast | Broadcast):
        parts = []
        for arg in operands(node):
            skipped = len(node.shape) - len(arg.shape)
            pairs = zip(index[skipped:], arg.shape, strict=True)
            own = tuple(Index() if extent == 1 else each for each, extent in pairs)
            if not arg.shape:
                alone = isinstance(node, Apply)
                parts.append(arg if alone else graph.broadcast(arg, which.shape))
            elif place < skipped or arg.shape[place - skipped] == 1:
                parts.append(graph.view(arg, own, which.shape))
            else:
                parts.append(_taken(graph, arg, which, own, place - skipped))
        return graph.elementwise(node, parts, which.shape)
    if isinstance(node, View) and not node.guards:
        along_it = [k for k, each in enumerate(node.index) if place in each.axes]
        if [node.index[k] for k in along_it] == [axis(place)]:
            shown = [each.at(index, which.shape) for each in node.index]
            shown[along_it[0]] = Index()
            return _taken(graph, node.arg, which, tuple(shown), along_it[0])
    if isinstance(node, Gather) and not any(place in each.axes for each in node.index):
        where = _taken(graph, node.which, which, index, place)
        own = tuple(each.at(index, which.shape) for each in node.index)
        return _taken(graph, node.arg, where, own, node.place)
    node = along(graph, "copy", node, place, reverse=False)
    key = (Gather, node.number, which.number, index, place)
    fields = (node, which, index, place)
    return graph.keep(key, Gather, which.shape, node.dtype, *fields)


def padded(graph: Graph, node: Node, before: Shape, after: Shape) -> Node:
    """Return the node with zeros around it: so many before and after, by axis.

    Negative numbers take elements away.
    """
    triples = zip(before, node.shape, after, strict=True)
    shape = tuple(max(low + extent + high, 0) for low, extent, high in triples)
    index = [axis(place) + -low for place, low in enumerate(before)]
    return graph.view(node, tuple(index), shape)


def joined(graph: Graph, nodes: Sequence[Node], place: int) -> Node:
    """Return nodes of one dtype one after another along an axis.

    Raises KernelError where their other axes differ.
    """
    first = nodes[0]
    shapes = {(*n.shape[:place], *n.shape[place + 1 :]) for n in nodes}
    if len(shapes) > 1 or any(len(n.shape) != len(first.shape) for n in nodes):
        raise KernelError(
            f"{graph.kernel}: concat of shapes {', '.join(str(n.shape) for n in nodes)} "
            f"along axis {place}; their other axes must be equal."
        )
    extent = sum(node.shape[place] for node in nodes)
    shape = (*first.shape[:place], extent, *first.shape[place + 1 :])
    column = (extent,) + (1,) * (len(shape) - place - 1)
    found, start = _moved(graph, first, place, 0, shape), first.shape[place]
    counter = graph.arange(extent, int64)
    at = graph.reshape(counter, column)
    for node in nodes[1:]:
        here = _moved(graph, node, place, start, shape)
        bound = graph.constant(start, counter.dtype)
        found = graph.apply("where", graph.apply("less", at, bound), found, here)
        start += node.shape[place]
    return found


def _moved(graph: Graph, node: Node, place: int, start: int, shape: Shape) -> Node:
    """Return the node from `start` on along an axis of a larger shape."""
    index = [axis(each) for each in range(len(shape))]
    index[place] += -start
    return graph.view(node, tuple(index), shape)
