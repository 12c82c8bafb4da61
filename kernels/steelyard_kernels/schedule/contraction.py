"""Matrix products by Hopper's tensor cores: which nests are one, and how one is tiled.

    i:mma64.warp2.grid j:mma128.grid k:mma16.r4.pipeline4.cluster2.serial

A block multiplies 2 x 64 rows by 128 columns, with a warpgroup of 128 threads for each 64
rows, in steps of 4 x 16 along k, 4 of which are on their way to shared memory at a time.
Clusters of 2 blocks share a tile and divide k. `blocks132` stay for one tile after another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Final

from steelyard_kernels.dtypes import HALVES, DType, float32, int64
from steelyard_kernels.expression.expr import Cast, Input
from steelyard_kernels.expression.indices import Index, Part, axis
from steelyard_kernels.nest.axes import NAMES, Nest, Stored, Value
from steelyard_kernels.nest.contraction import Contraction, contraction_of
from steelyard_kernels.schedule.gpu import Gpu, most_registers
from steelyard_kernels.schedule.schedule import Cut, Place, Schedule

ROWS: Final = 64  # of one instruction, which a warpgroup issues
DEPTH: Final = 16  # of one instruction, along the reduced axis
REPEATS: Final = 4  # instructions a step: rows of 128 bytes, the widest swizzle
STEP: Final = DEPTH * REPEATS
HALF: Final = 2  # bytes
GROUP: Final = 128  # threads
PRODUCER: Final = 32  # threads of the warp that copies
UNIT: Final = 16  # bytes that every stride of a bulk copy is a multiple of
COLUMNS: Final = range(8, 257, 8)  # of one instruction
GROUPS: Final = range(1, 5)  # warpgroups of a block
MOST_BATCH: Final = 3  # axes, beside the two of a matrix: a tensor has up to five
CLUSTERS: Final = range(1, 9)  # blocks of a cluster that any GPU takes
ATOM: Final = 1024  # bytes of 8 swizzled rows: where tiles begin
# What a thread needs beside its sums; NVRTC 13 takes 26 to 48 for tiles of 32 to 256.
OTHER_REGISTERS: Final = 40
# Registers of threads that copy and that multiply, where two warpgroups do and one copies.
HANDED_GROUPS: Final = 2
FEWER_REGISTERS: Final = 40
MORE_REGISTERS: Final = 232
CHUNK: Final = 64  # columns that are stored at a time


@dataclass(frozen=True, slots=True, eq=False)
class Factor:
    """An array of halves that a product reads: rows along the reduced axis, or `across`.

    Strides are in elements: `pitch` from row to row, `batch` between matrices along each
    axis of the batch (0: one for all), where so many neighbours as `shared` says have
    one; it begins `first` elements behind its array. `bulk`: all are of 16 bytes.
    """

    source: Input
    across: bool
    pitch: int
    batch: tuple[int, ...]
    shared: tuple[int, ...]
    first: int
    bulk: bool

    def is_paired(self, own: int, depth: int) -> bool:
        """Say whether neighbours of a row are pairs that begin at 4 bytes."""
        lengths = (own if self.across else depth, self.pitch, *self.batch, self.first)
        return not any(length % 2 for length in lengths)


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """A nest that is the products of rows and columns, and what is made of each sum.

    `axes` are those of the batch, the rows, the columns and the reduced one.
    """

    sums: Contraction
    dtype: DType
    axes: tuple[tuple[int, ...], int, int, int]
    rows: Factor
    columns: Factor

    @property
    def nest(self) -> Nest:
        """What is emitted."""
        return self.sums.nest

    @property
    def extents(self) -> tuple[int, int, int, int]:
        """How many products there are, their rows, columns and depth."""
        return self.sums.extents

    @property
    def is_bulk(self) -> bool:
        """Whether bulk copies read both factors."""
        return self.rows.bulk and self.columns.bulk

    @property
    def touched(self) -> list[Index]:
        """Where arrays are read and written for each element of the product."""
        read = [v.offset for v in self.sums.behind if v.source is not None]
        return [*read, *[output.offset for output in self.nest.outputs]]

    def lies(self, offset: Index, lanes: int, axis: int | None = None) -> bool:
        """Say whether so many columns from a multiple of them on are aligned vectors.

        Or what else is along an axis.
        """
        j = self.axes[2] if axis is None else axis
        others = [step for term, step in offset.terms if term != j]
        inside = offset.step(j) in {0, 1} and not self.nest.extents[j] % lanes
        aligned = all(n % lanes == 0 for n in (offset.constant, *others))
        return inside and (aligned or offset.step(j) == 0)

    @property
    def lanes(self) -> int:
        """Columns that a thread takes at a time: two neighbours, where all are so."""
        guarded = any(v.guards or v.step for v in self.sums.behind)
        return 1 if guarded or not all(self.lies(o, 2) for o in self.touched) else 2

    def is_staged(self, output: Stored) -> bool:
        """Say whether an output's rows may be stored by the widest vectors."""
        return output.value.node.dtype.bytes == HALF and self.lies(
            output.offset, UNIT // HALF
        )


def product_of(nest: Nest) -> Product | str:
    """Return the product that a nest is, or why it is none for tensor cores."""
    found = contraction_of(nest)
    if isinstance(found, str):
        return found
    if found.reduction.node.dtype not in {float32, *HALVES}:
        return f"adds up products of {found.dtype}"
    a, b = array_of(found.left), array_of(found.right)
    if a is None or b is None:
        return "multiplies what is computed, not two arrays of halves"
    if a.node.dtype is not b.node.dtype:
        return f"multiplies {a.node.dtype} by {b.node.dtype}"
    axes = found.rows, found.columns, found.depth
    if len(found.outer) > MOST_BATCH or [len(each) for each in axes] != [1, 1, 1]:
        return "has not rows of one array and columns of the other, in one batch"
    (i,), (j,), (k,) = axes
    batch = found.outer
    rows, columns = factor_of(a, i, k, batch), factor_of(b, j, k, batch)
    if isinstance(rows, str) or isinstance(columns, str):
        return rows if isinstance(rows, str) else str(columns)
    return Product(found, a.node.dtype, (batch, i, j, k), rows, columns)


def array_of(value: Value) -> Value | None:
    """Return the array of halves that a value is, widened or not."""
    if isinstance(value.node, Cast) and value.source is None:
        (value,) = value.args.values()
    plain = isinstance(value.source, Input) and not value.guards and not value.step
    return value if plain and value.node.dtype in HALVES else None


def factor_of(value: Value, own: int, k: int, batch: tuple[int, ...]) -> Factor | str:
    """Return how an array lies, or why no copy of tiles can read it."""
    assert isinstance(value.source, Input)
    offset, name = value.offset, value.source.name
    walks = [_walk(offset, axis) for axis in (own, k, *batch)]
    a, b, *rest = (step for step, _ in walks)
    matrices = [shared for _, shared in walks[2:]]
    if 1 not in {a, b} or min(a, b, *rest) < 0 or max(n for _, n in walks[:2]) > 1:
        return f"reads {name} by no rows of neighbours"
    across = b != 1
    lengths = (b if across else a), *rest, offset.constant
    bulk = not any(length * HALF % UNIT for length in lengths)
    return Factor(
        value.source,
        across,
        lengths[0],
        tuple(rest),
        tuple(matrices),
        offset.constant,
        bulk,
    )


def _walk(offset: Index, along: int) -> tuple[int, int]:
    """Return what steps along an axis add, and how many add it once; -1: nothing like it."""
    step = offset.step(along)
    if step is not None:
        return step, 1
    for term, coefficient in offset.terms:
        if isinstance(term, Part) and term.index == axis(along) and not term.modulus:
            return coefficient, term.divisor
    return -1, 1


@dataclass(frozen=True, slots=True, eq=False)
class Tiling:
    """A product cut as a schedule says: `groups` of 64 rows by `columns` a block.

    `stages` steps are in shared memory at a time, `split` blocks of a cluster divide the
    depth, `blocks` stay for all tiles (0: each takes one).
    """

    product: Product
    groups: int
    columns: int
    stages: int
    split: int = 1
    blocks: int = 0

    @property
    def schedule(self) -> Schedule:
        """The schedule that says so."""
        batch, i, j, k = self.product.axes
        grid = (1, Place.GRID)
        factors: dict[int, tuple[tuple[int, Place], ...]] = {
            i: ((ROWS, Place.MMA), (self.groups, Place.WARP), grid),
            j: ((self.columns, Place.MMA), grid),
            k: (
                (DEPTH, Place.MMA),
                (REPEATS, Place.REGISTER),
                (self.stages, Place.PIPELINE),
                (self.split, Place.CLUSTER),
                (1, Place.SERIAL),
            ),
        }
        factors |= dict.fromkeys(batch, (grid,))
        cuts = tuple(Cut(NAMES[axis], factors[axis]) for axis in sorted(factors))
        return Schedule(cuts, blocks=self.blocks)

    @property
    def tiles(self) -> tuple[int, int, int]:
        """How many tiles there are: of the batch, along the rows and the columns."""
        batch, m, n, _ = self.product.extents
        return batch, -(-m // (ROWS * self.groups)), -(-n // self.columns)

    @property
    def grid(self) -> int:
        """The blocks of a launch."""
        return self.blocks or prod(self.tiles) * self.split

    @property
    def steps(self) -> int:
        """Steps along the depth that each block takes."""
        return -(-self.product.extents[3] // (STEP * self.split))

    @property
    def ring(self) -> bool:
        """Whether a stage is used again."""
        return bool(self.blocks) or self.stages < self.steps

    @property
    def owned(self) -> int:
        """Columns of the tile that a block stores."""
        return self.columns // self.split

    @property
    def consumers(self) -> int:
        """Threads that multiply."""
        return GROUP * self.groups

    @property
    def hands_over(self) -> bool:
        """Whether the threads that copy leave registers to those that multiply."""
        return self.blocks > 0 and self.groups == HANDED_GROUPS

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.consumers + (GROUP if self.hands_over else PRODUCER)

    @property
    def most_registers(self) -> int:
        """How many registers a thread that multiplies may have."""
        return MORE_REGISTERS if self.hands_over else most_registers(self.threads)

    @property
    def chunk(self) -> int:
        """Columns of one swizzled row of the second factor."""
        return 64 if self.columns % 64 == 0 or not self.product.columns.across else 32

    def is_staged(self, output: Stored) -> bool:
        """Say whether an output goes through shared memory: 64 columns and more gain."""
        wide = self.columns >= CHUNK and self.owned >= UNIT
        return wide and self.product.is_staged(output)

    @property
    def pitch(self) -> int:
        """Elements from row to row of what is staged: 16 bytes more than 32 divide."""
        units = min(CHUNK, self.owned) * HALF // UNIT
        return (units + 1 - units % 2) * UNIT // HALF

    def memory(self) -> Iterator[tuple[str, DType, int, int]]:
        """Yield a block's shared arrays: name, dtype, elements, alignment in bytes."""
        half, stages = self.product.dtype, self.stages
        yield "rows", half, stages * self.groups * ROWS * STEP, ATOM
        yield "columns", half, stages * self.columns * STEP, ATOM
        if self.split > 1:
            sums = (self.split - 1) * self.owned // 8 * 4 * self.consumers
            yield "partial", float32, sums, UNIT
        for dtype in {
            o.value.node.dtype for o in self.product.nest.outputs if self.is_staged(o)
        }:
            yield f"staged_{dtype.name}", dtype, self.groups * ROWS * self.pitch, UNIT
        yield "full", int64, stages, 8
        yield "empty", int64, stages, 8
        yield "arrived", int64, 1, 8

    @property
    def shared(self) -> int:
        """Bytes of a block's shared memory."""
        end = 0
        for _, dtype, count, alignment in self.memory():
            end = -(-end // alignment) * alignment + count * dtype.bytes
        return end


def tiling_of(product: Product, schedule: Schedule) -> Tiling | None:
    """Return the tiling that a schedule says; None if it says something else."""
    cuts = {cut.axes: cut for cut in schedule.cuts}
    i, j, k = (NAMES[axis] for axis in product.axes[1:])
    if not {i, j, k} <= cuts.keys():
        return None
    tiling = Tiling(
        product,
        cuts[i].at(Place.WARP),
        cuts[j].at(Place.MMA),
        cuts[k].at(Place.PIPELINE),
        cuts[k].at(Place.CLUSTER),
        schedule.blocks,
    )
    return tiling if tiling.schedule == schedule else None


def problem(tiling: Tiling, gpu: Gpu) -> str:
    """Say why a tiling does not fit, and what to choose instead; "" if it does."""
    return _shape_problem(tiling) or gpu.room_problem(
        tiling,
        registers(tiling),
        "fewer stages, or smaller tiles",
        "fewer warpgroups or columns",
    )


def _shape_problem(tiling: Tiling) -> str:
    """Say what of a tile's shape the instructions have not."""
    unit = 32 if tiling.product.columns.across else 8
    if tiling.columns not in COLUMNS or tiling.columns % unit:
        wanted = f"a multiple of {unit} up to {COLUMNS[-1]}"
        return f"has tiles of {tiling.columns} columns; choose {wanted}"
    if tiling.groups not in GROUPS:
        return f"has {tiling.groups} warpgroups; choose 1 to {GROUPS[-1]}"
    if tiling.split not in CLUSTERS or tiling.columns // 8 % tiling.split:
        return (
            f"divides {tiling.columns} columns among {tiling.split} blocks; choose a "
            f"cluster up to {CLUSTERS[-1]} that divides them by 8 at a time"
        )
    if (tiling.split - 1) * tiling.steps * STEP >= tiling.product.extents[3]:
        return (
            f"leaves a block of {tiling.split} without a step; choose a smaller cluster"
        )
    if tiling.blocks and tiling.split > 1:
        return "has blocks that stay and clusters that divide the depth; choose one"
    _, m, n, _ = tiling.product.extents
    updates = any(o.updates is not None for o in tiling.product.nest.program.outputs)
    if updates and (m % (ROWS * tiling.groups) or n % tiling.columns):
        return (  # threads beyond the edge read what others write
            f"updates an array of {m} x {n} in place by tiles of "
            f"{ROWS * tiling.groups} x {tiling.columns}; choose tiles that divide it"
        )
    if tiling.ring and not tiling.product.is_bulk:
        why = f"{tiling.steps} steps of rows that begin at no multiples of {UNIT} bytes"
        return f"has {tiling.stages} stages for {why}; choose as many, a larger cluster"
    least = min(2, tiling.steps)
    if not least <= tiling.stages <= tiling.steps:
        return f"has {tiling.stages} stages; choose {least} to {tiling.steps}"
    return ""


def registers(tiling: Tiling) -> int:
    """Return about how many registers a thread needs."""
    own = tiling.owned // 2 if tiling.split > 1 else 0
    return tiling.columns // 2 + own + OTHER_REGISTERS
