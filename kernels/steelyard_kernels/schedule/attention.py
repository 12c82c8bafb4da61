"""Attention: which nests are softmax(q @ k.T) @ v, for tensor cores.

Scores times a number, weights and sums are of float32 whatever the program rounds them
to on the way: only the weights are rounded to halves, before they multiply the values.
Logits that are made of scores in another way are computed as the program says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import inf

from msgspec import Struct

from steelyard_kernels.dtypes import float32
from steelyard_kernels.expression.expr import Cast
from steelyard_kernels.nest.axes import Nest, Value
from steelyard_kernels.nest.weighing import Weighing, plain, times, weighing_of
from steelyard_kernels.schedule.contraction import (
    MOST_BATCH,
    UNIT,
    Factor,
    Product,
    array_of,
    factor_of,
)
from steelyard_kernels.schedule.product_tiling import ROWS


@dataclass(frozen=True, eq=False)
class Attention(Weighing, Product):
    """A nest that weighs values by the softmax of what is made of scores.

    `axes` are those of the batch, the queries, the values' columns and the keys; scores
    are `times` those of the arrays.
    """

    queries: Factor
    times: float

    @property
    def keys(self) -> Factor:
        """How the keys lie."""
        return self.rows

    @property
    def depth(self) -> int:
        """The axis of the scores' sums."""
        return self.products.depth[0]

    @property
    def key_lanes(self) -> int:
        """Keys whose logits a thread computes at a time."""
        return self.together(self.between, self.axes[3])


class Panel(Struct, frozen=True, eq=False):
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


@lru_cache(maxsize=2)  # a build asks for it to choose a schedule, then to lower
def attention_of(nest: Nest) -> Attention | str:
    """Return the attention that a nest is, or why it is none for tensor cores."""
    found = weighing_of(nest)
    if isinstance(found, str):
        return found
    halves = _halves(found)
    if isinstance(halves, str):
        return halves
    sums, products, (query, key, value, by) = found.sums, found.products, halves
    batch, (i,), (n,), (j,) = sums.outer, sums.rows, sums.columns, sums.depth
    if len(batch) > MOST_BATCH:
        return f"has more than {MOST_BATCH} axes of a batch"
    (depth,) = products.depth
    factors = lie(nest, (query, i, depth), (key, j, depth), (value, n, j), batch=batch)
    if isinstance(factors, str):
        return factors
    asked, rows, cols = factors
    scale, ahead = found.scale, found.ahead
    # Largest scores may be no largest logits, keys that are left out may weigh something.
    if scale is not None and not (0 < scale * by < inf and found.fill == -inf):
        scale, ahead = None, None
    return Attention(
        sums,
        value.node.dtype,
        (batch, i, n, j),
        rows,
        cols,
        tuple([(axis,) for axis in range(len(nest.extents))]),
        products,
        found.logits,
        scale,
        ahead,
        found.fill,
        found.safe,
        asked,
        by,
    )


def _halves(found: Weighing) -> tuple[Value, Value, Value, float] | str:
    """Return queries, keys, values and what scores are multiplied by, or why not so."""
    sums, products = found.sums, found.products
    weight, value = sums.left, array_of(sums.right)
    if value is None or sums.dtype is not float32:
        return "weighs no array of halves"
    dtype, rounded = value.node.dtype, next(iter(weight.args.values()))
    if not isinstance(weight.node, Cast) or rounded.node.dtype is not dtype:
        return f"weighs {dtype} by {weight.node.dtype}; round the weights to {dtype}"
    (query, by), (key, of) = _unscaled(products.left), _unscaled(products.right)
    if query is None or key is None:
        return "scores what is computed, not two arrays of halves"
    if {query.node.dtype, key.node.dtype} != {dtype}:
        return "has queries, keys and values of several types"
    return query, key, value, by * of


def lie(
    nest: Nest, *factors: tuple[Value, int, int], batch: tuple[int, ...]
) -> list[Factor] | str:
    """Return how arrays lie along an axis of their own and one of sums, or why not so."""
    found = []
    for value, own, depth in factors:
        matrices = [(axis,) for axis in batch]
        lies = factor_of(nest, value, ((own,), (depth,)), matrices)
        name = getattr(value.source, "name", "")
        if not value.axes <= {own, depth, *batch}:
            return f"reads other elements of {name} for each row of a tile"
        if lies is None:
            return f"reads {name} by no rows of neighbours"
        if not lies.bulk:
            return f"reads {name} by rows that begin at no {UNIT} bytes"
        found.append(lies)
    return found


def _unscaled(value: Value) -> tuple[Value | None, float]:
    """Return the array of halves that a value is a multiple of, and by how much."""
    array, scale = array_of(value), 1.0
    while array is None:
        found = times(plain(value))
        if found is None:
            return None, scale
        value, scale = found[0], scale * found[1]
        array = array_of(value)
    return array, scale
