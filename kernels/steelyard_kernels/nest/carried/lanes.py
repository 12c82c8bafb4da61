"""Lanes: how a target holds one small vector, and what can be done across it.

One emitter serves all targets through these. Here are a CPU's vectors, by themselves
and with a chain in each lane; `gpu_lanes.GpuLanes` are the threads of a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod
from typing import ClassVar, Final

from msgspec.structs import replace

from steelyard_kernels.dtypes import DType
from steelyard_kernels.errors import Unsupported
from steelyard_kernels.expression.expr import Shape
from steelyard_kernels.ir.builder import Builder, Index, const
from steelyard_kernels.ir.loops import Buffer, Const, Operand
from steelyard_kernels.monoids import MONOIDS
from steelyard_kernels.nest.carried.tensor import BESIDE, Memory, contiguous, whole

STACK_BYTES: Final = 1 << 18  # of one thread's scratch: a pool's threads have 8 MiB


class Lanes:
    """Vectors of one thread; scalars are scalars.

    `width` elements are one vector; `span` iterations are computed ahead at once. Where
    chains are `in_step` one that is done waits for its neighbours. Of width 1 every
    element is an operand, whatever its lanes are: of the iterations computed ahead.
    """

    target: ClassVar[str] = "cpu"
    in_step = False  # a chain has its thread to itself
    owner: ClassVar[str] = "a thread"

    def __init__(
        self, b: Builder, width: int, span: int = 1, room: int = STACK_BYTES
    ) -> None:
        self.b = b
        self.width = width
        self.span = span
        self.room = room  # bytes of scratch memory that are left

    def splat(self, scalar: Operand) -> Operand:
        """Return a scalar in every lane."""
        return scalar if self.width == 1 else self.b.splat(scalar, self.width)

    def numbers(self, dtype: DType) -> Operand:
        """Emit 0, 1, 2, ... by lane."""
        return self.b.iota(self.width, dtype)

    def pack(self, scalars: Sequence[Operand]) -> Operand:
        """Emit the vector of these lanes; those behind are undefined."""
        b, vector = self.b, self.splat(scalars[0])
        for lane, scalar in enumerate(scalars[1:], 1):
            if scalar is not scalars[0]:
                vector = b.let("insert", vector, scalar, b.number(lane))
        return vector

    def elements(self, vectors: Sequence[Operand], extent: int) -> Sequence[Operand]:
        """Emit the elements of a lane axis of `extent`, as scalars in order."""
        if self.width == 1:
            return list(vectors[:extent])
        return [self._element(vectors, e) for e in range(extent)]

    def _element(self, vectors: Sequence[Operand], element: int) -> Operand:
        vector, lane = vectors[element // self.width], element % self.width
        if isinstance(vector, Const):
            return const(vector.value, vector.type.dtype)
        if vector.type.lanes == 1:
            return vector
        return self.b.let("extract", vector, self.b.number(lane))

    def below(self, count: int) -> Operand | None:
        """Emit which lanes are among the first `count`; None: all."""
        return None if count >= self.width else self.b.mask_below(count, self.width)

    def masked(self, op: str, vector: Operand, count: int) -> Operand:
        """Emit a vector whose lanes from `count` on change no total."""
        inside = self.below(count)
        if inside is None:
            return vector
        none = self.splat(_neutral(op, vector.type.dtype))
        return self.b.let("where", inside, vector, none)

    def totals(
        self, op: str, vectors: Sequence[tuple[Operand, int]]
    ) -> Sequence[Operand]:
        """Emit, for each vector, "add", "maximum" or "minimum" of its lanes below a count."""
        if self.width == 1:
            return [vector for vector, _ in vectors]
        reduced = f"reduce_{op}"
        return [
            self.b.let(reduced, self.masked(op, self.splat(v), n)) for v, n in vectors
        ]

    def load(self, view: Memory, at: Index, stride: int, count: int) -> Operand:
        """Emit the load of what is at + l * stride into each lane l < count.

        One element is a scalar.
        """
        b, buffer = self.b, view.buffer
        if count == 1:
            return b.load(buffer, at)
        if stride != 1:
            places = [b.at("add", at, lane * stride) for lane in range(count)]
            return self.pack([b.load(buffer, place) for place in places])
        return b.load(buffer, at, self.width, self.below(count))

    def store(
        self, view: Memory, at: Index, stride: int, count: int, value: Operand
    ) -> None:
        """Emit the store of each lane l < count to at + l * stride."""
        b, buffer = self.b, view.buffer
        if count == 1:
            b.store(buffer, at, value)
        elif stride != 1:
            for lane, each in enumerate(self.elements([value], count)):
                b.store(buffer, b.at("add", at, lane * stride), each)
        else:
            b.store(buffer, at, value, self.below(count))

    def own(self, part: Memory, apart: int) -> Memory:  # noqa: ARG002 - see `ChainLanes`
        """Return a chain's part of an array; its neighbours' lie `apart` from one another."""
        return part

    def scratch(self, dtype: DType, shape: Shape) -> Memory:
        """Return memory of this chain for the rows that a loop stacks.

        Raises Unsupported where there is not as much left.
        """
        self._take(prod(shape) * dtype.bytes)
        buffer = self.b.alloc("rows", dtype, prod(shape))
        return whole(buffer, self.b.number(0), shape)

    def _take(self, size: int) -> None:
        """Take so many bytes of scratch memory; raises Unsupported if there are none."""
        if size > self.room:
            raise Unsupported(
                f"rows take {size} bytes of {self.owner}'s {self.room} that are left; "
                "stack less, or give the loop an output to stack to."
            )
        self.room -= size

    def settle(self) -> None:
        """Emit that what the chain wrote to memory can be read: a thread reads it anyway."""

    def turns(self, dtype: DType) -> Operand:
        """Emit 0, 1, 2, ... below `span`: the iterations that are computed ahead."""
        return self.b.iota(self.span, dtype)

    def keep(self, vector: Operand) -> Operand | Buffer:
        """Emit that what was computed ahead is there for `fetch`."""
        vector = self.b.splat(vector, self.span)
        kept = self.b.alloc("ahead", vector.type.dtype, self.span)
        self.b.store(kept, 0, vector)
        return kept

    def fetch(self, kept: Operand | Buffer, at: Operand) -> Operand:
        """Emit what was kept for iteration `at`, a scalar."""
        assert isinstance(kept, Buffer)
        return self.b.load(kept, at)

    def any(self, flag: Operand) -> Operand:
        """Return whether a flag holds for any of the chains that are in step."""
        return flag


class ChainLanes(Lanes):
    """Chains side by side: each lane has one, and every element is a vector.

    Many chains of small values fill vectors whatever a chain's shapes are, and no sum
    goes across lanes. They take turns together: one that is done waits for the others.
    Where fewer are left the last one is in several lanes, and stored as often. What all
    have alike is a scalar.
    """

    in_step = True

    def __init__(self, b: Builder, chains: int) -> None:
        super().__init__(b, 1)
        self.chains = chains
        self.steps: list[Operand] = []  # from the first chain to each lane's
        self.apart: dict[int, list[Operand]] = {}

    def place(self, first: Operand, end: Operand) -> None:
        """Emit which chains these are: from `first` on, and none from `end` on."""
        b = self.b
        most = b.at("subtract", b.at("subtract", end, 1), first)
        self.apart = {}
        self.steps = [b.at("minimum", most, lane) for lane in range(self.chains)]

    def splat(self, scalar: Operand) -> Operand:
        """Return a scalar for every chain."""
        return self.b.splat(scalar, self.chains)

    def any(self, flag: Operand) -> Operand:
        """Emit whether a flag holds for any chain."""
        return self.b.let("reduce_bitwise_or", self.splat(flag))

    def own(self, part: Memory, apart: int) -> Memory:
        """Emit, where an array is first named, where each lane's part of it begins."""
        if apart not in self.apart:
            steps = [self.b.at("multiply", step, apart) for step in self.steps]
            self.apart[apart] = steps
        return replace(part, apart=apart)

    def scratch(self, dtype: DType, shape: Shape) -> Memory:
        """Return memory for all of the chains, which lie beside one another in it."""
        found = super().scratch(dtype, (*shape, self.chains))
        strides = tuple([stride * self.chains for stride in contiguous(shape)])
        return Memory(found.buffer, found.base, shape, strides, BESIDE)

    def load(self, view: Memory, at: Index, stride: int, count: int) -> Operand:  # noqa: ARG002 - one
        """Emit the load of an element of every chain, whose arrays lie `apart`."""
        b = self.b
        if view.apart in {0, BESIDE}:
            return b.load(view.buffer, at, self.chains if view.apart else 1)
        vector: Operand | None = None
        for lane, step in enumerate(self.apart[view.apart]):
            value = b.load(view.buffer, b.at("add", at, step))
            if vector is None:
                vector = self.splat(value)
            else:
                vector = b.let("insert", vector, value, b.number(lane))
        assert vector is not None
        return vector

    def store(
        self,
        view: Memory,
        at: Index,
        stride: int,  # noqa: ARG002 - one element
        count: int,  # noqa: ARG002
        value: Operand,
    ) -> None:
        """Emit the store of an element of every chain."""
        b = self.b
        if view.apart == 0:
            b.store(view.buffer, at, value)
            return
        vector = self.splat(value)
        if view.apart == BESIDE:
            b.store(view.buffer, at, vector)
            return
        for lane, step in enumerate(self.apart[view.apart]):
            one = b.let("extract", vector, b.number(lane))
            b.store(view.buffer, b.at("add", at, step), one)


def _neutral(op: str, dtype: DType) -> Const:
    """Return what changes no total of an operation that reduces."""
    rows = (row for row in MONOIDS.values() if row.combine == op)
    return const(next(rows).neutral(dtype), dtype)


def tree(b: Builder, op: str, values: Sequence[Operand]) -> Operand:
    """Emit a reduction of values by pairs, so that few wait for another."""
    found = list(values)
    while len(found) > 2:
        pairs = zip(found[::2], found[1::2], strict=False)
        odd = found[len(found) // 2 * 2 :]
        found = [*[b.let(op, x, y) for x, y in pairs], *odd]
    return reduce(lambda x, y: b.let(op, x, y), found)
