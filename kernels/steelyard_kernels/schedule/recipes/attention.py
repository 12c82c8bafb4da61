"""Attention for tensor cores: queries a block, keys a step, stages.

    i:grid j:mma64.warp2.grid k:mma64.serial l:mma128.pipeline2.serial m:mma16.r4.serial
    i:grid j:mma16.warp8.grid k:mma8.r8.serial l:mma8.r8.pipeline2.serial m:mma16.r4.serial

A block takes one of the batch along i, 2 x 64 of the queries along j and all 64 columns of
the values along k; a step takes 128 of the keys along l, 2 steps are in shared memory at a
time. Rows of queries and keys are 4 x 16 long. By mma.sync, the second schedule, each of 8
warps has 16 queries, and a step takes 8 x 8 keys.

A warpgroup multiplies, computes weights, and waits where nothing else fills the time.
Rates were fitted to 289 kernels of 15 shapes in float16 on an H200, heads of 64 and 128
columns, measured warm, and held for 57 with blocks that stay: the choice takes 1.006
times the best of the measured in the mean, 1.06 times at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import product
from math import prod
from typing import ClassVar, Final, Self

from msgspec import Struct
from msgspec.structs import replace

from steelyard_kernels.dtypes import DType, int64
from steelyard_kernels.nest.axes import NAMES
from steelyard_kernels.schedule.attention import Attention, Panel
from steelyard_kernels.schedule.contraction import HALF, LINE, UNIT, Product
from steelyard_kernels.schedule.cores import EVERY, WGMMA, Cores
from steelyard_kernels.schedule.gpu import Gpu, most_registers
from steelyard_kernels.schedule.model import Prediction
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
# What is tried: keys of a step, stages.
LIKELY_KEYS: Final = (64, 96, 128, 176)
STAGES: Final = (2, 3)
MOST_STAYING: Final = 128  # keys of blocks that stay; with more these were slower
MOST_STAGES: Final = 16  # of which each step has its own
CLOCK: Final = 1.7  # cycles a nanosecond
RAMP_NS: Final = 1201.0
CORE_PEAK: Final = 4096.0  # operations of a multiprocessor and cycle
TAIL: Final = 0.89  # how far the last blocks leave multiprocessors without work
WAVE: Final = 779.0  # cycles that another wave of blocks begins later


class Rates(Struct, frozen=True):
    """Cycles of a score on its way to a weight, of a walk's step and of a block beside.

    `cores`: how many times longer than at its peak a multiprocessor takes for many
    products; `overlap`: the power of the mean of what goes on at a time.
    """

    cores: float
    score: float
    step: float
    block: float
    overlap: float


class AttentionTiling(Tiling, frozen=True, eq=False, dict=True):
    """Attention cut as a schedule says: `columns` are all of the values', `keys` a step's.

    `stages` steps are in shared memory at a time. `blocks` stay for one tile after
    another (0: each takes one).
    """

    keys: int = 128
    rates: ClassVar[Rates] = Rates(1.254, 0.106, 667.0, 2154.0, 3.1)
    generations: ClassVar[tuple[Cores, ...]] = EVERY

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

    @classmethod
    def read(cls, whole: Product, schedule: Schedule) -> Self | None:
        """Return the tiling that a schedule says; None if it says something else."""
        cuts = {cut.axes: cut for cut in schedule.cuts}
        i, n, j = (NAMES[axis] for axis in whole.axes[1:])
        if not {i, n, j} <= cuts.keys():
            return None
        for cores in cls.generations:
            tiling = cls(
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

    @property
    def heads(self) -> set[int]:
        """How many columns queries, keys and values have."""
        return {self.panels["keys"].extents[1], self.product.extents[2]}

    @property
    def least_stages(self) -> int:
        """How many there are at least: a step's values wait while others are read."""
        return min(2, self.steps)

    def problem(self, gpu: Gpu) -> str:
        """Say why it does not fit, and what to choose instead; "" if it does."""
        keys = self.product.extents[3]
        if not all(head in HEADS for head in self.heads):
            wanted = f"{HEADS[0]} to {HEADS[-1]} of each"
            return f"has heads of {sorted(self.heads)} columns; choose {wanted}"
        if self.keys not in KEYS or self.groups not in GROUPS:
            wanted = (
                f"a multiple of {KEYS.step} up to {KEYS[-1]}, and 1 to {GROUPS[-1]}"
            )
            return f"has {self.keys} keys a step and {self.groups} warpgroups; choose {wanted}"
        if self.keys - (LINE_HALVES if self.cores.by_warp else KEYS.step) >= keys:
            return f"has steps of {self.keys} of {keys} keys; choose fewer"
        if why := self.staying_problem():
            return why
        if not self.least_stages <= self.stages <= self.steps:
            wanted = f"{self.least_stages} to {self.steps}"
            return f"has {self.stages} stages; choose {wanted}"
        if any(o.updates is not None for o in self.product.nest.program.outputs):
            return "updates an array in place; make it an output"
        less = "fewer stages, or keys a step", "fewer keys a step"
        return gpu.room_problem(self, self.registers, *less)

    def staying_problem(self) -> str:
        """Say why blocks cannot stay, or warps have so many keys."""
        if self.blocks and (self.groups == 1 or self.attention.ahead is not None):
            return "has blocks that stay; choose none, 2 or 3 warpgroups and no causal mask"
        if self.cores.by_warp and (self.keys % LINE_HALVES or self.blocks):
            wanted = f"a multiple of {LINE_HALVES}, and no blocks that stay"
            return f"has {self.keys} keys a step by warps; choose {wanted}"
        return ""

    @property
    def registers(self) -> int:
        """About how many registers a thread needs: sums, scores, weights and others."""
        others = BY_WARP_REGISTERS if self.cores.by_warp else OTHER_REGISTERS
        return (self.columns + self.keys) // 2 + self.keys // 4 + others

    @property
    def counts(self) -> tuple[int, float, int]:
        """What a step multiplies for a row and key, its scores, and its walks."""
        return self.panels["keys"].depth + self.columns, 1.0, 1

    def held(self, gpu: Gpu) -> int:
        """Return how many blocks a multiprocessor has at a time."""
        held = gpu.blocks_resident(self.threads, self.registers, self.shared)
        return 1 if self.hands_over else max(1, held)

    def step_cycles(self, gpu: Gpu) -> float:
        """Return how long a step takes where others are beside it."""
        rates, (deep, scores, walks) = self.rates, self.counts
        share = 1.0  # of what an H200's warpgroups multiply
        if self.cores.by_warp:
            share = gpu.product_rate / gpu.multiprocessors / CLOCK / CORE_PEAK
        blocks = -(-prod(self.tiles) // gpu.multiprocessors)
        beside = min(self.held(gpu), blocks) * self.groups
        multiplied = ROWS * self.keys * deep * 2 / (share * CORE_PEAK)
        weighed = ROWS * self.keys * rates.score * scores
        alone = rates.step * walks + multiplied
        at_once = beside * multiplied * rates.cores, beside * weighed, alone
        mean: float = sum(x**rates.overlap for x in at_once) ** (1 / rates.overlap)
        return mean

    def predict(self, gpu: Gpu) -> Prediction:
        """Predict one launch, in nanoseconds."""
        step, blocks = self.step_cycles(gpu), prod(self.tiles)
        steps, longest = self.walked()
        slots = gpu.multiprocessors * self.held(gpu)
        waves, whole = blocks / slots, -(-blocks // slots)
        block = self.rates.block + steps * step
        begun = WAVE * (whole - 1)
        if self.blocks:
            begun, body = 0.0, block * -(-blocks // self.blocks)
        elif whole == 1:
            body = self.rates.block + longest * step
        elif self.attention.ahead is None:
            body = block * (TAIL * whole + (1 - TAIL) * waves)
        else:  # the shortest blocks come last
            body = block * (waves + TAIL)
        return Prediction((("ramp", RAMP_NS + begun / CLOCK), ("steps", body / CLOCK)))

    def walked(self) -> tuple[float, int]:
        """Return how many steps blocks have: in the mean, and at most."""
        ahead, tall = self.attention.ahead, ROWS * self.groups
        if ahead is None:
            return self.steps, self.steps
        ends = [(k + 1) * tall + ahead for k in range(self.tiles[1])]
        counts = [max(1, min(self.steps, -(-end // self.keys))) for end in ends]
        return sum(counts) / len(counts), max(counts)

    @classmethod
    def proposed(cls, whole: Product, gpu: Gpu) -> Iterator[Self]:
        """Yield tilings worth trying: a stage for each step, and some stages."""
        (cores, *_) = gpu.cores
        _, m, _, n = whole.extents
        columns = columns_of(whole, cores)
        least = min(LIKELY_KEYS[0], -(-n // 16) * 16)
        several_keys = (64, 128) if cores.by_warp else sorted({least, *LIKELY_KEYS})
        for groups, keys in product(GROUPS, several_keys):
            if groups > 1 and m <= ROWS * (groups - 1):
                continue
            steps = -(-n // keys)
            every = (steps,) if steps <= MOST_STAGES else ()
            several = {*every, *[s for s in STAGES if s < steps]}
            # Waits of one warpgroup are hidden by others: alone, it has the most first.
            for stages in sorted(several, reverse=groups == 1):
                tiling = cls(whole, groups, columns, stages, cores=cores, keys=keys)
                yield tiling
                if cores.by_warp:
                    continue
                if prod(tiling.tiles) > gpu.multiprocessors and keys <= MOST_STAYING:
                    yield replace(tiling, blocks=gpu.multiprocessors)


def columns_of(whole: Product, cores: Cores = WGMMA) -> int:
    """Return how many columns a tile of values has."""
    unit = 2 * DEPTH if cores.by_warp else DEPTH
    return -(-whole.extents[2] // unit) * unit
