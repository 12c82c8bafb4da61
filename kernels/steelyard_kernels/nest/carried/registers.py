"""Values in registers, whatever the lanes: picked, spread, reduced, loaded, stored.

Every value is a `Tensor` in the layout of its shape, so that values of one shape meet
without a conversion; what changes shape picks whole vectors where it can, and single
elements where not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from steelyard_kernels.dtypes import DType, float32
from steelyard_kernels.errors import Unsupported
from steelyard_kernels.expression.expr import Shape
from steelyard_kernels.ir.builder import Builder, const
from steelyard_kernels.ir.loops import Buffer, Operand
from steelyard_kernels.nest.carried.lanes import Lanes, tree
from steelyard_kernels.nest.carried.tensor import (
    Memory,
    Tensor,
    Vector,
    lane_axis,
    layout,
    numbered,
    places,
)

Made = TypeVar("Made")
MOST_ELEMENTS: Final = 4096  # of a value in registers: each vector is some text
ROLLED_ONCE: Final = 2  # vectors of a heavy function that are a loop, computed once
NEVER: Final = 1 << 30  # where threads have the vectors, or vectors are iterations
MOST_VECTORS: Final = 48  # of a matrix that a product spells out
SUMS: Final = 4  # sums of a product that grow side by side


class Registers:
    """What can be done with values on some lanes, for kernel `name`.

    What was derived of a value (its elements, its splat) is remembered within the
    innermost open body. On a CPU a heavy function of `rolled` vectors or more is a loop.
    """

    def __init__(self, name: str, lanes: Lanes) -> None:
        self.name = name
        self.b: Builder = lanes.b
        self.lanes = lanes
        self.doing = "computing"  # as errors say what a value is needed for
        self.derived: dict[object, Any] = {}
        self.rolled = NEVER

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Forget, at the end, what is only defined in a nested body."""
        derived = self.derived
        self.derived = derived.copy()
        yield
        self.derived = derived

    def known(self, key: object, make: Callable[[], Made]) -> Made:
        """Return what was made for a key in this body or around it, or make it."""
        if key not in self.derived:
            self.derived[key] = make()
        found: Made = self.derived[key]
        return found

    def spread(self, value: Operand, lanes: int) -> Operand:
        """Return a scalar in so many lanes, the same vector every time."""
        if value.type.lanes == lanes:
            return value
        return self.known((value, lanes), lambda: self.b.splat(value, lanes))

    def let(self, op: str, *args: Operand) -> Operand:
        """Emit an operation of vectors and scalars, which are spread."""
        lanes = max(arg.type.lanes for arg in args)
        return self.b.let(op, *[self.spread(arg, lanes) for arg in args])

    def check(self, shape: Shape) -> None:
        """Raise Unsupported for a shape of too many elements."""
        if prod(shape) > MOST_ELEMENTS:
            raise Unsupported(
                f"{self.name}: {self.doing} a value of shape {shape} takes registers for "
                f"{prod(shape)} elements, at most {MOST_ELEMENTS} are held; leave the "
                "schedule out, so that launches compute it."
            )

    def checked(self, shape: Shape) -> tuple[Vector, ...]:
        """Return a shape's layout; raises Unsupported for one too large."""
        self.check(shape)
        return layout(shape, self.lanes.width)

    # What a value is made of.

    def elements(self, value: Tensor) -> Sequence[Operand]:
        """Return all elements of a value as scalars, in row-major order."""
        count = prod(value.shape)
        if value.same or count == 0:
            return value.vectors * count
        return self.known(value, lambda: self._elements(value, count))

    def _elements(self, value: Tensor, count: int) -> Sequence[Operand]:
        """Emit the elements, lane axis by lane axis."""
        extent, width = max(value.shape), self.lanes.width
        each = -(-extent // width)  # vectors of a lane axis
        order = self.checked(value.shape)
        found: dict[int, Operand] = {}
        for first in range(0, len(order), each):
            numbers = [e for vector in order[first : first + each] for e in vector]
            scalars = self.lanes.elements(value.vectors[first : first + each], extent)
            found.update(zip(numbers, scalars, strict=True))
        return [found[element] for element in range(count)]

    def pick(self, value: Tensor, wanted: Vector) -> Operand:
        """Return a vector of these elements; a scalar where they are one."""
        if value.same:
            return value.vectors[0]
        place = places(value.shape, self.lanes.width).get(wanted)
        if place is not None:
            return value.vectors[place]
        elements = self.elements(value)
        if len(set(wanted)) == 1:
            return elements[wanted[0]]
        return self.lanes.pack([elements[number] for number in wanted])

    def arrange(self, value: Tensor, numbers: NDArray[Any]) -> Tensor:
        """Return the value whose elements are those of these numbers."""
        shape = numbers.shape
        if value.same:
            return Tensor(shape, value.vectors, same=True)
        source = numbers.ravel().tolist()
        if len(source) == 1:
            return Tensor(shape, (self.elements(value)[source[0]],), same=True)
        return Tensor(
            shape,
            tuple(
                self.pick(value, tuple([source[e] for e in vector]))
                for vector in self.checked(shape)
            ),
        )

    def widen(self, value: Tensor, shape: Shape) -> Tensor:
        """Return a value broadcast to a shape."""
        if value.shape == shape:
            return value
        if value.same:
            return Tensor(shape, value.vectors, same=True)
        return self.arrange(value, np.broadcast_to(numbered(value.shape), shape))

    def each(
        self,
        shape: Shape,
        parts: Sequence[Tensor],
        emit: Callable[[Sequence[Operand]], Operand],
        *,
        heavy: DType | None = None,
    ) -> Tensor:
        """Return what `emit` makes of each vector of values broadcast to a shape.

        What is `heavy`, of that dtype, is a loop once there are `rolled` vectors.
        """
        wide = [self.widen(part, shape) for part in parts]
        if all(part.same for part in wide):
            return Tensor(shape, (emit([part.vectors[0] for part in wide]),), same=True)
        count = len(self.checked(shape))
        if heavy is not None and count >= self.rolled:
            return self._rolled(shape, wide, emit, heavy)
        vectors = [emit([part.vector(k) for part in wide]) for k in range(count)]
        return Tensor(shape, tuple(vectors))

    def _rolled(
        self,
        shape: Shape,
        parts: Sequence[Tensor],
        emit: Callable[[Sequence[Operand]], Operand],
        dtype: DType,
    ) -> Tensor:
        """Emit a loop over vectors, through memory: little text for many of them."""
        b, count = self.b, len(self.checked(shape))
        width = max(vector.type.lanes for part in parts for vector in part.vectors)
        memory = [None if part.same else self.spilled(part, width) for part in parts]
        results = b.alloc("rolled", dtype, count * width)
        with b.loop(0, count * width, width) as turn, self.scope():
            args = [
                part.vectors[0] if kept is None else b.load(kept, turn.var, width)
                for part, kept in zip(parts, memory, strict=True)
            ]
            b.store(results, turn.var, emit(args))
        vectors = tuple([b.load(results, k * width, width) for k in range(count)])
        value = Tensor(shape, vectors)
        self.derived[value, width] = results
        return value

    def spilled(self, value: Tensor, width: int) -> Buffer:
        """Return a thread's memory that has a value's vectors, in order."""

        def spill() -> Buffer:
            b, dtype = self.b, value.vectors[0].type.dtype
            kept = b.alloc("spilled", dtype, len(value.vectors) * width)
            for place, vector in enumerate(value.vectors):
                b.store(kept, place * width, self.spread(vector, width))
            return kept

        return self.known((value, width), spill)

    def let_each(self, op: str, shape: Shape, *parts: Tensor) -> Tensor:
        """Emit an operation of every element."""
        return self.each(shape, parts, lambda args: self.let(op, *args))

    def cast(self, value: Tensor, dtype: DType) -> Tensor:
        """Emit the conversion of every element."""
        return self.each(value.shape, [value], lambda a: self.b.cast(a[0], dtype))

    def _of_one(self, op: str, value: Operand, extent: int) -> Operand:
        """Emit the reduction of one value, taken so many times."""
        if extent == 1:
            return value
        half = self._of_one(op, value, extent // 2)
        whole = self.let(op, half, half)
        return self.let(op, whole, value) if extent % 2 else whole

    def _tree(self, op: str, vectors: Sequence[Operand]) -> Operand:
        lanes = max(vector.type.lanes for vector in vectors)
        return tree(self.b, op, [self.spread(vector, lanes) for vector in vectors])

    def totals(
        self, op: str, rows: Sequence[Sequence[Operand]], extent: int
    ) -> Sequence[Operand]:
        """Emit the reductions of lane axes of `extent`, each some vectors."""
        lanes = self.lanes
        rest = extent - (len(rows[0]) - 1) * lanes.width if rows else 0
        if rows and len(rows[0]) == 1:
            return lanes.totals(op, [(row[0], extent) for row in rows])
        joined = []
        for row in rows:
            last = lanes.masked(op, lanes.splat(row[-1]), rest)
            joined.append((self._tree(op, [*row[:-1], last]), lanes.width))
        return lanes.totals(op, joined)

    def scattered(self, scalars: Sequence[Operand], shape: Shape) -> Tensor:
        """Return the value of these elements."""
        if len(scalars) == 1:
            return Tensor(shape, tuple(scalars), same=True)
        vectors = [
            self.lanes.pack([scalars[e] for e in vector])
            for vector in self.checked(shape)
        ]
        return Tensor(shape, tuple(vectors))

    # Memory.

    def load(self, view: Memory) -> Tensor:
        """Emit the loads of a value."""
        b, lanes = self.b, self.lanes
        vectors = []
        for vector in self.checked(view.shape):
            offset, stride = _line(view, vector)
            at = b.at("add", view.base, offset)
            vectors.append(lanes.load(view, at, stride, len(vector)))
        return Tensor(view.shape, tuple(vectors), same=prod(view.shape) == 1)

    def store(self, view: Memory, value: Tensor) -> None:
        """Emit the stores of a value."""
        b, lanes = self.b, self.lanes
        value = self.widen(value, view.shape)
        for place, vector in enumerate(self.checked(view.shape)):
            offset, stride = _line(view, vector)
            at, operand = b.at("add", view.base, offset), value.vector(place)
            if len(vector) == 1:
                (operand,) = lanes.elements([operand], 1)
            else:
                operand = lanes.splat(operand)
            lanes.store(view, at, stride, len(vector), operand)

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


def _line(view: Memory, vector: Vector) -> tuple[int, int]:
    """Return where a vector's first element lies, and how far apart they are."""
    first = view.offset(vector[0])
    return first, view.offset(vector[1]) - first if len(vector) > 1 else 1
