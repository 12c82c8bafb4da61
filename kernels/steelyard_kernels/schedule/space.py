"""The iteration space of a program: its axes collapsed, and how operands walk them.

Axes of extent 1 go away, and neighbouring axes that every operand treats alike
(both contiguous, or both broadcast) become one. What is left is walked row by row:
the innermost axis by vectors, all others flattened into one row number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from steelyard_kernels.expression.expr import Shape
from steelyard_kernels.ir.builder import Builder
from steelyard_kernels.ir.loops import Operand


@dataclass(frozen=True, slots=True)
class Space:
    """Extents, outermost first, and each operand's stride along each, in elements.

    A stride of 0 means that the operand is broadcast along the axis.
    """

    extents: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]


def strides_of(shape: Shape, space: Shape) -> tuple[int, ...]:
    """Return the strides of a row-major array that is broadcast to a shape."""
    strides = [0] * len(space)
    stride = 1
    for back in range(1, len(shape) + 1):
        extent = shape[-back]
        if extent != 1:
            strides[-back] = stride
        stride *= extent
    return tuple(strides)


def collapse(space: Shape, strides: Sequence[Sequence[int]]) -> Space:
    """Collapse a space whose operands have these strides along its axes."""
    extents: list[int] = []
    walks: list[list[int]] = [[] for _ in strides]
    for axis, extent in enumerate(space):
        if extent == 1:
            continue
        merges = bool(extents) and all(
            walk[-1] == stride[axis] * extent
            for walk, stride in zip(walks, strides, strict=True)
        )
        if merges:
            extents[-1] *= extent
        else:
            extents.append(extent)
        for walk, stride in zip(walks, strides, strict=True):
            if merges:
                walk[-1] = stride[axis]
            else:
                walk.append(stride[axis])
    return Space(tuple(extents), tuple(tuple(walk) for walk in walks))


def rows(space: Space) -> int:
    """Return how often the innermost axis is walked."""
    return prod(space.extents[:-1])


def offset(
    b: Builder, extents: Sequence[int], strides: Sequence[int], number: Operand
) -> Operand:
    """Emit where a flattened row number begins; the first extent is not needed."""
    total: Operand | int = 0
    inner = 1
    for axis in range(len(extents) - 1, -1, -1):
        if strides[axis]:
            position = b.at("div", number, inner)
            if axis:
                position = b.at("rem", position, extents[axis])
            total = b.at("add", b.at("multiply", position, strides[axis]), total)
        inner *= extents[axis]
    return b.at("add", total, 0)
