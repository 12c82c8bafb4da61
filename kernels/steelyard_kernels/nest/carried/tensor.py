"""Small values: in registers by the layout of their shape, or a part of memory.

Elements are told by their number in row-major order. For every index of the other axes
there are as many vectors as the lane axis needs; the lanes of the last one that are left
over hold anything.
"""

from __future__ import annotations

from functools import cache
from math import ceil, prod
from typing import Any, Final, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from steelyard_kernels.dtypes import DType
from steelyard_kernels.expression import expr
from steelyard_kernels.expression.expr import Node
from steelyard_kernels.ir.builder import Builder, const
from steelyard_kernels.ir.loops import Buffer, Operand
from steelyard_kernels.ops import OPERATIONS

FUNCTION: Final = 10  # instructions of an operation that is a function
ROLLED: Final = (
    8  # vectors of one that are a loop, where another one costs time as well
)
Vector: TypeAlias = tuple[int, ...]  # the element in each lane that has one


def lane_axis(shape: expr.Shape) -> int:
    """Return the longest axis, the last of several; of one or more."""
    return max(range(len(shape)), key=lambda axis: (shape[axis], axis))


@cache
def layout(shape: expr.Shape, width: int) -> tuple[Vector, ...]:
    """Return the elements of each vector of a shape, outer axes in row-major order."""
    if not prod(shape):
        return ()
    axis = lane_axis(shape) if shape else 0
    rows = np.moveaxis(np.atleast_1d(numbered(shape)), axis, -1)
    extent = rows.shape[-1]
    return tuple(
        tuple(row[first : first + width])
        for row in rows.reshape(-1, extent).tolist()
        for first in range(0, extent, width)
    )


@cache
def places(shape: expr.Shape, width: int) -> dict[Vector, int]:
    """Return the position of each vector of a layout by its elements."""
    return {vector: place for place, vector in enumerate(layout(shape, width))}


@cache
def numbered(shape: expr.Shape) -> NDArray[Any]:
    """Return the number of each element of a shape, not to be written to."""
    return np.arange(prod(shape)).reshape(shape)


_INTEGERS: Final[dict[str, Any]] = {
    "add": np.add,
    "mul": np.multiply,
    "div": np.floor_divide,
    "rem": np.remainder,
}


def viewed(view: expr.View | expr.Gather) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return which element of its operand each of a view is, and whether it is one.

    Of a gather it is the first along the axis whose places are computed.
    """
    places = np.ogrid[tuple(map(slice, view.shape))]
    numbers, inside = np.zeros(view.shape, int), np.ones(view.shape, bool)
    for index, extent in zip(view.index, view.arg.shape, strict=True):
        found = index.evaluate(places, np.asarray, _INTEGERS.__getitem__)
        at = np.asarray(0 if found is None else found)
        inside &= (at >= 0) & (at < extent)
        numbers = numbers * extent + at
    return numbers, inside


def spelled(node: Node, width: int) -> int:
    """Return about how many statements a node is on lanes: of vectors, or of elements."""
    size, longest = prod(node.shape), max((*node.shape, 1))
    vectors = size // longest * -(-longest // width)
    if isinstance(node, expr.Apply):
        cost = ceil(OPERATIONS[node.op].cost.cpu)
        return cost * (vectors if cost < FUNCTION else min(vectors, ROLLED))
    if isinstance(node, expr.Dot):
        return node.b.shape[0] * vectors
    if isinstance(node, expr.Along):
        return line_steps(node)[1]
    if isinstance(node, expr.Reduce):
        last = node.of_rows
        return prod(node.arg.shape) // (min(width, node.arg.shape[-1]) if last else 1)
    return size if isinstance(node, expr.View | expr.Gather | expr.Reshape) else vectors


def elements(node: Node) -> int:
    """Return how many elements registers hold for a node; of an order, compared ones."""
    if isinstance(node, expr.Along) and node.op == "order":
        return prod(node.shape) * node.shape[node.axis]
    return prod(node.shape)


def line_steps(node: expr.Along) -> tuple[int, int]:
    """Return how many operations one line takes, and all lines."""
    extent = node.shape[node.axis]
    steps = extent * (node.op != "copy")
    if node.op == "order":
        steps = 2 * len(exchanges(extent))
    return steps, steps * (prod(node.shape) // extent)


@cache
def exchanges(extent: int) -> tuple[tuple[int, int], ...]:
    """Return the places to exchange, the lesser value first, that put a line in order.

    Batcher's odd-even merges of any extent: D. E. Knuth, "The Art of Computer
    Programming", volume 3, 2nd edition, 1998, algorithm 5.2.2M.
    """
    found: list[tuple[int, int]] = []
    half = 1 << (max(extent - 1, 0).bit_length() - 1) if extent > 1 else 0
    width = half
    while width:
        apart, bit, far = width, 0, half
        while apart:
            pairs = [(k, k + apart) for k in range(extent - apart) if k & width == bit]
            found += pairs
            apart, bit, far = max(far - width, 0), width, far // 2
        width //= 2
    return tuple(found)


BESIDE: Final = -1


class Tensor(Struct, frozen=True, eq=False):
    """A value in registers.

    `vectors` are those of `layout.layout`; one that is a scalar has it in every lane.
    Where all elements are the `same`, as in a shape of one, there is one scalar.
    """

    shape: expr.Shape
    vectors: tuple[Operand, ...]
    same: bool = False

    def vector(self, place: int) -> Operand:
        """Return the vector at a place of the layout."""
        return self.vectors[0 if self.same else place]


def uniform(value: float, dtype: DType, shape: expr.Shape = ()) -> Tensor:
    """Return a value whose elements are one number."""
    return Tensor(shape, (const(value, dtype),), same=True)


class Memory(Struct, frozen=True, eq=False):
    """A value in memory: its element at `index` is buffer[base + index . strides].

    Where lanes are chains, those of neighbours lie `apart` elements; 0: it is the same
    for all; BESIDE: each element of all of them is one vector.
    """

    buffer: Buffer
    base: Operand
    shape: expr.Shape
    strides: tuple[int, ...]
    apart: int = 0

    @property
    def dtype(self) -> DType:
        """The dtype of its elements."""
        return self.buffer.dtype

    def offset(self, element: int) -> int:
        """Return how far behind the base an element lies, by its row-major number."""
        total = 0
        for extent, stride in zip(
            reversed(self.shape), reversed(self.strides), strict=True
        ):
            element, place = divmod(element, extent)
            total += place * stride
        return total

    def row(self, b: Builder, index: Operand) -> Memory:
        """Emit where the row at `index` of the first axis lies."""
        start = b.at("multiply", b.cast(index, b.index.dtype), self.strides[0])
        base = b.at("add", start, self.base)
        return replace(self, base=base, shape=self.shape[1:], strides=self.strides[1:])

    def viewed(self, b: Builder, view: expr.View) -> Memory:
        """Emit where the elements of a strided view lie."""
        pairs = list(zip(view.index, self.strides, strict=True))
        steps = [
            sum((index.step(axis) or 0) * stride for index, stride in pairs)
            for axis in range(len(view.shape))
        ]
        first = sum(index.constant * stride for index, stride in pairs)
        base = b.at("add", self.base, first)
        return replace(self, base=base, shape=view.shape, strides=tuple(steps))

    def reshaped(self, shape: expr.Shape) -> Memory | None:
        """Return the same elements in another shape; None if they lie apart."""
        if self.apart == BESIDE or self.strides != contiguous(self.shape):
            return None
        return replace(self, shape=shape, strides=contiguous(shape))


Value: TypeAlias = Tensor | Memory


def contiguous(shape: expr.Shape) -> tuple[int, ...]:
    """Return the strides of an array in row-major order."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def whole(buffer: Buffer, base: Operand, shape: expr.Shape) -> Memory:
    """Return the view of an array in row-major order from `base` on."""
    return Memory(buffer, base, shape, contiguous(shape))
