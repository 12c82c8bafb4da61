"""The lowering of a matrix product for tensor cores: what all ways to copy share.

Each warpgroup multiplies 64 rows, or some times 64, by the block's columns, and `sums`
stores what follows from its sums. Those that divide the depth send each other the sums of
columns that others store, which add them in one order.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import ExitStack
from typing import Final

from msgspec.structs import replace

from steelyard_kernels.ir.builder import const
from steelyard_kernels.ir.loops import Buffer, Multiply, Operand
from steelyard_kernels.nest.loads import Loads, sources_of
from steelyard_kernels.nest.sums import Position, Sums
from steelyard_kernels.nest.tiles import Tiles
from steelyard_kernels.schedule.contraction import UNIT
from steelyard_kernels.schedule.product_tiling import REPEATS, ROWS, Tiling

TOGETHER: Final = 8  # rows of tiles that blocks which stay walk together, for the L2


class Lowering(Tiles):
    """Emits one block of a tiling."""

    def __init__(self, tiling: Tiling) -> None:
        product = tiling.product
        super().__init__(tiling, {"rows": product.rows, "columns": product.columns})
        zero = self.b.number(0)
        self.rank, self.own = self.ranked() if tiling.split > 1 else (zero, self.thread)
        # Which of the blocks that share columns this is.
        self.share = zero  # which of the blocks that share columns this is
        if tiling.sharing > 1:
            member = self.b.at("rem", self.block, tiling.cluster)
            self.share = self.b.at("div", member, tiling.split)
        sums = tiling.repeats * tiling.columns // 2
        self.sums = self.b.alloc("sums", product.added, sums, "register")
        self.part = self.sums  # those of a step, where they are added up apart
        if product.promotes:
            self.part = self.b.alloc("part", product.added, sums, "register")
        threads = self.own, self.thread
        self.stores = Sums(tiling, self.emitter, self.memory, threads)
        sources = sources_of(tiling, self.args.inputs, self.memory)
        self.loads = Loads(tiling, self.b, sources, self.own)
        self.opened = ExitStack()  # loops at which windows are read
        self.loaded = [source.factor for source in self.loads.sources]

    @abstractmethod
    def ranked(self) -> tuple[Operand, Operand]:
        """Emit which of those that divide the depth this is, and which of its threads."""

    def depth(self, step: Operand) -> Operand:
        """Emit where a step of this block begins along the depth."""
        b = self.b
        own = b.at("multiply", self.rank, self.tiling.steps)
        return b.at("multiply", b.at("add", own, step), self.product.step)

    def position(self, tile: Operand) -> Position:
        """Emit which matrix of the batch, row and column a tile begins at."""
        b, (batch, down, over), sharing = self.b, self.tiling.tiles, self.tiling.sharing
        matrix, down = b.number(0), down // sharing
        if batch > 1:
            matrix = b.at("div", tile, down * over)
            tile = b.at("rem", tile, down * over)
        if self.tiling.blocks:  # so many rows of tiles together, by columns
            first = b.at("multiply", b.at("div", tile, TOGETHER * over), TOGETHER)
            inside = b.at("rem", tile, TOGETHER * over)
            high = b.at("minimum", b.at("subtract", down, first), TOGETHER)
            row = b.at("add", first, b.at("rem", inside, high))
            column = b.at("div", inside, high)
        else:  # neighbours read the same columns
            row, column = b.at("rem", tile, down), b.at("div", tile, down)
        row = b.at("add", b.at("multiply", row, sharing), self.share)
        return Position(
            self.matrix(matrix),
            b.at("multiply", row, self.tiling.tall),
            b.at("multiply", column, self.tiling.columns),
        )

    def step(self, step: Operand, stage: Operand) -> None:
        """Emit the products of one stage, for warpgroups as one group of them."""
        b, tiling, line = self.b, self.tiling, ROWS * self.product.step
        by_warp, apart = tiling.cores.by_warp, tiling.groups * line
        rows = b.at("multiply", stage, tiling.repeats * apart)
        if tiling.groups > 1:
            rows = b.at("add", rows, b.at("multiply", self.group, line))
        columns = b.at("multiply", stage, tiling.columns * self.product.step)
        promotes = self.product.promotes
        if not by_warp:
            b.effect("mma_begin")
        for k in range(REPEATS):
            left = self.piece("rows", self.product.rows, rows, ROWS, k)
            right = self.piece(
                "columns", self.product.columns, columns, tiling.chunk, k
            )
            firsts = [left.first + each * apart for each in range(tiling.repeats)]
            lefts = tuple([replace(left, first=first) for first in firsts])
            more = b.number(int(k > 0)) if promotes else self.goes_on(k, step)
            b.body.append(Multiply(self.part, lefts, right, more, by_warp))
        if not by_warp:
            b.effect("mma_commit")
        if promotes:
            self.promote()

    def goes_on(self, k: int, step: Operand) -> Operand:
        """Emit whether an instruction of a step adds to sums that there are."""
        return self.b.number(1) if k or self.tiling.cores.by_warp else step

    def clear(self) -> None:
        """Emit sums of nothing, where the first step adds to them."""
        b, product = self.b, self.product
        if self.tiling.cores.by_warp or product.promotes:
            zero = const(0, product.added)
            for place in range(self.tiling.repeats * self.tiling.columns // 2):
                b.store(self.sums, place, zero)

    def promote(self) -> None:
        """Emit adding a step's sums to those of all steps, in float32."""
        b = self.b
        if not self.tiling.cores.by_warp:
            b.effect("mma_wait", self.part, b.number(0))
        for place in range(0, self.tiling.repeats * self.tiling.columns // 2, 2):
            both = [b.load(each, place, 2) for each in (self.sums, self.part)]
            b.store(self.sums, place, b.let("add", *both))

    def await_products(self, left: int) -> None:
        """Emit the wait until so many steps' products are under way."""
        if not (self.tiling.cores.by_warp or self.product.promotes):
            self.b.effect("mma_wait", self.sums, self.b.number(left))

    @abstractmethod
    def send(self, rank: int, place: Operand, four: Operand) -> None:
        """Emit sums for one of those that divide the depth."""

    @abstractmethod
    def meet(self) -> Operand:
        """Emit the wait for all sums; return where this one's are."""

    def exchanged(self, first: int = 0) -> Buffer:
        """Emit the exchange of partial sums; return those of the columns that are its own."""
        b, tiling = self.b, self.tiling
        count = tiling.owned // 8  # of four sums, of two rows and two columns
        own = b.alloc("own", self.product.added, 4 * count, "register")
        partial, apart = self.memory["partial"], 4 * tiling.consumers
        mine = b.at("multiply", self.own, 4)
        for rank in range(tiling.split):
            with b.branch(b.let("equal", self.rank, b.number(rank))) as kept:
                for k in range(0, 4 * count, 4):
                    b.store(own, k, b.load(self.sums, first + rank * 4 * count + k, 4))
                kept.otherwise()
                below = b.let("less", self.rank, b.number(rank))
                lower = b.at("subtract", self.rank, 1)
                place = b.let("where", below, self.rank, lower)
                to = b.at("add", b.at("multiply", place, count * apart), mine)
                for k in range(count):
                    four = b.load(self.sums, first + 4 * (rank * count + k), 4)
                    self.send(rank, b.at("add", to, k * apart), four)
        mine = b.at("add", mine, self.meet())
        for other in range(tiling.split - 1):
            for k in range(count):
                at = b.at("add", mine, (other * count + k) * apart)
                more = b.load(partial, at, 4, alignment=UNIT)
                total = b.let("add", b.load(own, 4 * k, 4), more)
                b.store(own, 4 * k, total)
        return own
