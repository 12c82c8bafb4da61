"""How weighted sums are tiled for Hopper's tensor cores: as attention is.

    i:grid j:mma64.warp2.grid k:mma64.serial l:mma64.pipeline2.serial m:mma16.r4.serial

A block takes 2 x 64 of the rows along j, which stay in shared memory with all scores'
factors of their own, and walks the keys along l in steps of 64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from steelyard_kernels.dtypes import DType, int64
from steelyard_kernels.schedule.attention_tiling import (
    GROUPS,
    HEADS,
    KEYS,
    OTHER_REGISTERS,
    AttentionTiling,
    Panel,
)
from steelyard_kernels.schedule.contraction import UNIT
from steelyard_kernels.schedule.gpu import Gpu
from steelyard_kernels.schedule.product_tiling import ATOM, DEPTH, ROWS
from steelyard_kernels.schedule.weighted import Weighted

ALONE_REGISTERS: Final = 16  # of a warpgroup's own addresses, where a block has one


@dataclass(frozen=True, eq=False)
class WeightedTiling(AttentionTiling):
    """Weighted sums cut as a schedule says."""

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


def problem(tiling: WeightedTiling, gpu: Gpu) -> str:
    """Say why a tiling does not fit, and what to choose instead; "" if it does."""
    _, _, columns, keys = tiling.product.extents
    extents = tiling.weighted.nest.extents
    heads = {
        *[columns] * len(tiling.values_of),
        *[extents[axis] for axis in tiling.depths],
    }
    if not all(head in HEADS for head in heads):
        wanted = f"{HEADS[0]} to {HEADS[-1]} of each"
        return f"has heads of {sorted(heads)} columns; choose {wanted}"
    if tiling.keys not in KEYS or tiling.groups not in GROUPS:
        wanted = f"a multiple of {KEYS.step} up to {KEYS[-1]}, and 1 to {GROUPS[-1]}"
        return f"has {tiling.keys} keys a step and {tiling.groups} warpgroups; choose {wanted}"
    if tiling.keys - KEYS.step >= keys:
        return f"has steps of {tiling.keys} of {keys} keys; choose fewer"
    if tiling.blocks:
        return "has blocks that stay; choose none"
    if not 1 <= tiling.stages <= tiling.steps:
        return f"has {tiling.stages} stages; choose 1 to {tiling.steps}"
    if any(o.updates is not None for o in tiling.product.nest.program.outputs):
        return "updates an array in place; make it an output"
    return gpu.room_problem(
        tiling, registers(tiling), "fewer stages, or keys a step", "fewer keys a step"
    )


def registers(tiling: WeightedTiling) -> int:
    """Return about how many registers a thread needs: sums, scores, half of the weights."""
    sums, scores = len(tiling.weighted.every), len(tiling.weighted.scores)
    held = sums * (tiling.columns // 2 + tiling.keys // 8)
    alone = 0 if tiling.hands_over else ALONE_REGISTERS
    return held + scores * tiling.keys // 2 + OTHER_REGISTERS + alone
