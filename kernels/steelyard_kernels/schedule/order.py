"""Along which axes of a nest its arrays lie in order."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from steelyard_kernels.dtypes import bool_
from steelyard_kernels.expression.expr import Along, Apply, Dot, Node, Reduce, Segments
from steelyard_kernels.monoids import ALONG, MONOIDS
from steelyard_kernels.nest.axes import Nest, Value


def in_order(nest: Nest, axis: int, values: Iterable[Value] | None = None) -> bool:
    """Say whether arrays lie in order along an axis, or do not vary with it.

    These are a nest's outputs, and all that it reads or those among some values. A line
    that is walked backwards is stored so, whatever it reads.
    """
    read = nest.values if values is None else values
    arrays = [v for v in read if v.source is not None and axis in v.axes]
    offsets = [v.offset for v in arrays]
    if values is None or axis == len(nest.extents) - 1:
        offsets += [o.offset for o in nest.outputs]
    backwards = any(
        isinstance(v.node, Along) and v.node.reverse and axis in v.over for v in read
    )
    computed = any(axis in w.axes for v in arrays for w in v.args.values())
    return (
        not (computed or backwards)
        and all(offset.step(axis) in {0, 1} for offset in offsets)
        and not any(axis in index.axes for value in read for index, _ in value.guards)
    )


def reduced_outside(nest: Nest) -> frozenset[int]:
    """Return the axes that a reduction walks outside of others: one at a time."""
    return frozenset(axis for value in nest.values for axis in value.over[:-1])


def again(nest: Nest) -> list[frozenset[int]]:
    """Return the axes that one total is walked along, where that is computed again.

    How they are cut says how it is rounded. A total that is walked along one axis here and
    along several there counts only where something is compared.
    """
    walks: dict[Node, list[tuple[int, ...]]] = {}
    for value in nest.values:
        if value.over and _is_rounded(value.node):
            walks.setdefault(value.node, []).append(value.over)
    compares = any(
        isinstance(v.node, Apply) and v.node.dtype is bool_ for v in nest.values
    )
    found: list[frozenset[int]] = []
    for overs in walks.values():
        if len({*map(len, overs)}) == 1:
            found += map(frozenset, zip(*overs, strict=True))
        elif compares:
            found.append(frozenset(chain(*overs)))
    return [axes for axes in found if len(axes) > 1]


def _is_rounded(node: Node) -> bool:
    """Say whether what a walk comes to depends on the order of its elements."""
    if isinstance(node, Along):
        return bool(ALONG[node.op].total) and node.dtype.kind == "float"
    if isinstance(node, Reduce) and MONOIDS[node.op].chooses:
        return False
    return isinstance(node, Reduce | Dot | Segments) and node.dtype.kind == "float"


def residue(nest: Nest, lanes: int) -> int | None:
    """Return the elements from one row to the next, modulo so many lanes.

    None where arrays differ in that, or rows are none of one axis.
    """
    last = len(nest.extents) - 1
    arrays = [value for value in nest.values if value.source is not None]
    offsets = [v.offset for v in arrays] + [out.offset for out in nest.outputs]
    walked = [each for each in offsets if each.step(last) == 1 and len(each.axes) > 1]
    found = {
        step % lanes
        for each in walked
        for axis, step in each.terms
        if axis != last and not (isinstance(axis, int) and nest.extents[axis] == 1)
    }
    shifts = [s for each in walked for t, s in each.terms if not isinstance(t, int)]
    shifts += [
        v.step for v in arrays if v.offset.step(last) == 1
    ]  # rows found by index
    shifts += [each.constant for each in walked]
    if len(found) > 1 or any(shift % lanes for shift in shifts):
        return None
    (row,) = found or {0}
    first_to_last = nest.lines or nest.running  # are walked from a line's beginning
    return row if row == 0 or (last == 1 and not first_to_last) else None
