"""Matrix products by a GPU's tiles: which nests are one, and how its factors lie.

A convolution is one too: its rows are the places of windows, along several axes, and its
depth is that of a window. An array that is read so is no matrix, but lies at an index of
all these axes, with guards where windows reach beyond it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from steelyard_kernels.dtypes import (
    HALVES,
    INTEGERS,
    STORED,
    TENSOR,
    DType,
    float32,
    float64,
    int32,
    int64,
    widens,
)
from steelyard_kernels.expression.expr import Apply, Cast, Input, Node, View
from steelyard_kernels.expression.indices import Index, Part, axis
from steelyard_kernels.nest.axes import Nest, Stored, Value, names_of
from steelyard_kernels.nest.contraction import Contraction, contraction_of

HALF: Final = 2  # bytes
LINE: Final = 128  # bytes of a row in shared memory: a step along the depth
INSTRUCTION: Final = 32  # bytes of each row that one instruction multiplies
UNIT: Final = 16  # bytes that every stride of a bulk copy is a multiple of
MOST_BATCH: Final = 3  # axes, beside the two of a matrix: a tensor has up to five
# What threads multiply by FMA.
EXACT: Final = (*HALVES, *STORED, float32, float64, *INTEGERS)


Axes: TypeAlias = tuple[int, ...]


class Factor(Struct, frozen=True, eq=False):
    """An array that a product reads: rows along the reduced axis, or `across`.

    Strides are in elements: `pitch` from row to row, `batch` between matrices along each
    axis of the batch (0: one for all), where so many neighbours as `shared` says have
    one; it begins `first` elements behind its array. So many of a row's `lanes` lie
    together, from multiples of them on: 16 bytes, 4 or one element. What is no matrix
    is read through a `window`, whose offset and guards say where. One that is `turned`
    lies across in its array, and along the reduced axis in shared memory.
    """

    source: Input
    across: bool
    pitch: int
    batch: tuple[int, ...]
    shared: tuple[int, ...]
    first: int
    lanes: int
    window: Value | None = None
    turned: bool = False

    @property
    def bulk(self) -> bool:
        """Whether bulk copies read it."""
        return self.lanes * self.source.dtype.bytes == UNIT and self.window is None

    @property
    def steps(self) -> tuple[int, int]:
        """How far apart neighbours along its own axis are, and along the reduced one."""
        return (1, self.pitch) if self.across or self.turned else (self.pitch, 1)


@dataclass(frozen=True, eq=False)  # without slots: many tilings ask the same
class Product:
    """A nest that is the products of rows and columns, and what is made of each sum.

    Rows are of `dtype`, columns of as many bytes, or both are of the wider of two. `axes` are those of the batch, the rows, the columns and the reduced ones, by their
    numbers among `loops`: axes of the nest that are walked as one. `exact`: by FMA, what
    tensor cores do not multiply.
    """

    sums: Contraction
    dtype: DType
    axes: tuple[tuple[int, ...], int, int, int]
    rows: Factor
    columns: Factor
    loops: tuple[tuple[int, ...], ...]
    exact: bool = field(default=False, kw_only=True)

    @property
    def step(self) -> int:
        """Elements of a step along the depth: a row of `LINE` bytes."""
        return LINE // self.dtype.bytes

    @property
    def deep(self) -> int:
        """Elements along the depth that one instruction multiplies."""
        return INSTRUCTION // self.dtype.bytes

    @property
    def units(self) -> int:
        """Elements of 16 bytes."""
        return UNIT // self.dtype.bytes

    @property
    def added(self) -> DType:
        """What products are added up in; integers wrap, so that half of them have one."""
        wide = self.exact and self.sums.dtype.bytes == int64.bytes
        if self.dtype.kind == "float":
            return float64 if wide else float32
        return int64 if wide else int32

    @property
    def promotes(self) -> bool:
        """Whether sums of a step are added to others apart: cores keep few bits of them."""
        return self.dtype in STORED

    def lying(self, factor: Factor) -> DType:
        """Return what a factor's elements are in shared memory: as wide as the other's."""
        own = factor.source.dtype
        return own if own.bytes == self.dtype.bytes else self.dtype

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
        stored = [output.offset for _, output in self.sums.outputs]
        return self.together(self.sums.behind, self.axes[2], stored)

    def together(
        self, values: Collection[Value], loop: int, stored: Iterable[Index] = ()
    ) -> int:
        """Return 2 where arrays that values read, and stores, are so aligned along a loop."""
        whole = not self.sums.extent(self.loops[loop]) % 2
        read = [v.offset for v in values if v.source is not None]
        free = whole and not any(v.guards or v.step for v in values)
        return 2 if free and all(self.lies(o, 2, loop) for o in (*read, *stored)) else 1

    def is_staged(self, output: Stored) -> bool:
        """Say whether an output's rows may be stored by the widest vectors."""
        return output in self._staged

    @cached_property
    def _staged(self) -> tuple[Stored, ...]:
        halves = [o for o in self.nest.outputs if o.value.node.dtype.bytes == HALF]
        return tuple([o for o in halves if self.lies(o.offset, UNIT // HALF)])


def product_of(nest: Nest) -> Product | str:
    """Return the product that a nest is, or why it is none for tensor cores or FMA."""
    found = contraction_of(nest, reduces=True)
    if isinstance(found, str):
        return found
    factors = _of_tensor_cores(found)
    exact = isinstance(factors, str)
    if isinstance(factors, str):
        factors = _of_threads(found, factors)
    if isinstance(factors, str):
        return factors
    own, depth = (found.rows, found.columns), found.depth
    batch = [(axis,) for axis in found.outer]
    if len(batch) > MOST_BATCH or not all((*own, depth)):
        return "has not rows of one array and columns of the other, in one batch"
    loops = tuple(sorted((*batch, *own, depth)))
    i, j, k = (loops.index(each) for each in (*own, depth))
    dtype = max([v.node.dtype for v in factors], key=lambda x: x.bytes)
    rows, columns = (
        factor_of(found.nest, v, (axes, depth), batch, exact=exact)
        or _window(found.nest, v, axes, depth, exact=exact)
        for v, axes in zip(factors, own, strict=True)
    )
    if exact:
        few = UNIT // dtype.bytes
        rows, columns = (replace(x, lanes=min(x.lanes, few)) for x in (rows, columns))
    axes = tuple([loops.index(each) for each in batch]), i, j, k
    return Product(found, dtype, axes, rows, columns, loops, exact=exact)


def _of_tensor_cores(found: Contraction) -> tuple[Value, Value] | str:
    """Return the arrays that tensor cores multiply, or why there are none."""
    sums = found.reduction.node.dtype
    integers = sums.kind == "int" and found.dtype.bytes <= int32.bytes
    if sums not in {float32, *HALVES} and not integers:
        return f"adds up products of {found.dtype}"
    a, b = (array_of(v, guarded=True, kinds=TENSOR) for v in (found.left, found.right))
    if a is None or b is None:
        return f"multiplies what is computed, not two arrays of {', '.join(map(str, TENSOR))}"
    pair = {a.node.dtype, b.node.dtype}
    wide = max(each.bytes for each in pair)  # those of one byte go together
    if (len(pair) > 1 < wide) or {x.kind for x in pair} != {sums.kind}:
        return f"multiplies {a.node.dtype} by {b.node.dtype} in {sums}"
    return a, b


def _of_threads(found: Contraction, why: str) -> tuple[Value, Value] | str:
    """Return the arrays that threads multiply by FMA, or `why` tensor cores do not."""
    a, b = (
        array_of(v, guarded=True, kinds=EXACT, exact=True)
        for v in (found.left, found.right)
    )
    if a is None or b is None or found.reduces:
        return why
    fits = multiplies(a.node.dtype, b.node.dtype, found.dtype)
    return (a, b) if fits else why


def multiplies(one: DType, other: DType, sums: DType) -> bool:
    """Say whether threads add up products of two dtypes by FMA, as the wider of them."""
    narrow, wide = sorted([one, other], key=lambda x: x.bytes)
    fits = narrow.bytes == wide.bytes or widens(narrow, wide)
    return fits and narrow.kind == wide.kind == sums.kind != "bool"


def array_of(
    value: Value,
    *,
    guarded: bool = False,
    kinds: Sequence[DType] = HALVES,
    exact: bool = False,
) -> Value | None:
    """Return the array that a value is, widened or not; if it may, with guards.

    An array of float32 is one only as tf32, or `exact`, which nothing cuts.
    """
    guards, cut = set(value.guards), False
    while value.source is None and keeps(value.node):
        cut |= isinstance(value.node, Apply)
        (value,) = value.args.values()
        guards |= set(value.guards)
    whole = isinstance(value.source, Input) and not value.step
    plain = whole and guards == set(value.guards) and (guarded or not guards)
    dtype = value.node.dtype
    fits = not cut if exact else cut >= (dtype is float32)
    return value if plain and dtype in kinds and fits else None


def keeps(node: Node) -> bool:
    """Say whether a node has its operand's elements, perhaps widened, or as tf32."""
    if isinstance(node, Cast):
        from_, to = node.arg.dtype, node.dtype
        wider = from_.kind == to.kind and from_.digits <= to.digits
        return wider and from_.bytes < to.bytes and from_.signed <= to.signed
    return isinstance(node, View) or (isinstance(node, Apply) and node.op == "tf32")


def factor_of(
    nest: Nest,
    value: Value,
    axes: tuple[Axes, Axes],
    batch: Sequence[Axes],
    *,
    exact: bool = False,
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
    across, size = b != 1, value.source.dtype.bytes
    turned = across and (exact or size != HALF)  # tensor cores turn halves alone
    lengths = (b if across else a), *rest, offset.constant
    along = prod([nest.extents[axis] for axis in axes[not across]])
    lanes = 1 if turned else _lanes(size, lengths, along)
    return Factor(
        value.source,
        across and not turned,
        lengths[0],
        tuple(rest),
        tuple(matrices),
        offset.constant,
        lanes,
        turned=turned,
    )


def _lanes(size: int, lengths: Sequence[int], along: int) -> int:
    """Return how many elements lie together, of rows that are so long; from where on."""
    if not any(length % (UNIT // size) for length in lengths):
        return UNIT // size
    few = max(1, 4 // size)
    return 1 if any(length % few for length in (along, *lengths)) else few


def _window(nest: Nest, value: Value, own: Axes, depth: Axes, *, exact: bool) -> Factor:
    """Return how an array lies that is no matrix: with the depth's last axis, or across."""
    assert isinstance(value.source, Input)
    offset, last = value.offset, depth[-1]
    size = value.source.dtype.bytes
    across = offset.step(last) != 1 and offset.step(own[-1]) == 1
    turned = across and exact
    across = across and size == HALF and not exact
    lengths = [step for term, step in offset.terms if term != last]
    lengths += [offset.constant, nest.extents[last]]
    free = not any(last in index.axes for index, _ in value.guards)
    lanes = 1
    if offset.step(last) == 1 and free:
        lanes = _lanes(size, lengths, nest.extents[last])
    return Factor(value.source, across, 0, (), (), 0, lanes, value, turned)


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
