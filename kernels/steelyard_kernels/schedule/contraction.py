"""Matrix products by tensor cores: which nests are one, and how its factors lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from steelyard_kernels.dtypes import HALVES, DType, float32
from steelyard_kernels.expression.expr import Cast, Input
from steelyard_kernels.expression.indices import Index, Part, axis
from steelyard_kernels.nest.axes import Nest, Stored, Value
from steelyard_kernels.nest.contraction import Contraction, contraction_of

HALF: Final = 2  # bytes
UNIT: Final = 16  # bytes that every stride of a bulk copy is a multiple of
MOST_BATCH: Final = 3  # axes, beside the two of a matrix: a tensor has up to five


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
