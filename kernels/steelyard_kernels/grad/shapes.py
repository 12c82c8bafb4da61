"""What reductions, products and changes of shape pass back."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from steelyard_kernels import array as xp
from steelyard_kernels import dtypes
from steelyard_kernels.array import Array, lines
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression import expr
from steelyard_kernels.expression.expr import Node
from steelyard_kernels.expression.indices import Index, Part, axis, part
from steelyard_kernels.expression.lines import along, is_order
from steelyard_kernels.monoids import ALONG, MONOIDS

# (cotangent, node) -> the cotangents of the operands it may have one for, in order
Rule: TypeAlias = Callable[[Array, Any], tuple[Callable[[], Array], ...]]


def summed_to(g: Array, shape: expr.Shape) -> Array:
    """Return g summed over the axes along which `shape` was broadcast to g's."""
    if g.shape == shape:
        return g
    aligned = (1,) * (g.ndim - len(shape)) + shape
    pairs = enumerate(zip(g.shape, aligned, strict=True))
    places = tuple(place for place, (extent, kept) in pairs if extent != kept)
    return xp.reshape(xp.sum(g, axis=places) if places else g, shape)


def _of_reduce(g: Array, node: expr.Reduce) -> tuple[Callable[[], Array], ...]:
    x, axes = Array(g.graph, node.arg), node.axes
    pairs = enumerate(x.shape)
    kept = tuple(1 if place in axes else extent for place, extent in pairs)
    count = math.prod(x.shape[place] for place in axes)
    g = xp.reshape(g, kept)
    y = xp.reshape(Array(g.graph, node), kept)
    row = MONOIDS[node.op]
    return (lambda: row.gradient(xp, g, y, x, axes, count),)


def _of_view(g: Array, node: expr.View) -> tuple[Callable[[], Array], ...]:
    """Gather what every element of the viewed array was read for: no scatter.

    An axis of the view is solved for where an element of the array is known; what is
    left over is summed. A place without a solution lies outside of an axis of one
    element that g is given for it, and reads zero.
    """
    rank, solved = len(node.arg.shape), _solved(node)
    places: dict[int, Index] = {}
    extents = list(node.arg.shape)
    for position, extent in enumerate(node.shape):
        if position not in solved.values():
            places[position] = axis(len(extents)) if extent > 1 else Index()
            extents += [extent] if extent > 1 else []
    zeros: list[Index] = []
    for place, index in enumerate(node.index):
        if index == Index() and node.arg.shape[place] == 1:
            continue  # all of the view reads it, at 0
        if place not in solved:
            zeros.append(axis(place) + index.at(_every(places, node), extents) * -1)
            continue
        whole, rest = _undivided(node, place, extents)
        for a, step in whole.terms:
            assert isinstance(a, int)
            if a != solved[place]:
                rest += places[a] * -step
        step = dict(whole.terms)[solved[place]]
        rest = rest if step > 0 else rest * -1
        places[solved[place]] = part(rest, abs(step), 0, extents)
        zeros.append(part(rest, 1, abs(step), extents))
    found = _every(places, node)
    zeros = [each for each in zeros if each.terms or each.constant]
    own = _summed_alone(found, zeros, rank)
    left = [k for k in range(len(extents)) if k not in own]
    shape, more = tuple([extents[k] for k in left]), (1,) * len(zeros)
    moved = [axis(left.index(k)) if k in left else Index() for k in range(len(extents))]
    places_read = [
        each.at(moved, shape)
        for place, each in enumerate((*found, *zeros))
        if place not in own.values()
    ]

    def of_arg() -> Array:
        total = xp.sum(g, axis=tuple(own.values())) if own else g
        wide = g.graph.reshape(total.node, (*total.shape, *more))
        read = Array(g.graph, g.graph.view(wide, tuple(places_read), shape))
        added = tuple(range(rank, len(shape)))
        return xp.sum(read, axis=added) if added else read

    return (of_arg,)


def _summed_alone(
    found: Sequence[Index], zeros: Sequence[Index], rank: int
) -> dict[int, int]:
    """Return which new axes are an axis of the view each, which can be summed as it is."""
    return {
        k: place
        for place, each in enumerate(found)
        for k in each.axes
        if k >= rank
        and each == axis(k)
        and sum(k in other.axes for other in (*found, *zeros)) == 1
    }


def _every(places: Mapping[int, Index], node: expr.View) -> list[Index]:
    """Return the place of every axis of a view; of those not solved yet it is 0."""
    return [places.get(position, Index()) for position in range(len(node.shape))]


def _solved(node: expr.View) -> dict[int, int]:
    """Return which axis of a view each axis of the array is solved for: its first new one.

    The other axes of an index are then known, from those before it or one by one.
    """
    found: dict[int, int] = {}
    known: set[int] = set()
    for place, index in enumerate(node.index):
        terms = [t for t, _ in _dividend(index)[0].terms if isinstance(t, int)]
        new = [term for term in terms if term not in known]
        if new and index.axes == set(terms):  # none is inside of another part
            found[place] = new[0]
        known |= index.axes
    return found


def _dividend(index: Index) -> tuple[Index, int]:
    """Return (whole, divisor): index is whole // divisor, of which whole may have no part."""
    for term, step in index.terms:
        if isinstance(term, Part) and step == 1 and not term.modulus:
            others = index + Index(0, ((term, -1),))
            return others * term.divisor + term.index, term.divisor
    return index, 1


def _undivided(node: expr.View, place: int, extents: list[int]) -> tuple[Index, Index]:
    """Return (whole, rest), equal where an index is at a place; whole is without constant.

    What a division leaves is one of the array's own places, or a new axis that is summed.
    """
    whole, divisor = _dividend(node.index[place])
    rest = axis(place) * divisor + -whole.constant
    if divisor > 1:
        left = part(whole, 1, divisor, node.shape)
        if left.terms and left in node.index:
            rest += axis(node.index.index(left))
        else:
            rest += axis(len(extents))
            extents.append(divisor)
    return whole, rest


def _of_gather(g: Array, node: expr.Gather) -> tuple[Callable[[], Array], ...]:
    """Sum, for each element of the array, the cotangents of what was taken from it.

    In one order, whatever the indices are: few are compared with every place, many are
    put in order.
    """
    extent, place = node.arg.shape[node.place], node.place
    graph = g.graph
    whole = tuple([axis(k) if k != place else Index() for k in range(len(node.shape))])
    if node.arg.shape == node.shape and node.index == whole and is_order(node.which):
        # Every element was taken once, and goes back to its place: the order's inverse.
        which = graph.cast(node.which, dtypes.int32)
        back = Array(graph, along(graph, "order", which, place, reverse=False))
        return (lambda: xp.take_along_axis(g, back, axis=place),)

    def of_arg() -> Array:
        # As if every element of the axis had been asked for, along a new last axis.
        rank = len(node.shape)
        which, spread, index = Array(graph, node.which), g, node.index
        used = frozenset[int]().union(*[each.axes for each in index])
        if math.prod(node.shape) * extent > lines.COMPARED and len(used) < rank:
            spread, index = _in_segments(g, node, used)
        else:
            here = xp.expand_dims(which, rank) == Array(
                graph, graph.arange(extent, which.dtype)
            )
            spread = xp.where(here, xp.expand_dims(g, rank), 0.0)
        last = axis(spread.ndim - 1)
        index = (*index[:place], last, *index[place + 1 :])
        viewed = expr.View(0, spread.shape, g.dtype, node.arg, index)
        (rule,) = _of_view(spread, viewed)
        return rule()

    return (of_arg,)


def _in_segments(
    g: Array, node: expr.Gather, used: frozenset[int]
) -> tuple[Array, tuple[Index, ...]]:
    """Return cotangents summed over the axes that no other axis of the array is read along.

    Along a new last axis they are those of every place; with them goes where the array is
    read along the axes that are left.
    """
    varied = _varied(node.which)
    own = [k for k in range(g.ndim) if k not in used]  # what is summed
    before = [k for k in sorted(used) if k in varied]
    rest = [k for k in sorted(used) if k not in varied]
    shapes = [[g.shape[k] for k in each] for each in (before, own, rest)]
    count = math.prod(shapes[1])
    values = xp.permute_dims(g, (*before, *own, *rest))
    values = xp.reshape(values, (*shapes[0], count, *shapes[2]))
    key = tuple([0 if k in rest else slice(None) for k in range(g.ndim)])
    which = Array(g.graph, node.which)[key]
    left = sorted((*before, *own))
    which = xp.permute_dims(which, [left.index(k) for k in (*before, *own)])
    which = xp.reshape(which, (*shapes[0], count))
    found = lines.sums_at(values, which, node.arg.shape[node.place])
    found = xp.moveaxis(found, len(before), -1)
    left = [*before, *rest]
    moved = [axis(left.index(k)) if k in left else Index() for k in range(g.ndim)]
    return found, tuple([each.at(moved, found.shape) for each in node.index])


def _varied(node: Node) -> set[int]:
    """Return the axes along which an elementwise value differs."""
    found, seen, left = set[int](), set[tuple[int, int]](), [(node, 0)]
    while left:
        each, first = left.pop()
        if (each.number, first) in seen:
            continue
        seen.add((each.number, first))
        if isinstance(each, expr.Apply | expr.Cast | expr.Broadcast):
            behind = first + len(each.shape)
            left += [(arg, behind - len(arg.shape)) for arg in expr.operands(each)]
        else:
            found |= {first + k for k, extent in enumerate(each.shape) if extent > 1}
    return found


def _of_segments(g: Array, node: expr.Segments) -> tuple[Callable[[], Array], ...]:
    starts, count = Array(g.graph, node.starts), node.arg.shape[node.axis]
    return (lambda: lines.spread(g, starts, count, node.axis),)


def _of_extremes(g: Array, node: expr.Along) -> Array:
    """Sum for each element the cotangents of the extremes that it is, of equals the last."""
    graph, way = g.graph, -1 if node.reverse else 1

    def turned(x: Array) -> Array:
        return xp.moveaxis(x, node.axis, -1)[..., ::way]

    y, x = (turned(Array(graph, each)) for each in (node, node.arg))
    places = xp.arange(x.shape[-1]).astype("int32")
    here = xp.where((x == y) | (x != x), places, 0)  # noqa: PLR0124 - NaN
    total = lines.sums_at(turned(g), xp.cumulative_max(here, axis=-1), x.shape[-1])
    return xp.moveaxis(total[..., ::way], -1, node.axis)


def _of_along(g: Array, node: expr.Along) -> tuple[Callable[[], Array], ...]:
    row = ALONG[node.op]
    if row.total and MONOIDS[row.total].chooses:
        return (lambda: _of_extremes(g, node),)
    gradient = row.gradient
    if gradient is None:  # an order is of ints, and does not vary smoothly
        raise KernelError(
            f"{g.graph.kernel}: a gradient of {node.op}, which has none so far; write it "
            "with scan."
        )
    graph = g.graph

    def run(op: str, value: Array, *, again: bool = False) -> Array:
        back = node.reverse if again else not node.reverse
        return Array(graph, along(graph, op, value.node, node.axis, reverse=back))

    y, x = Array(graph, node), Array(graph, node.arg)
    return (lambda: gradient(xp, run, g, y, x),)


def _of_dot(g: Array, node: expr.Dot) -> tuple[Callable[[], Array], ...]:
    a, b = Array(g.graph, node.a), Array(g.graph, node.b)
    rows, extent = math.prod(a.shape[:-1]), b.shape[1]

    def of_b() -> Array:
        if rows == 1:  # an outer product
            return xp.reshape(a, (b.shape[0], 1)) * xp.reshape(g, (1, extent))
        flat = xp.reshape(a, (rows, b.shape[0]))
        return xp.dot(flat.T, xp.reshape(g, (rows, extent)))

    return (lambda: xp.dot(g, b.T)), of_b


def _of_row(g: Array, node: expr.Row) -> tuple[Callable[[], Array], ...]:
    shape, index = node.arg.shape, Array(g.graph, node.index)

    def of_arg() -> Array:
        if shape[0] == 1:
            return xp.reshape(g, shape)
        places = Array(g.graph, g.graph.arange(shape[0], dtypes.int64))
        column = xp.reshape(places, (shape[0],) + (1,) * g.ndim)
        here = column == index.astype("int64")
        return xp.where(here, xp.reshape(g, (1, *g.shape)), 0.0)

    return (of_arg,)


RULES: Final[dict[type, Rule]] = {
    expr.Along: _of_along,
    expr.Broadcast: lambda g, node: (lambda: summed_to(g, node.arg.shape),),
    expr.Cast: lambda g, node: (lambda: g.astype(node.arg.dtype),),
    expr.Dot: _of_dot,
    expr.Gather: _of_gather,
    expr.Reduce: _of_reduce,
    expr.Reshape: lambda g, node: (lambda: xp.reshape(g, node.arg.shape),),
    expr.Row: _of_row,
    expr.Segments: _of_segments,
    expr.View: _of_view,
}
