"""Lanes on a GPU: a chain's values lie across the threads of its group.

Element e of a lane axis is in thread e % width of the group, in register e // width.
A group is a part of a warp, a warp, or a block of warps; within a warp its threads
meet in shuffles, beyond one in shared memory between barriers. All threads of a warp
stay together: those that have no chain of their own repeat one and write nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar, Final

from steelyard_kernels.dtypes import DType
from steelyard_kernels.expression.expr import Shape
from steelyard_kernels.ir.builder import Builder, Index
from steelyard_kernels.ir.loops import Buffer, Const, Operand
from steelyard_kernels.nest.carried.lanes import Lanes, tree
from steelyard_kernels.nest.carried.tensor import Memory, whole
from steelyard_kernels.schedule.carries import Knobs
from steelyard_kernels.schedule.gpu import WARP
from steelyard_kernels.schedule.warp import Group, across_group, across_warp

SHARED_BYTES: Final = 48 << 10  # of a block, without asking the driver for more
WORD: Final = 16  # bytes that a thread reads of shared memory at once
# Elements that are worth a way through memory, and bytes of them that each thread adds
# up there: on an H200 sums of 12 so made the seed's loop a quarter faster than shuffles
# by float32 (0.97 and 0.73 ms), a tenth by float64.
FEW: Final = 4
READ_BYTES: Final = 128


class GpuLanes(Lanes):
    """The group of threads that has one chain; `chain` is which, once placed."""

    target: ClassVar[str] = "cuda"
    owner: ClassVar[str] = "a block"

    def __init__(self, b: Builder, knobs: Knobs, extent: Operand | None) -> None:
        """Emit which thread of which chain this is, of `extent` chains (None: one)."""
        super().__init__(b, knobs.width, knobs.span, SHARED_BYTES)
        self.knobs = knobs
        self.in_step = knobs.chains > 1
        thread = b.thread()
        several = knobs.threads > self.width
        self.number = b.at("div", thread, self.width) if several else b.number(0)
        self.own_chain = self.number  # within its block
        self.lane = b.at("rem", thread, self.width) if several else thread
        if self.width == 1:
            self.lane = b.number(0)
        self.group = Group(self.lane, self.width)
        self.alone: Operand | None = None  # whether no other thread does the same
        self.live: Operand | None = None  # and there is such a chain
        self.chain: Operand = self._place(extent)
        self.first = b.let("equal", self.lane, b.number(0)) if self.width > 1 else None

    def _place(self, extent: Operand | None) -> Operand:
        """Emit the chain's number; a thread without one has the block's last."""
        b, chains = self.b, self.knobs.chains
        many = self.knobs.threads > self.width
        if many and self.knobs.threads // self.width != chains:
            self.alone = self.live = b.let("less", self.own_chain, b.number(chains))
            self.own_chain = b.at("minimum", self.own_chain, chains - 1)
        if extent is None:
            return b.number(0)
        chain = b.at("add", b.at("multiply", b.block(), chains), self.own_chain)
        if chains > 1:
            self.live = b.both(self.live, b.let("less", chain, extent))
            chain = b.at("minimum", chain, b.at("subtract", extent, 1))
        return chain

    def below(self, count: int) -> Operand | None:
        """Emit whether this thread has one of `count` elements; None: every one has."""
        if count >= self.width:
            return None
        return self.b.let("less", self.lane, self.b.number(count))

    def splat(self, scalar: Operand) -> Operand:
        """Return a scalar in every lane: every thread has it."""
        return scalar

    def numbers(self, dtype: DType) -> Operand:
        """Emit 0, 1, 2, ... by lane."""
        return self.b.cast(self.lane, dtype)

    def pack(self, scalars: Sequence[Operand]) -> Operand:
        """Emit the vector of these lanes; those behind have the first's."""
        b, vector = self.b, scalars[0]
        for lane, scalar in enumerate(scalars[1:], 1):
            if scalar is not scalars[0]:
                mine = b.let("equal", self.lane, b.number(lane))
                vector = b.let("where", mine, scalar, vector)
        return vector

    def load(self, view: Memory, at: Index, stride: int, count: int) -> Operand:
        """Emit lane l's load of what is at + l * stride, for l < count; one is everyone's."""
        b = self.b
        if count == 1:
            return b.load(view.buffer, at)
        at = b.at("add", b.at("multiply", self.lane, stride), at)
        return b.load(view.buffer, at, mask=self.below(count))

    def store(
        self, view: Memory, at: Index, stride: int, count: int, value: Operand
    ) -> None:
        """Emit lane l's store to at + l * stride, for l < count; one is the first's."""
        b = self.b
        mine: Operand | None = self.first
        if count > 1:
            at = b.at("add", b.at("multiply", self.lane, stride), at)
            mine = self.below(count)
        # Whoever has a chain writes; a block's memory is everyone's.
        may = self.live if view.buffer.space == "global" else self.alone
        b.store(view.buffer, at, value, b.both(may, mine))

    def scratch(self, dtype: DType, shape: Shape) -> Memory:
        """Return memory of this chain for the rows that a loop stacks.

        Raises Unsupported for more than a block has.
        """
        extent, chains = prod(shape), self.knobs.chains
        self._take(extent * chains * dtype.bytes)
        buffer = self.b.alloc("rows", dtype, extent * chains, "shared")
        return whole(buffer, self.b.at("multiply", self.own_chain, extent), shape)

    def settle(self) -> None:
        """Emit that what this group wrote to memory is there for all of its threads."""
        if self.width > WARP:
            self.b.effect("barrier")
        elif self.width > 1 or self.alone is not None:
            self.b.effect("warp_barrier")

    def totals(
        self, op: str, vectors: Sequence[tuple[Operand, int]]
    ) -> Sequence[Operand]:
        """Emit reductions ("add", "maximum" or "minimum") of lanes; every thread gets all."""
        if self.width == 1:
            return [vector for vector, _ in vectors]
        if self.width <= WARP:
            return [self._in_warp(op, vector, count) for vector, count in vectors]
        values = [self.masked(op, vector, count) for vector, count in vectors]
        return across_group(self.b, self.group, [op] * len(values), values)

    def _in_warp(self, op: str, vector: Operand, count: int) -> Operand:
        """Emit the reduction over a group within a warp.

        Where all elements are read at once by few words each thread adds them up.
        """
        b = self.b
        if vector.type.dtype.bytes * count <= READ_BYTES and self._has_room([vector]):
            return tree(b, op, self._by_memory([vector], count))
        return across_warp(b, op, self.masked(op, vector, count), self.width)

    def elements(self, vectors: Sequence[Operand], extent: int) -> Sequence[Operand]:
        """Emit the elements of a lane axis in order, each for every thread."""
        width = self.width
        if width == 1:
            return list(vectors[:extent])
        if width > WARP or (extent >= FEW and self._has_room(vectors)):
            return self._by_memory(vectors, extent)
        return [self._from_lane(vectors[e // width], e % width) for e in range(extent)]

    def _from_lane(self, vector: Operand, lane: int) -> Operand:
        b = self.b
        if isinstance(vector, Const):
            return vector
        return b.let("shuffle", vector, b.number(lane), b.number(self.width))

    def _has_room(self, vectors: Sequence[Operand]) -> bool:
        """Say whether a block's memory holds vectors, of a group as wide as a word."""
        taken = sum(each.type.dtype.bytes for each in vectors) * self.knobs.threads
        return self.width >= FEW and taken <= self.room

    def _by_memory(self, vectors: Sequence[Operand], extent: int) -> list[Operand]:
        """Emit the elements' way through shared memory, read by words.

        Each call has memory of its own: see `order.guarded` for what loops need besides.
        """
        b, dtype, size = self.b, vectors[0].type.dtype, len(vectors) * self.width
        groups = self.knobs.threads // self.width
        slot = b.alloc("shared", dtype, groups * size, "shared")
        self.room -= groups * size * dtype.bytes
        start = b.at("multiply", self.number, size) if groups > 1 else b.number(0)
        mine = b.at("add", start, self.lane)
        for place, vector in enumerate(vectors):
            b.store(slot, b.at("add", mine, place * self.width), vector)
        self.settle()
        word = min(WORD, self.width * dtype.bytes)
        lanes = word // dtype.bytes
        found: list[Operand] = []
        for at in range(0, extent, lanes):
            read = b.load(slot, b.at("add", start, at), lanes, alignment=word)
            found += [
                b.let("extract", read, b.number(k))
                for k in range(min(lanes, extent - at))
            ]
        return found

    def turns(self, dtype: DType) -> Operand:
        """Emit 0, 1, 2, ... up to `span`, by the lanes of what is computed ahead."""
        b = self.b
        if self.span == self.width:
            return self.numbers(dtype)
        return b.cast(b.at("rem", b.thread(), self.span), dtype)

    def keep(self, vector: Operand) -> Operand | Buffer:
        """Return what was computed ahead: it stays in its threads."""
        return vector

    def fetch(self, kept: Operand | Buffer, at: Operand) -> Operand:
        """Emit the element that lane `at`, below `span`, computed ahead."""
        assert not isinstance(kept, Buffer)
        if self.span == 1 or isinstance(kept, Const):
            return kept
        return self.b.let("shuffle", kept, at, self.b.number(self.span))

    def any(self, flag: Operand) -> Operand:
        """Emit whether a flag holds for any of the chains that are in step."""
        if self.width > WARP:
            return self.b.let("any_block", flag)
        return self.b.let("any_warp", flag) if self.in_step else flag
