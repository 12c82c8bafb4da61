"""Lanes: how a target holds one small vector, and what can be done across it.

One walker emits a chain for all targets through `Lanes`. `CpuLanes` are SIMD vectors
of one thread, `cuda_lanes.CudaLanes` the threads of a group, `Ahead` the next
iterations of a loop: there every element is a vector of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Protocol, TypeAlias

from steelyard_kernels.dtypes import DType
from steelyard_kernels.errors import CompilerBug, Unsupported
from steelyard_kernels.ir.builder import Builder, Index, const
from steelyard_kernels.ir.loops import Buffer, Const, Operand
from steelyard_kernels.monoids import MONOIDS

Kept: TypeAlias = Operand | Buffer

STACK_BYTES = 1 << 18  # of one thread's scratch: a pool's threads have 8 MiB


class Lanes(Protocol):
    """What the walker asks of a target; see `CpuLanes` for what each gives.

    `width` elements are one vector; `span` iterations are computed ahead at once (0:
    none). Where chains are `in_step` one that is done waits for its neighbours.
    """

    b: Builder
    width: int
    span: int
    in_step: bool

    def splat(self, scalar: Operand) -> Operand:
        """Return a scalar in every lane."""
        ...

    def numbers(self, dtype: DType) -> Operand:
        """Return 0, 1, 2, ... by lane."""
        ...

    def pack(self, scalars: Sequence[Operand]) -> Operand:
        """Return a vector of these lanes; those behind hold anything."""
        ...

    def elements(self, vectors: Sequence[Operand], extent: int) -> Sequence[Operand]:
        """Return the elements of a lane axis of `extent`, in order."""
        ...

    def masked(self, op: str, vector: Operand, count: int) -> Operand:
        """Return a vector whose lanes from `count` on change no total."""
        ...

    def totals(
        self, op: str, vectors: Sequence[tuple[Operand, int]]
    ) -> Sequence[Operand]:
        """Return, of each vector, "add", "maximum" or "minimum" of the lanes below a count."""
        ...

    def load(self, buffer: Buffer, base: Index, stride: int, count: int) -> Operand:
        """Return buffer[base + l * stride] in each lane l < count."""
        ...

    def store(
        self, buffer: Buffer, base: Index, stride: int, count: int, vector: Operand
    ) -> None:
        """Write each lane l < count to buffer[base + l * stride]."""
        ...

    def load_uniform(self, buffer: Buffer, index: Index) -> Operand:
        """Return one element."""
        ...

    def store_uniform(self, buffer: Buffer, index: Index, value: Operand) -> None:
        """Write one element."""
        ...

    def scratch(self, name: str, dtype: DType, extent: int) -> tuple[Buffer, Operand]:
        """Return memory of this chain and where it begins; Unsupported if too much."""
        ...

    def settle(self) -> None:
        """See to it that what the chain wrote to memory can be read."""
        ...

    def turns(self, dtype: DType) -> Operand:
        """Return 0, 1, 2, ... below `span`: the iterations that are computed ahead."""
        ...

    def keep(self, vector: Operand) -> Kept:
        """Have what was computed ahead ready for `fetch`."""
        ...

    def fetch(self, kept: Kept, at: Operand) -> Operand:
        """Return what was kept for iteration `at` of those ahead, a scalar."""
        ...

    def any(self, flag: Operand) -> Operand:
        """Return whether a flag holds for any of the chains that are in step."""
        ...


class CpuLanes:
    """Vectors of one thread; scalars are scalars."""

    in_step = False  # a chain has its thread to itself

    def __init__(self, b: Builder, width: int, span: int) -> None:
        self.b = b
        self.width = width
        self.span = span
        self.room = STACK_BYTES

    def splat(self, scalar: Operand) -> Operand:
        """Return a scalar in every lane."""
        return self.b.splat(scalar, self.width)

    def numbers(self, dtype: DType) -> Operand:
        """Emit 0, 1, 2, ... by lane."""
        return self.b.iota(self.width, dtype)

    def pack(self, scalars: Sequence[Operand]) -> Operand:
        """Emit the vector of these lanes; those behind hold anything."""
        b, vector = self.b, self.splat(scalars[0])
        for lane, scalar in enumerate(scalars[1:], 1):
            if scalar is not scalars[0]:
                vector = b.let("insert", vector, scalar, b.number(lane))
        return vector

    def elements(self, vectors: Sequence[Operand], extent: int) -> list[Operand]:
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

    def masked(self, op: str, vector: Operand, count: int) -> Operand:
        """Emit a vector whose lanes from `count` on change no total."""
        if count >= self.width:
            return vector
        b, none = self.b, neutral(op, vector.type.dtype)
        below = b.mask_below(count, self.width)
        return b.let("where", below, vector, b.splat(none, self.width))

    def totals(self, op: str, vectors: Sequence[tuple[Operand, int]]) -> list[Operand]:
        """Emit, for each vector, "add", "maximum" or "minimum" of its lanes below a count."""
        return [self._total(op, vector, count) for vector, count in vectors]

    def _total(self, op: str, vector: Operand, count: int) -> Operand:
        if self.width == 1:
            return vector
        whole = self.masked(op, self.splat(vector), count)
        return self.b.let(f"reduce_{op}", whole)

    def load(self, buffer: Buffer, base: Index, stride: int, count: int) -> Operand:
        """Emit the load of buffer[base + l * stride] into each lane l < count."""
        b = self.b
        if stride != 1 and count > 1:
            at = [b.at("add", base, lane * stride) for lane in range(count)]
            return self.pack([b.load(buffer, place) for place in at])
        mask = None if count == self.width else self._below(count)
        return b.load(buffer, base, self.width, mask)

    def store(
        self, buffer: Buffer, base: Index, stride: int, count: int, vector: Operand
    ) -> None:
        """Emit the store of each lane l < count to buffer[base + l * stride]."""
        b = self.b
        if stride != 1 and count > 1:
            for lane, value in enumerate(self.elements([vector], count)):
                b.store(buffer, b.at("add", base, lane * stride), value)
            return
        mask = None if count == self.width else self._below(count)
        b.store(buffer, base, vector, mask)

    def _below(self, count: int) -> Operand:
        return self.b.mask_below(count, self.width)

    def load_uniform(self, buffer: Buffer, index: Index) -> Operand:
        """Emit the load of one element."""
        return self.b.load(buffer, index)

    def store_uniform(self, buffer: Buffer, index: Index, value: Operand) -> None:
        """Emit the store of one element."""
        self.b.store(buffer, index, value)

    def scratch(self, name: str, dtype: DType, extent: int) -> tuple[Buffer, Operand]:
        """Return memory of this chain and where it begins.

        Raises Unsupported for more than a thread's stack should hold.
        """
        size = extent * dtype.bytes
        if size > self.room:
            raise Unsupported(
                f"{name} takes {size} bytes of a thread's {self.room} that are left; "
                "stack less, or give the loop an output to stack to."
            )
        self.room -= size
        return self.b.alloc(name, dtype, extent), self.b.number(0)

    def settle(self) -> None:
        """Emit nothing: a thread reads what it wrote."""

    def turns(self, dtype: DType) -> Operand:
        """Emit 0, 1, 2, ... below `span`: the iterations that are computed ahead."""
        return self.b.iota(self.span, dtype)

    def keep(self, vector: Operand) -> Kept:
        """Emit that what was computed ahead is there for `fetch`."""
        vector = self.b.splat(vector, self.span)
        kept = self.b.alloc("ahead", vector.type.dtype, self.span)
        self.b.store(kept, 0, vector)
        return kept

    def fetch(self, kept: Kept, at: Operand) -> Operand:
        """Emit what was kept for iteration `at`, a scalar."""
        if not isinstance(kept, Buffer):
            raise CompilerBug("what is fetched on a CPU was not kept in memory")
        return self.b.load(kept, at)

    def any(self, flag: Operand) -> Operand:
        """Return a flag: there is one chain."""
        return flag


class Ahead:
    """The next iterations side by side: every element is a vector over them.

    It emits plain operations only, and so is every target's; memory is not asked.
    """

    width = 1
    in_step = False

    def __init__(self, b: Builder) -> None:
        self.b = b
        self.span = 0

    def splat(self, scalar: Operand) -> Operand:
        """Return a value, which is the same in its one lane."""
        return scalar

    def numbers(self, dtype: DType) -> Operand:
        """Return the number of the one lane."""
        return const(0, dtype)

    def pack(self, scalars: Sequence[Operand]) -> Operand:
        """Return the one element."""
        return scalars[0]

    def elements(self, vectors: Sequence[Operand], extent: int) -> list[Operand]:
        """Return the elements: each is a vector."""
        return list(vectors[:extent])

    def masked(self, op: str, vector: Operand, count: int) -> Operand:  # noqa: ARG002 - no lane is left over
        """Return the vector."""
        return vector

    def totals(self, op: str, vectors: Sequence[tuple[Operand, int]]) -> list[Operand]:  # noqa: ARG002 - one lane
        """Return each vector's one element."""
        return [vector for vector, _ in vectors]


def neutral(op: str, dtype: DType) -> Const:
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
