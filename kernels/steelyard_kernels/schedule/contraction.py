"""Matrix products by tensor cores: which nests are one, and how its factors lie.

A convolution is one too: its rows are the places of windows, along several axes, and its
depth is that of a window. An array that is read so is no matrix, but lies at an index of
all these axes, with guards where windows reach beyond it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final, TypeAlias

from steelyard_kernels.dtypes import HALVES, DType, float32
from steelyard_kernels.expression.expr import Cast, Input, Node, View
from steelyard_kernels.expression.indices import Index, Part, axis
from steelyard_kernels.nest.axes import Nest, Stored, Value, names_of
from steelyard_kernels.nest.contraction import Contraction, contraction_of

HALF: Final = 2  # bytes
UNIT: Final = 16  # bytes that every stride of a bulk copy is a multiple of
MOST_BATCH: Final = 3  # axes, beside the two of a matrix: a tensor has up to five


Axes: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Factor:
    """An array of halves that a product reads: rows along the reduced axis, or `across`.

    Strides are in elements: `pitch` from row to row, `batch` between matrices along each
    axis of the batch (0: one for all), where so many neighbours as `shared` says have
    one; it begins `first` elements behind its array. So many of a row's `lanes` lie
    together, from multiples of them on: 8, which are 16 bytes, 2 or 1. What is no matrix
    is read through a `window`, whose offset and guards say where.
    """

    source: Input
    across: bool
    pitch: int
    batch: tuple[int, ...]
    shared: tuple[int, ...]
    first: int
    lanes: int
    window: Value | None = None

    @property
    def bulk(self) -> bool:
        """Whether bulk copies read it."""
        return self.lanes * HALF == UNIT and self.window is None


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """A nest that is the products of rows and columns, and what is made of each sum.

    `axes` are those of the batch, the rows, the columns and the reduced ones, by their
    numbers among `loops`: axes of the nest that are walked as one.
    """

    sums: Contraction
    dtype: DType
    axes: tuple[tuple[int, ...], int, int, int]
    rows: Factor
    columns: Factor
    loops: tuple[tuple[int, ...], ...]

    def names(self, loop: int) -> str:
        """Return the names of a loop's axes."""
        return names_of(self.loops[loop])

    @property
    def batch(self) -> list[int]:
        """How many matrices there are along each axis of the batch."""
        return [self.nest.extents[self.loops[loop][0]] for loop in self.axes[0]]

    @property
    def nest(self) -> Nest:
        """What is emitted."""
        return self.sums.nest

    @property
    def extents(self) -> tuple[int, int, int, int]:
        """How many products there are, their rows, columns and depth."""
        return self.sums.extents

    @property
    def has_window(self) -> bool:
        """Whether a factor is no matrix."""
        return self.rows.window is not None or self.columns.window is not None

    @property
    def is_bulk(self) -> bool:
        """Whether bulk copies read both factors."""
        return self.rows.bulk and self.columns.bulk

    @property
    def touched(self) -> list[Index]:
        """Where arrays are read and written for each element of the product."""
        read = [v.offset for v in self.sums.behind if v.source is not None]
        return [*read, *[output.offset for _, output in self.sums.outputs]]

    def lies(self, offset: Index, lanes: int, axis: int | None = None) -> bool:
        """Say whether `lanes` columns, or elements along another axis, are aligned vectors.

        They begin at a multiple of `lanes`.
        """
        group = self.loops[self.axes[2] if axis is None else axis]
        others = [step for term, step in offset.terms if term not in group]
        step, extent = self.sums.walks(offset, group), self.sums.extent(group)
        aligned = all(n % lanes == 0 for n in (offset.constant, *others))
        return step in {0, 1} and not extent % lanes and (aligned or step == 0)

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
    a, b = (array_of(v, guarded=True) for v in (found.left, found.right))
    if a is None or b is None:
        return "multiplies what is computed, not two arrays of halves"
    if a.node.dtype is not b.node.dtype:
        return f"multiplies {a.node.dtype} by {b.node.dtype}"
    own, depth = (found.rows, found.columns), found.depth
    batch = [(axis,) for axis in found.outer]
    if len(batch) > MOST_BATCH or not all((*own, depth)):
        return "has not rows of one array and columns of the other, in one batch"
    loops = tuple(sorted((*batch, *own, depth)))
    i, j, k = (loops.index(each) for each in (*own, depth))
    rows, columns = (
        factor_of(found.nest, v, (axes, depth), batch)
        or _window(found.nest, v, axes, depth)
        for v, axes in zip((a, b), own, strict=True)
    )
    axes = tuple([loops.index(each) for each in batch]), i, j, k
    return Product(found, a.node.dtype, axes, rows, columns, loops)


def array_of(value: Value, *, guarded: bool = False) -> Value | None:
    """Return the array of halves that a value is, widened or not; if it may, with guards."""
    guards = set(value.guards)
    while value.source is None and _keeps(value.node):
        (value,) = value.args.values()
        guards |= set(value.guards)
    whole = isinstance(value.source, Input) and not value.step
    plain = whole and guards == set(value.guards) and (guarded or not guards)
    return value if plain and value.node.dtype in HALVES else None


def _keeps(node: Node) -> bool:
    """Say whether a node has its operand's elements, halves perhaps widened."""
    return isinstance(node, View) or (
        isinstance(node, Cast) and node.dtype.bytes > HALF
    )


def factor_of(
    nest: Nest,
    value: Value,
    axes: tuple[Axes, Axes],
    batch: Sequence[Axes],
) -> Factor | None:
    """Return how a matrix lies along its own axes and the depth's; None: it is none."""
    assert isinstance(value.source, Input)
    offset = value.offset
    walks = [_walk(nest, offset, group) for group in (*axes, *batch)]
    a, b, *rest = (step for step, _ in walks)
    matrices = [shared for _, shared in walks[2:]]
    together = max(n for _, n in walks[:2]) == 1
    if value.guards or 1 not in {a, b} or min(a, b, *rest) < 0 or not together:
        return None
    across = b != 1
    lengths = (b if across else a), *rest, offset.constant
    lanes = UNIT // HALF
    if any(length % lanes for length in lengths):
        along = prod([nest.extents[axis] for axis in axes[not across]])
        lanes = 1 if any(length % 2 for length in (along, *lengths)) else 2
    return Factor(
        value.source,
        across,
        lengths[0],
        tuple(rest),
        tuple(matrices),
        offset.constant,
        lanes,
    )


def _window(nest: Nest, value: Value, own: Axes, depth: Axes) -> Factor:
    """Return how an array lies that is no matrix: with the depth's last axis, or across."""
    assert isinstance(value.source, Input)
    offset, last = value.offset, depth[-1]
    across = offset.step(last) != 1 and offset.step(own[-1]) == 1
    lengths = [step for term, step in offset.terms if term != last]
    lengths += [offset.constant, nest.extents[last]]
    free = not any(last in index.axes for index, _ in value.guards)
    lanes = 1
    if offset.step(last) == 1 and free:
        fits = (n for n in (UNIT // HALF, 2) if not any(x % n for x in lengths))
        lanes = next(fits, 1)
    return Factor(value.source, across, 0, (), (), 0, lanes, value)


def _walk(nest: Nest, offset: Index, group: Axes) -> tuple[int, int]:
    """Return what steps along axes add, and how many add it once; -1: nothing like it."""
    along = group[-1]
    step = offset.step(along)
    if step is not None:
        for place, outer in enumerate(group[:-1]):
            inner = prod([nest.extents[each] for each in group[place + 1 :]])
            if offset.step(outer) != step * inner and nest.extents[outer] > 1:
                return -1, 1
        return step, 1
    for term, coefficient in offset.terms:
        if isinstance(term, Part) and term.index == axis(along) and not term.modulus:
            return coefficient, term.divisor
    return -1, 1
