"""Matrix products by a GPU's tiles: how one is tiled.

    i:mma64.warp2.grid j:mma128.grid k:mma16.r4.pipeline4.cluster2.serial
    i:mma16.r2.warp8.grid j:mma8.r16.grid k:mma16.r4.pipeline4.warp1.serial
    i:fma64.r1.warp2.grid j:fma32.r4.grid k:fma4.r8.pipeline3.warp1.serial

By wgmma a block multiplies 2 x 64 rows by 128 columns, with a warpgroup of 128 threads for
each 64 rows, in steps of 4 x 16 along k, 4 of which are on their way to shared memory at a
time. Clusters of 2 blocks share a tile and divide k; with `cluster2` at i each copies a
part of the columns' tile to both, whose rows follow each other. By mma.sync, the second
schedule, each of 8 warps multiplies 2 x 16 rows by 16 x 8 columns. By FMA, the third, a
thread has 8 rows and 2 of every 32 columns of 2 x 64 x 4 x 32 sums. Where the threads that multiply
copy too, `warp2` in place of `cluster2` has two groups of them divide k. With `blocks132`
so many blocks stay for one tile after another.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from math import prod
from typing import Final

from msgspec import Struct

from steelyard_kernels.dtypes import DType, int32, int64
from steelyard_kernels.nest.axes import Stored
from steelyard_kernels.schedule.contraction import (
    HALF,
    INSTRUCTION,
    LINE,
    UNIT,
    Product,
)
from steelyard_kernels.schedule.cores import EVERY, WGMMA, Cores
from steelyard_kernels.schedule.gpu import MAX_THREADS, Gpu, most_registers
from steelyard_kernels.schedule.schedule import Cut, Place, Schedule

ROWS: Final = 64  # of a warpgroup, by one instruction or by one of each warp
DEPTH: Final = INSTRUCTION // HALF  # of one instruction, along the reduced axis
REPEATS: Final = LINE // INSTRUCTION  # instructions a step: the widest swizzle
GROUP: Final = 128  # threads
PRODUCER: Final = 32  # threads of the warp that copies
CLUSTERS: Final = 8  # blocks of a cluster that any GPU takes
COLUMNS: Final = range(8, 257, 8)  # of one instruction
GROUPS: Final = range(1, 5)  # warpgroups of a block
SWIZZLED: Final = 64, 32, 16  # columns of rows in shared memory, by bulk copies
ATOM: Final = 1024  # bytes of 8 swizzled rows: where tiles begin
LINES: Final = 8  # of these
# What a thread needs beside its sums; NVRTC 13 takes 26 to 48 for tiles of 32 to 256.
OTHER_REGISTERS: Final = 40
BY_WARP_REGISTERS: Final = 64  # of factors too; 46 to 116 where there is room
REGISTER: Final = 4  # bytes
# By FMA, with a thread's sums and what it reads at a time: NVRTC 13 takes 80 to 248.
FMA_REGISTERS: Final = 28, 80
MASKED_REGISTERS: Final = 3  # of two copies that end where a matrix does
LEAST_INTEGERS: Final = 16  # columns that tensor cores multiply
# Registers of threads that copy and that multiply, where two warpgroups do and one copies.
HANDED_GROUPS: Final = 2
FEWER_REGISTERS: Final = 40
MORE_REGISTERS: Final = 232
CHUNK: Final = 64  # columns that are stored at a time


class Tiling(Struct, frozen=True, eq=False, dict=True):  # several ask what it needs
    """A product cut as a schedule says: `groups` of 64 rows by `columns` a block.

    `stages` steps are in shared memory at a time, `split` blocks of a cluster divide the
    depth, `blocks` stay for all tiles (0: each takes one). There are `repeats` of the
    groups' rows, which are multiplied by columns that are read once. `threads_copy`: those
    that multiply do, whatever could be copied in bulk. So many blocks are `sharing` each
    tile of columns.
    """

    product: Product
    groups: int
    columns: int
    stages: int
    split: int = 1
    blocks: int = 0
    cores: Cores = WGMMA
    repeats: int = 1
    threads_copy: bool = False
    sharing: int = 1

    @property
    def bulk(self) -> bool:
        """Whether a thread copies in bulk what others multiply."""
        product = self.product
        by_parts = product.dtype.bytes != HALF and not product.is_bulk
        alone = self.threads_copy or product.has_window or by_parts
        return self.cores.bulk and not alone

    @property
    def sliced(self) -> bool:
        """Whether threads of one block divide the depth, not blocks of a cluster."""
        return self.split > 1 and not self.bulk

    @property
    def cluster(self) -> int:
        """Blocks of a cluster."""
        return self.split * self.sharing if self.bulk else 1

    @property
    def sent(self) -> int:
        """Sums that one of those who divide the depth is sent, of one repeat of rows."""
        return (self.split - 1) * self.owned // 8 * 4 * self.consumers

    @property
    def slack(self) -> int:
        """Stages that threads which copy and multiply cannot fill while they multiply."""
        return 1 if self.cores.by_warp else 2

    @property
    def tall(self) -> int:
        """Rows of a tile."""
        return ROWS * self.groups * self.repeats

    @property
    def schedule(self) -> Schedule:
        """The schedule that says so."""
        batch, i, j, k = self.product.axes
        grid, place = (1, Place.GRID), self.cores.place
        wide = self.cores.columns or self.columns
        rows = ((self.cores.rows, place), (self.repeats, Place.REGISTER))
        columns = ((wide, place), (self.columns // wide, Place.REGISTER))
        warps = self.groups * ROWS // self.cores.rows
        shared = ((self.sharing, Place.CLUSTER),) * (self.sharing > 1)
        factors: dict[int, tuple[tuple[int, Place], ...]] = {
            i: (*rows[: 1 + self.cores.by_warp], (warps, Place.WARP), *shared, grid),
            j: (*columns[: 1 + self.cores.by_warp], grid),
            k: (
                (self.deep, place),
                (self.product.step // self.deep, Place.REGISTER),
                (self.stages, Place.PIPELINE),
                (self.split, Place.CLUSTER if self.bulk else Place.WARP),
                (1, Place.SERIAL),
            ),
        }
        factors |= dict.fromkeys(batch, (grid,))
        names = self.product.names
        cuts = tuple(Cut(names(loop), factors[loop]) for loop in sorted(factors))
        return Schedule(cuts, blocks=self.blocks)

    @property
    def deep(self) -> int:
        """Elements along the depth that are multiplied at a time."""
        return self.product.units if self.cores.exact else self.product.deep

    @property
    def tiles(self) -> tuple[int, int, int]:
        """How many tiles there are: of the batch, along the rows and the columns."""
        batch, m, n, _ = self.product.extents
        return batch, -(-m // self.tall), -(-n // self.columns)

    @property
    def grid(self) -> int:
        """The blocks of a launch."""
        return self.blocks or self.turns * self.cluster

    @property
    def turns(self) -> int:
        """How many tiles there are, or neighbours of which a cluster takes all."""
        return prod(self.tiles) // self.sharing

    @property
    def steps(self) -> int:
        """Steps along the depth that each block takes."""
        return -(-self.product.extents[3] // (self.product.step * self.split))

    @property
    def ring(self) -> bool:
        """Whether a stage is used again."""
        return bool(self.blocks) or self.stages < self.steps

    @property
    def owned(self) -> int:
        """Columns of the tile that one of those who divide the depth stores."""
        return self.columns // self.split

    @property
    def consumers(self) -> int:
        """Threads that multiply, of those that divide the depth."""
        return GROUP * self.groups

    @property
    def hands_over(self) -> bool:
        """Whether the threads that copy leave registers to those that multiply."""
        return self.bulk and self.blocks > 0 and self.groups == HANDED_GROUPS

    @property
    def threads(self) -> int:
        """Threads of a block."""
        copying = GROUP if self.hands_over else PRODUCER
        return self.consumers + copying if self.bulk else self.consumers * self.split

    @property
    def most_registers(self) -> int:
        """How many registers a thread that multiplies may have."""
        return MORE_REGISTERS if self.hands_over else most_registers(self.threads)

    @property
    def chunk(self) -> int:
        """Columns of one swizzled row of the second factor."""
        across = self.product.columns.across
        return next((n for n in SWIZZLED if across and self.columns % n == 0), 64)

    def is_staged(self, output: Stored) -> bool:
        """Say whether an output goes through shared memory: 64 columns and more gain."""
        wide = self.columns >= CHUNK and self.owned >= UNIT
        return wide and not self.cores.exact and self.product.is_staged(output)

    @property
    def taken(self) -> int:
        """Columns that are computed, and stored, at a time."""
        return self.owned if self.product.sums.reduces else min(CHUNK, self.owned)

    @property
    def pitch(self) -> int:
        """Elements from row to row of what is staged: 16 bytes more than 32 divide."""
        units = self.taken * HALF // UNIT
        return (units + 1 - units % 2) * UNIT // HALF

    def memory(self) -> Iterator[tuple[str, DType, int, int]]:
        """Yield a block's shared arrays: name, dtype, elements, alignment in bytes."""
        parts = self.split if self.sliced else 1
        product, stages = self.product, self.stages * parts
        factors = (product.rows, self.tall), (product.columns, self.columns)
        for name, (factor, count) in zip(("rows", "columns"), factors, strict=True):
            yield name, product.lying(factor), stages * count * product.step, ATOM
        if self.split > 1:
            yield "partial", product.added, self.sent * parts * self.repeats, UNIT
        outputs = [o for o in self.product.nest.outputs if self.is_staged(o)]
        for dtype in {o.value.node.dtype for o in outputs}:
            rows = parts * self.groups * ROWS
            yield f"staged_{dtype.name}", dtype, rows * self.pitch, UNIT
        if self.bulk:
            yield from [(name, int64, stages, 8) for name in ("full", "empty")]
            yield "arrived", int64, 1, 8

    @property
    def shared(self) -> int:
        """Bytes of a block's shared memory."""
        return self._shared

    @cached_property
    def _shared(self) -> int:
        end = 0
        for _, dtype, count, alignment in self.memory():
            end = -(-end // alignment) * alignment + count * dtype.bytes
        return end


def tiling_of(product: Product, schedule: Schedule) -> Tiling | None:
    """Return the tiling that a schedule says; None if it says something else."""
    cuts = {cut.axes: cut for cut in schedule.cuts}
    i, j, k = map(product.names, product.axes[1:])
    if not {i, j, k} <= cuts.keys():
        return None
    for cores in EVERY:
        tiling = Tiling(
            product,
            cuts[i].at(Place.WARP) * cores.rows // ROWS,
            cuts[j].at(cores.place) * cuts[j].at(Place.REGISTER),
            cuts[k].at(Place.PIPELINE),
            cuts[k].at(Place.CLUSTER) * cuts[k].at(Place.WARP),
            schedule.blocks,
            cores,
            cuts[i].at(Place.REGISTER),
            any(place is Place.WARP for _, place in cuts[k].factors),
            cuts[i].at(Place.CLUSTER),
        )
        if tiling.schedule == schedule:
            return tiling
    return None


def problem(tiling: Tiling, gpu: Gpu) -> str:
    """Say why a tiling does not fit, and what to choose instead; "" if it does."""
    why = _cores_problem(tiling) or _shape_problem(tiling) or _sharing_problem(tiling)
    return why or gpu.room_problem(
        tiling,
        registers(tiling) + tiling.cores.spare,
        "fewer stages, or smaller tiles",
        "fewer warpgroups or columns",
    )


def _cores_problem(tiling: Tiling) -> str:
    """Say what of a tile the cores have not."""
    cores = tiling.cores
    unit = cores.unit
    if tiling.product.added is int32:
        unit = max(unit, LEAST_INTEGERS)
    if tiling.product.columns.across:
        unit = SWIZZLED[-1] if tiling.bulk else SWIZZLED[-2]
    if tiling.columns not in COLUMNS or tiling.columns % unit:
        wanted = f"a multiple of {unit} up to {COLUMNS[-1]}"
        return f"has tiles of {tiling.columns} columns; choose {wanted}"
    if tiling.repeats not in range(1, cores.repeats + 1):
        wanted = f"choose up to {cores.repeats}"
        return f"has {tiling.repeats} times the rows of an instruction; {wanted}"
    most = CLUSTERS if tiling.bulk else MAX_THREADS // tiling.consumers
    pairs = cores.pairs
    if tiling.split not in range(1, most + 1) or tiling.columns // pairs % tiling.split:
        whose = "blocks; choose a cluster" if tiling.bulk else "parts; choose a number"
        return (
            f"divides {tiling.columns} columns among {tiling.split} {whose} up to {most} "
            f"that divides them by {pairs} at a time"
        )
    return ""


def _shape_problem(tiling: Tiling) -> str:
    """Say what of a tile's shape does not fit the product."""
    if tiling.groups not in GROUPS:
        return f"has {tiling.groups} warpgroups; choose 1 to {GROUPS[-1]}"
    if (
        tiling.split - 1
    ) * tiling.steps * tiling.product.step >= tiling.product.extents[3]:
        return (
            f"leaves one of {tiling.split} that divide the depth without a step; choose "
            "a smaller number"
        )
    if tiling.blocks and tiling.split > 1:
        return "has blocks that stay and others that divide the depth; choose one"
    _, m, n, _ = tiling.product.extents
    if tiling.product.sums.reduces and (tiling.columns != n or tiling.split > 1):
        return (
            f"has {tiling.owned} of {n} columns that are reduced with a thread's rows; "
            "choose tiles that hold them"
        )
    updates = any(o.updates is not None for o in tiling.product.nest.program.outputs)
    if updates and (m % tiling.tall or n % tiling.columns):
        return (  # threads beyond the edge read what others write
            f"updates an array of {m} x {n} in place by tiles of "
            f"{tiling.tall} x {tiling.columns}; choose tiles that divide it"
        )
    if tiling.bulk and tiling.ring and not tiling.product.is_bulk:
        why = f"{tiling.steps} steps of rows that begin at no multiples of {UNIT} bytes"
        return f"has {tiling.stages} stages for {why}; choose as many, a larger cluster"
    least = min(2 if tiling.bulk else 1 + tiling.slack, tiling.steps)
    if not least <= tiling.stages <= tiling.steps:
        return f"has {tiling.stages} stages; choose {least} to {tiling.steps}"
    return ""


def _sharing_problem(tiling: Tiling) -> str:
    """Say why blocks cannot share columns."""
    sharing, (_, down, _) = tiling.sharing, tiling.tiles
    if sharing == 1:
        return ""
    whole = tiling.product.step if tiling.product.columns.across else tiling.columns
    if not (tiling.bulk and tiling.product.is_bulk) or tiling.cluster > CLUSTERS:
        return f"has {tiling.cluster} blocks share copies of columns; choose fewer"
    if down % sharing or tiling.blocks % sharing or whole // LINES % sharing:
        return (
            f"has {sharing} blocks share columns, of {down} tiles of rows; choose a "
            f"number that divides them, the blocks that stay and {whole // LINES}"
        )
    return ""


def registers(tiling: Tiling) -> int:
    """Return about how many registers a thread needs."""
    if tiling.cores.exact:
        return _exact_registers(tiling)
    own = tiling.owned // 2 if tiling.split > 1 else 0
    own += tiling.repeats * tiling.columns // 2 * tiling.product.promotes
    own += tiling.columns // 2 * tiling.product.sums.reduces
    others = BY_WARP_REGISTERS if tiling.cores.by_warp else OTHER_REGISTERS
    return tiling.repeats * tiling.columns // 2 + own + others + _places(tiling)


def _exact_registers(tiling: Tiling) -> int:
    """Return about how many registers a thread needs that multiplies by FMA.

    It reads 16 bytes of each of its columns, and of one row after another.
    """
    others, least = FMA_REGISTERS
    sums = tiling.repeats * tiling.columns // 2 * tiling.product.added.bytes
    read = (2 * tiling.columns // tiling.cores.pairs + 1) * UNIT
    return max((sums + read) // REGISTER + others, least) + _places(tiling)


def _places(tiling: Tiling) -> int:
    """Return how many registers hold where a thread copies, and whether anything is there."""
    product, found = tiling.product, 0
    _, m, n, depth = product.extents
    deep = depth % (product.step * tiling.split)
    for factor, extent, count in (
        (product.rows, m, tiling.tall),
        (product.columns, n, tiling.columns),
    ):
        turns = count * product.step // (tiling.consumers * factor.lanes)
        if factor.window is not None and not factor.across:  # rows' places and guards
            found += turns * len(factor.window.guards)
        elif tiling.cores.exact and (deep or extent % count):
            found += MASKED_REGISTERS * turns // 2
    return found
