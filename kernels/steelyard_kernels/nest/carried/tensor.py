"""Small values: in registers by the layout of their shape, or a part of memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Final, TypeAlias

from steelyard_kernels.dtypes import DType
from steelyard_kernels.expression.expr import Shape, View
from steelyard_kernels.ir.builder import Builder, const
from steelyard_kernels.ir.loops import Buffer, Operand

BESIDE: Final = -1


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A value in registers.

    `vectors` are those of `layout.layout`; one that is a scalar has it in every lane.
    Where all elements are the `same`, as in a shape of one, there is one scalar.
    """

    shape: Shape
    vectors: tuple[Operand, ...]
    same: bool = False

    def vector(self, place: int) -> Operand:
        """Return the vector at a place of the layout."""
        return self.vectors[0 if self.same else place]


def uniform(value: float, dtype: DType, shape: Shape = ()) -> Tensor:
    """Return a value whose elements are one number."""
    return Tensor(shape, (const(value, dtype),), same=True)


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """A value in memory: its element at `index` is buffer[base + index . strides].

    Where lanes are chains, those of neighbours lie `apart` elements; 0: it is the same
    for all; BESIDE: each element of all of them is one vector.
    """

    buffer: Buffer
    base: Operand
    shape: Shape
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

    def viewed(self, b: Builder, view: View) -> Memory:
        """Emit where the elements of a strided view lie."""
        pairs = list(zip(view.index, self.strides, strict=True))
        steps = [
            sum((index.step(axis) or 0) * stride for index, stride in pairs)
            for axis in range(len(view.shape))
        ]
        first = sum(index.constant * stride for index, stride in pairs)
        base = b.at("add", self.base, first)
        return replace(self, base=base, shape=view.shape, strides=tuple(steps))

    def reshaped(self, shape: Shape) -> Memory | None:
        """Return the same elements in another shape; None if they lie apart."""
        if self.apart == BESIDE or self.strides != contiguous(self.shape):
            return None
        return replace(self, shape=shape, strides=contiguous(shape))


Value: TypeAlias = Tensor | Memory


def contiguous(shape: Shape) -> tuple[int, ...]:
    """Return the strides of an array in row-major order."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def whole(buffer: Buffer, base: Operand, shape: Shape) -> Memory:
    """Return the view of an array in row-major order from `base` on."""
    return Memory(buffer, base, shape, contiguous(shape))
