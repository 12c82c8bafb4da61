"""How attention is tiled for tensor cores.

    i:grid j:mma64.warp2.grid k:mma64.serial l:mma128.pipeline2.serial m:mma16.r4.serial
    i:grid j:mma16.warp8.grid k:mma8.r8.serial l:mma8.r8.pipeline2.serial m:mma16.r4.serial

A block takes one of the batch along i, 2 x 64 of the queries along j and all 64 columns of
the values along k; a step takes 128 of the keys along l, 2 steps are in shared memory at a
time. Rows of queries and keys are 4 x 16 long. By mma.sync, the second schedule, each of 8
warps has 16 queries, and a step takes 8 x 8 keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from steelyard_kernels.dtypes import DType, int64
from steelyard_kernels.nest.axes import NAMES
from steelyard_kernels.schedule.attention import Attention
from steelyard_kernels.schedule.contraction import HALF, LINE, UNIT, Factor, Product
from steelyard_kernels.schedule.cores import EVERY, WGMMA, Cores
from steelyard_kernels.schedule.gpu import Gpu, most_registers
from steelyard_kernels.schedule.product_tiling import (
    ATOM,
    BY_WARP_REGISTERS,
    DEPTH,
    GROUP,
    PRODUCER,
    ROWS,
    Tiling,
)
from steelyard_kernels.schedule.schedule import Cut, Place, Schedule

LINE_HALVES: Final = LINE // HALF
KEYS: Final = range(16, 257, 16)  # of a step
GROUPS: Final = range(1, 4)  # warpgroups of a block
HEADS: Final = range(8, 257, 8)  # columns of queries and keys, and of values
# Registers of threads that multiply and of those that copy, by the warpgroups.
HANDED: Final = {2: (240, 24), 3: (160, 32)}
OTHER_REGISTERS: Final = 32  # of a thread, beside its scores, weights and sums


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """What copies bring of a factor at a time: `own` rows or columns, `depth` of each.

    Rows in shared memory are `chunk` long; `extents` are all there is.
    """

    factor: Factor
    extents: tuple[int, int]
    own: int
    depth: int

    @property
    def chunk(self) -> int:
        """Elements of one swizzled row: 128 bytes, or what divides the panel."""
        width = self.own if self.factor.across else self.depth
        return next(n for n in (64, 32, 16) if width % n == 0)

    @property
    def size(self) -> int:
        """Elements of all."""
        return self.own * self.depth

    @property
    def box(self) -> tuple[int, int]:
        """What one copy brings."""
        return self.chunk, self.depth if self.factor.across else self.own

    @property
    def boxes(self) -> Iterator[tuple[int, int]]:
        """Yield where each box begins in the panel, and in shared memory."""
        width, high = self.size // self.box[1], self.box[1]
        yield from ((begin, begin * high) for begin in range(0, width, self.chunk))

    @property
    def apart(self) -> int:
        """Elements between the rows of two warpgroups in shared memory."""
        return ROWS * (self.depth if self.factor.across else self.chunk)

    def offset(self, depth: int) -> int:
        """Return where in shared memory a depth begins."""
        if self.factor.across:
            return depth * self.chunk
        return depth // self.chunk * self.own * self.chunk + depth % self.chunk


@dataclass(frozen=True, eq=False)
class AttentionTiling(Tiling):
    """Attention cut as a schedule says: `columns` are all of the values', `keys` a step's.

    `stages` steps are in shared memory at a time. `blocks` stay for one tile after
    another (0: each takes one).
    """

    keys: int = 128

    @property
    def attention(self) -> Attention:
        """What is tiled."""
        assert isinstance(self.product, Attention)
        return self.product

    @cached_property
    def panels(self) -> dict[str, Panel]:
        """What copies bring, by the names of the arrays in shared memory."""
        whole, (_, m, n, keys) = self.attention, self.product.extents
        depth = whole.nest.extents[whole.depth]
        deep = -(-depth // DEPTH) * DEPTH
        return {
            "queries": Panel(whole.queries, (m, depth), ROWS * self.groups, deep),
            "keys": Panel(whole.keys, (keys, depth), self.keys, deep),
            "values": Panel(whole.columns, (n, keys), self.columns, self.keys),
        }

    @property
    def depths(self) -> dict[int, int]:
        """How deep products of queries and keys are taken to be, by their axes."""
        return {self.attention.depth: self.panels["keys"].depth}

    @property
    def lines(self) -> int:
        """Rows of 128 bytes, or as many, that a query or key has in shared memory."""
        return -(-self.attention.nest.extents[self.attention.depth] // LINE_HALVES)

    @property
    def schedule(self) -> Schedule:
        """The schedule that says so."""
        batch, i, n, j = self.product.axes
        serial, cores = (1, Place.SERIAL), self.cores
        warps = self.groups * ROWS // cores.rows
        columns, keys = (
            ((cores.columns, Place.MMA), (n // cores.columns, Place.REGISTER))
            if cores.by_warp
            else ((n, Place.MMA),)
            for n in (self.columns, self.keys)
        )
        factors: dict[int, tuple[tuple[int, Place], ...]] = {
            i: ((cores.rows, Place.MMA), (warps, Place.WARP), (1, Place.GRID)),
            j: (*keys, (self.stages, Place.PIPELINE), serial),
            **dict.fromkeys(batch, ((1, Place.GRID),)),
        }
        if self.product.sums.columns:
            factors[n] = (*columns, serial)
        for depth, deep in self.depths.items():
            repeats = (deep // DEPTH, Place.REGISTER)
            factors[depth] = ((DEPTH, Place.MMA), repeats, serial)
        cuts = tuple(Cut(NAMES[k], factors[k]) for k in sorted(factors))
        return Schedule(cuts, blocks=self.blocks)

    @property
    def tiles(self) -> tuple[int, int, int]:
        """How many tiles there are: of the batch, along the queries, one of columns."""
        batch, m, _, _ = self.product.extents
        return batch, -(-m // (ROWS * self.groups)), 1

    @property
    def steps(self) -> int:
        """Steps along the keys."""
        return -(-self.product.extents[3] // self.keys)

    @property
    def has_edge(self) -> bool:
        """Whether a block's first step has keys that are not there, or not to be seen."""
        ahead = self.attention.ahead is not None
        return ahead or self.product.extents[3] % self.keys > 0

    @property
    def hands_over(self) -> bool:
        """Whether the threads that copy leave registers to those that multiply."""
        return self.bulk and self.ring and self.groups in HANDED

    @property
    def threads(self) -> int:
        """Threads of a block: none that only copy where all is copied at once."""
        copying = GROUP if self.hands_over else PRODUCER
        return self.consumers + (copying if self.bulk and self.ring else 0)

    @property
    def most_registers(self) -> int:
        """How many registers a thread that multiplies may have."""
        handed = HANDED.get(self.groups) if self.hands_over else None
        return handed[0] if handed else most_registers(self.threads)

    @property
    def fewer_registers(self) -> int:
        """How many registers are left to a thread that copies."""
        return HANDED[self.groups][1]

    def memory(self) -> Iterator[tuple[str, DType, int, int]]:
        """Yield a block's shared arrays: name, dtype, elements, alignment in bytes."""
        for name, panel in self.panels.items():
            held, size = 1 if name == "queries" else self.stages, panel.size
            if not self.bulk and name != "values":
                size = panel.own * self.lines * LINE_HALVES
            yield name, self.product.dtype, held * size, ATOM
        for dtype in {
            o.value.node.dtype for o in self.product.nest.outputs if self.is_staged(o)
        }:
            yield f"staged_{dtype.name}", dtype, self.groups * ROWS * self.pitch, UNIT
        if not self.bulk:
            return
        yield "asked", int64, 1, 8
        yield "answered", int64, 1, 8
        for name in ("keys", "values"):
            yield f"full_{name}", int64, self.stages, 8
            yield f"empty_{name}", int64, self.stages, 8


def tiling_of(
    whole: Product, schedule: Schedule, kind: type[AttentionTiling] = AttentionTiling
) -> AttentionTiling | None:
    """Return the tiling that a schedule says; None if it says something else."""
    cuts = {cut.axes: cut for cut in schedule.cuts}
    i, n, j = (NAMES[axis] for axis in whole.axes[1:])
    if not {i, n, j} <= cuts.keys():
        return None
    for cores in EVERY if kind is AttentionTiling else (WGMMA,):
        tiling = kind(
            whole,
            cuts[i].at(Place.WARP) * cores.rows // ROWS,
            columns_of(whole, cores),
            cuts[j].at(Place.PIPELINE),
            blocks=schedule.blocks,
            cores=cores,
            keys=cuts[j].at(Place.MMA) * cuts[j].at(Place.REGISTER),
        )
        if tiling.schedule == schedule:
            return tiling
    return None


def columns_of(whole: Product, cores: Cores = WGMMA) -> int:
    """Return how many columns a tile of values has."""
    unit = 2 * DEPTH if cores.by_warp else DEPTH
    return -(-whole.extents[2] // unit) * unit


def problem(tiling: AttentionTiling, gpu: Gpu) -> str:
    """Say why a tiling does not fit, and what to choose instead; "" if it does."""
    _, _, columns, keys = tiling.product.extents
    depth = tiling.panels["keys"].extents[1]
    if columns not in HEADS or depth not in HEADS:
        wanted = f"{HEADS[0]} to {HEADS[-1]} of each"
        return f"has heads of {depth} and {columns} columns; choose {wanted}"
    if tiling.keys not in KEYS or tiling.groups not in GROUPS:
        wanted = f"a multiple of {KEYS.step} up to {KEYS[-1]}, and 1 to {GROUPS[-1]}"
        return f"has {tiling.keys} keys a step and {tiling.groups} warpgroups; choose {wanted}"
    if tiling.keys - (LINE_HALVES if tiling.cores.by_warp else KEYS.step) >= keys:
        return f"has steps of {tiling.keys} of {keys} keys; choose fewer"
    if tiling.blocks and (tiling.groups == 1 or tiling.attention.ahead is not None):
        return "has blocks that stay; choose none, 2 or 3 warpgroups and no causal mask"
    if tiling.cores.by_warp and (tiling.keys % LINE_HALVES or tiling.blocks):
        wanted = f"a multiple of {LINE_HALVES}, and no blocks that stay"
        return f"has {tiling.keys} keys a step by warps; choose {wanted}"
    least = min(2, tiling.steps)  # a step's values are awaited before others are read
    if not least <= tiling.stages <= tiling.steps:
        return f"has {tiling.stages} stages; choose {least} to {tiling.steps}"
    if any(o.updates is not None for o in tiling.product.nest.program.outputs):
        return "updates an array in place; make it an output"
    return gpu.room_problem(
        tiling, registers(tiling), "fewer stages, or keys a step", "fewer keys a step"
    )


def registers(tiling: AttentionTiling) -> int:
    """Return about how many registers a thread needs: sums, scores, weights and others."""
    others = BY_WARP_REGISTERS if tiling.cores.by_warp else OTHER_REGISTERS
    return (tiling.columns + tiling.keys) // 2 + tiling.keys // 4 + others
