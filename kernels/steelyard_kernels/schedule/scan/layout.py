"""Where a small value's elements lie: its longest axis across lanes.

Elements are told by their number in row-major order. For every index of the other axes
there are as many vectors as the lane axis needs; the lanes of the last one that are
left over hold anything.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from math import prod
from typing import TypeAlias

from steelyard_kernels.expression.expr import Shape

Vector: TypeAlias = tuple[int, ...]  # the element in each lane that has one


def lane_axis(shape: Shape) -> int:
    """Return the longest axis, the last of several; of one or more."""
    return max(range(len(shape)), key=lambda axis: (shape[axis], axis))


@cache
def layout(shape: Shape, width: int) -> tuple[Vector, ...]:
    """Return the elements of each vector of a shape, outer axes in row-major order."""
    if not shape:
        return ((0,),)
    axis = lane_axis(shape)
    extent, stride = shape[axis], prod(shape[axis + 1 :])
    outer = [n if place != axis else 1 for place, n in enumerate(shape)]
    found = []
    for index in product(*map(range, outer)):
        base = 0
        for place, extent_ in zip(index, shape, strict=True):
            base = base * extent_ + place
        for first in range(0, extent, width):
            last = min(first + width, extent)
            found.append(tuple([base + lane * stride for lane in range(first, last)]))
    return tuple(found)


@cache
def places(shape: Shape, width: int) -> dict[Vector, int]:
    """Return the position of each vector of a layout by its elements."""
    return {vector: place for place, vector in enumerate(layout(shape, width))}


@cache
def broadcast(source: Shape, shape: Shape) -> Vector:
    """Return which element of the source each element of a larger shape is."""
    strides = [0] * len(shape)
    stride = 1
    for back in range(1, len(source) + 1):
        if source[-back] != 1:
            strides[-back] = stride
        stride *= source[-back]
    found = [0]
    for extent, step in zip(shape, strides, strict=True):
        found = [base + index * step for base in found for index in range(extent)]
    return tuple(found)


@cache
def transposed(shape: Shape) -> Vector:
    """Return which element of `shape` each is once its last two axes are swapped."""
    *outer, rows, columns = shape
    return tuple(
        (block * rows + row) * columns + column
        for block in range(prod(outer))
        for column in range(columns)
        for row in range(rows)
    )
