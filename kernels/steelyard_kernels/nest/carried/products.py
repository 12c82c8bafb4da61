"""Small products in registers: sums across lanes, along them, or by rows in memory."""

from __future__ import annotations

from math import prod
from typing import Final

from steelyard_kernels.dtypes import float32
from steelyard_kernels.expression.expr import Shape
from steelyard_kernels.ir.builder import const
from steelyard_kernels.ir.loops import Operand
from steelyard_kernels.nest.carried.registers import Registers
from steelyard_kernels.nest.carried.tensor import Tensor, Vector, lane_axis, layout

MOST_VECTORS: Final = 48  # of a matrix that a product spells out
SUMS: Final = 4  # sums of a product that grow side by side


class Products(Registers):
    """Registers that are multiplied."""

    def product(self, a: Tensor, b: Tensor, shape: Shape) -> Tensor:
        """Emit the sums of products, along lanes or across them."""
        inner = b.shape[0]
        if inner == 0 or 0 in shape:
            zero = const(0, (*a.vectors, *b.vectors, const(0, float32))[0].type.dtype)
            return Tensor(shape, (zero,), same=True)
        wholly = not (a.same and b.same)
        along = lane_axis(a.shape) == len(a.shape) - 1 and lane_axis(b.shape) == 0
        if wholly and inner > 1 and along:
            return self._across(a, b, shape)
        if prod(shape) == 1 or not wholly:
            return Tensor(shape, (self._sum_of(a, b, (0,)),), same=True)
        order = self.checked(shape)
        if self.walks_memory(a, b):
            return self._walked(a, b, shape)
        return Tensor(shape, tuple([self._sum_of(a, b, v, len(order)) for v in order]))

    def walks_memory(self, a: Tensor, b: Tensor) -> bool:
        """Say whether a product is a loop over the rows of `b`, in memory.

        Those of one row of `a` are, where spelling them out is much text.
        """
        single = prod(a.shape[:-1]) == 1
        many = self.lanes.target == "cpu" and len(b.vectors) > MOST_VECTORS
        return many and single and self.lanes.width > 1 and lane_axis(b.shape) == 1

    def _walked(self, a: Tensor, b: Tensor, shape: Shape) -> Tensor:
        """Emit a loop over rows of `b`, of which several sums grow side by side."""
        inner, width = b.shape[0], self.lanes.width
        each = len(b.vectors) // inner
        if a.same:
            a = Tensor((inner,), a.vectors * len(layout((inner,), width)))
        left, right = self.spilled(a, width), self.spilled(b, width)
        rows = next(
            n
            for n in (SUMS, 2, 1)
            if n == 1 or (inner % n == 0 and n * each <= SUMS**2)
        )
        zero = const(0, right.dtype, width)
        builder = self.b
        with builder.loop(0, inner, rows, *[zero] * (rows * each)) as turn:
            sums = []
            for place, total in enumerate(turn.carried):
                row = builder.at("add", turn.var, place // each)
                factor = self.b.splat(builder.load(left, row), width)
                at = builder.at("multiply", row, each * width)
                at = builder.at("add", at, place % each * width)
                vector = builder.load(right, at, width)
                sums.append(builder.let("fma", factor, vector, total))
            turn.yields(*sums)
        totals = [self._tree("add", turn.results[place::each]) for place in range(each)]
        return Tensor(shape, tuple(totals))

    def _across(self, a: Tensor, b: Tensor, shape: Shape) -> Tensor:
        """Emit products of lane axes, added up across lanes."""
        inner, columns = b.shape
        width = self.lanes.width
        rows = []
        for element in range(prod(shape)):
            row, column = divmod(element, columns)
            rows.append(
                [
                    self.let(
                        "multiply",
                        self.pick(a, tuple([row * inner + k for k in part])),
                        self.pick(b, tuple([k * columns + column for k in part])),
                    )
                    for part in layout((inner,), width)
                ]
            )
        return self.scattered(self.totals("add", rows, inner), shape)

    def _sum_of(
        self, a: Tensor, b: Tensor, vector: Vector, vectors: int = 1
    ) -> Operand:
        """Emit the sums of one vector, several growing side by side."""
        inner, columns = b.shape
        where = [divmod(element, columns) for element in vector]
        terms = [
            (
                self.pick(a, tuple([row * inner + k for row, _ in where])),
                self.pick(b, tuple([k * columns + column for _, column in where])),
            )
            for k in range(inner)
        ]
        several = max(1, min(SUMS, inner // 2, 4 * SUMS // vectors))
        sums = []
        for first in range(several):
            left, right = terms[first]
            total = self.let("multiply", left, right)
            for left, right in terms[first + several :: several]:
                total = self.let("fma", left, right, total)
            sums.append(total)
        return self._tree("add", sums)
