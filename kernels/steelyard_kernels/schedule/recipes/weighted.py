"""Weighted sums for Hopper's tensor cores: rows a block, keys a step, stages.

    i:grid j:mma64.warp2.grid k:mma64.serial l:mma64.pipeline2.serial m:mma16.r4.serial

They are tiled as attention is. A block takes 2 x 64 of the rows along j, which stay in
shared memory with all scores' factors of their own, and walks the keys along l in steps
of 64.

Rates were fitted to 131 kernels of 6 programs with 16384 tokens in float16 on an H200,
heads of 64 and 128 columns in sequences of 2048, measured warm: the choice takes 1.03
times the best of the measured in the mean, 1.09 at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import product
from math import prod
from typing import Final, Self

from steelyard_kernels.dtypes import DType, int64
from steelyard_kernels.schedule.attention import Panel
from steelyard_kernels.schedule.contraction import UNIT, Product
from steelyard_kernels.schedule.cores import WGMMA
from steelyard_kernels.schedule.gpu import Gpu
from steelyard_kernels.schedule.model import Prediction
from steelyard_kernels.schedule.product_tiling import ATOM, DEPTH, ROWS
from steelyard_kernels.schedule.recipes.attention import (
    CLOCK,
    GROUPS,
    OTHER_REGISTERS,
    RAMP_NS,
    AttentionTiling,
    Rates,
    columns_of,
)
from steelyard_kernels.schedule.weighted import Weighted

LIKELY_KEYS: Final = (32, 64, 96)  # of 128 they were up to an eighth slower
STAGES: Final = (2, 3, 4)
ALONE_REGISTERS: Final = 16  # of a warpgroup's own addresses, where a block has one


class WeightedTiling(AttentionTiling, frozen=True, eq=False, dict=True):
    """Weighted sums cut as a schedule says."""

    rates = Rates(1.45, 0.051, 707.0, 1409.0, 2.94)
    generations = (WGMMA,)

    @property
    def weighted(self) -> Weighted:
        """What is tiled."""
        assert isinstance(self.product, Weighted)
        return self.product

    @property
    def depths(self) -> dict[int, int]:
        """How deep products of rows and keys are taken to be, by their axes."""
        extents = self.weighted.nest.extents
        every = [score.depth for score in self.weighted.scores]
        return {axis: -(-extents[axis] // DEPTH) * DEPTH for axis in every}

    @cached_property
    def rows(self) -> dict[str, Panel]:
        """What stays in shared memory, by its names there."""
        whole = self.weighted
        extents, m, tall = whole.nest.extents, whole.extents[1], ROWS * self.groups
        return {
            f"rows_{k}": Panel(
                score.rows, (m, extents[score.depth]), tall, self.depths[score.depth]
            )
            for k, score in enumerate(whole.scores)
        }

    @cached_property
    def keys_of(self) -> dict[str, Panel]:
        """What a step's scores are products with, by its names in shared memory."""
        whole = self.weighted
        extents, n = whole.nest.extents, whole.extents[3]
        return {
            f"keys_{k}": Panel(
                score.keys,
                (n, extents[score.depth]),
                self.keys,
                self.depths[score.depth],
            )
            for k, score in enumerate(whole.scores)
        }

    @cached_property
    def values_of(self) -> list[tuple[str, Panel]]:
        """What each sum's weights multiply, and where: keys may be these too."""
        _, _, columns, n = self.weighted.extents
        found = []
        for k, each in enumerate(self.weighted.every):
            panel = Panel(each.columns, (columns, n), self.columns, self.keys)
            every = self.keys_of.items()
            same = [name for name, other in every if _is_same(panel, other)]
            found.append((same[0] if same else f"values_{k}", panel))
        return found

    @cached_property
    def streams(self) -> dict[str, Panel]:
        """What copies bring for each step."""
        return {**dict(self.values_of), **self.keys_of}

    @cached_property
    def panels(self) -> dict[str, Panel]:
        """What copies bring, by the names of the arrays in shared memory."""
        return {**self.rows, **self.streams}

    @property
    def has_edge(self) -> bool:
        """Whether some step has keys that are not there, or not to be seen."""
        whole = self.weighted
        return whole.seen is not None or whole.extents[3] % self.keys > 0

    @property
    def ring(self) -> bool:
        """Whether there are threads that only copy: always."""
        return True

    def memory(self) -> Iterator[tuple[str, DType, int, int]]:
        """Yield a block's shared arrays: name, dtype, elements, alignment in bytes."""
        for name, panel in self.panels.items():
            held = 1 if name in self.rows else self.stages
            yield name, self.product.dtype, held * panel.size, ATOM
        for dtype in {
            o.value.node.dtype for o in self.product.nest.outputs if self.is_staged(o)
        }:
            yield f"staged_{dtype.name}", dtype, self.groups * ROWS * self.pitch, UNIT
        yield "asked", int64, 1, 8
        yield "full", int64, self.stages, 8
        yield "empty", int64, self.stages, 8

    @property
    def heads(self) -> set[int]:
        """How many columns factors of scores have, and values."""
        extents, columns = self.weighted.nest.extents, self.product.extents[2]
        own = {columns} if self.values_of else set[int]()
        return own | {extents[axis] for axis in self.depths}

    @property
    def least_stages(self) -> int:
        """How many there are at least."""
        return 1

    def staying_problem(self) -> str:
        """Say why blocks cannot stay."""
        return "has blocks that stay; choose none" if self.blocks else ""

    @property
    def registers(self) -> int:
        """About how many registers a thread needs: sums, scores, half of the weights."""
        sums, scores = len(self.weighted.every), len(self.weighted.scores)
        held = sums * (self.columns // 2 + self.keys // 8)
        alone = 0 if self.hands_over else ALONE_REGISTERS
        return held + scores * self.keys // 2 + OTHER_REGISTERS + alone

    @property
    def counts(self) -> tuple[int, float, int]:
        """What a step multiplies for a row and key, its scores and weights, its walks."""
        whole = self.weighted
        taken = [whole.scores[k] for each in whole.passes for k in each.scores]
        deep = sum(self.depths[score.depth] for score in taken)
        sums = len(whole.every)
        return deep + self.columns * sums, len(taken) + sums / 2, len(whole.passes)

    def predict(self, gpu: Gpu) -> Prediction:
        """Predict one launch, in nanoseconds."""
        steps, keys = float(self.steps), self.product.extents[3]
        if self.weighted.seen is not None:  # of half of all keys, and of an edge
            seen = (keys + ROWS * self.groups + self.keys) / 2 / self.keys
            steps = min(steps, seen)
        block = self.rates.block + steps * self.step_cycles(gpu)
        waves = prod(self.tiles) / (gpu.multiprocessors * self.held(gpu))
        body = block * max(1.0, waves)
        return Prediction((("ramp", RAMP_NS), ("steps", body / CLOCK)))

    @classmethod
    def proposed(cls, whole: Product, gpu: Gpu) -> Iterator[Self]:
        """Yield tilings worth trying: of few keys one step is enough."""
        _, m, _, n = whole.extents
        columns, least = columns_of(whole), min(LIKELY_KEYS[1], -(-n // 16) * 16)
        several_keys = sorted({least, *LIKELY_KEYS}) if WGMMA in gpu.cores else ()
        for groups, keys in product(GROUPS, several_keys):
            if groups == 1 or m > ROWS * (groups - 1):
                for stages in sorted({min(each, -(-n // keys)) for each in STAGES}):
                    yield cls(whole, groups, columns, stages, keys=keys)


def _is_same(values: Panel, keys: Panel) -> bool:
    """Say whether copies of values, a row for each key, are those of the keys."""
    a, b = values.factor, keys.factor
    return (
        a.across
        and not b.across
        and a.source is b.source
        and (a.pitch, a.batch, a.shared, a.first)
        == (b.pitch, b.batch, b.shared, b.first)
        and (values.own, *values.extents) == (keys.depth, *keys.extents[::-1])
        and values.chunk == keys.chunk
    )
