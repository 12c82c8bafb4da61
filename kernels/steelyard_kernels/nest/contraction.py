"""Sums of products: which nests are one, and which axes are rows, columns and depth."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property, lru_cache
from math import prod

from msgspec import Struct
from msgspec.structs import replace

from steelyard_kernels.dtypes import DType
from steelyard_kernels.expression.expr import Apply, Cast, Dot, Reduce
from steelyard_kernels.expression.indices import Index
from steelyard_kernels.expression.structure import closure
from steelyard_kernels.monoids import accumulator
from steelyard_kernels.nest.axes import Nest, Stored, Value
from steelyard_kernels.nest.reads import reads_of


class Contraction(Struct, frozen=True, eq=False, dict=True):
    """A nest whose one reduction adds up products of two values along `depth`.

    `left` varies with `rows` and not with `columns`, `right` the other way round;
    `columns` end with the last axis of the outputs. `outer` are the outputs' other axes.
    The sums are of `dtype`; `total` is the value that they come to. `only` are the places
    of the outputs that are made of them (None: all). `reduces` rows of what is made of them.
    """

    nest: Nest
    reduction: Value
    total: Value
    dtype: DType
    left: Value
    right: Value
    outer: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    depth: tuple[int, ...]
    only: tuple[int, ...] | None = None
    reduces: bool = False

    def extent(self, axes: Sequence[int]) -> int:
        """Return how many indices some axes have together."""
        return prod([self.nest.extents[axis] for axis in axes])

    @cached_property
    def extents(self) -> tuple[int, int, int, int]:
        """How many products there are, their rows, columns and depth."""
        every = self.outer, self.rows, self.columns, self.depth
        outer, rows, columns, depth = map(self.extent, every)
        return outer, rows, columns, depth

    @property
    def outputs(self) -> list[tuple[int, Stored]]:
        """The outputs that are made of the sums, with their places."""
        every = enumerate(self.nest.outputs)
        return [pair for pair in every if self.only is None or pair[0] in self.only]

    @cached_property
    def behind(self) -> tuple[Value, ...]:
        """The values that are made of the sums, operands first, and what rows reduce."""
        pending = [output.value for _, output in self.outputs]
        reads, total = reads_of(self.nest), self.total.number

        def follow(value: Value) -> Iterable[Value]:
            return reads.of(value).values()

        return tuple(closure(pending, follow, lambda value: value.number != total))

    @cached_property
    def made_of(self) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
        """What each factor is made of, operands first, and itself."""
        left, right = (reached(self.nest, [v], set()) for v in (self.left, self.right))
        return left, right

    def walks(self, offset: Index, axes: Sequence[int]) -> int | None:
        """Return what one step along axes, taken as one, adds; None where it differs."""
        step, inner = offset.step(axes[-1]) if axes else 0, 1
        for axis in reversed(axes):
            own = offset.step(axis)
            if step is None or (own != step * inner and self.nest.extents[axis] > 1):
                return None
            inner *= self.nest.extents[axis]
        return step


@lru_cache(maxsize=4)  # a build asks for it to choose a schedule, then to lower
def contraction_of(nest: Nest, *, reduces: bool = False) -> Contraction | str:
    """Return the sums of products that a nest is, or why it is none.

    Where it `reduces`, whole rows of what is made of them may be reduced too.
    """
    every_one = [value for value in nest.values if value.over]
    rows_of = [v for v in every_one if reduces and max(v.over) < nest.space]
    reductions = [value for value in every_one if value not in rows_of]
    if len(reductions) != 1:
        return "has not one sum"
    (reduction,) = reductions
    found = factors_of(nest, reduction)
    if found is None:
        return "is no sum of products of two values"
    total, dtype, (left, right) = found
    depth, every = frozenset(reduction.over), frozenset(range(nest.space))
    if not depth <= left.axes & right.axes:
        return "is no sum of products of two values along the same axes"
    inner = frozenset[int]().union(*[v.over for v in rows_of])
    if nest.inner != inner or any(o.offset.axes != every for o in nest.outputs):
        return "has an output of another shape than the product's"
    if nest.space - 1 in left.axes:
        left, right = right, left
    alone = right.axes - left.axes - depth
    columns = _last(range(nest.space), alone)
    if (
        not columns
        or columns[-1] != nest.space - 1
        or left.axes | right.axes != every | depth
    ):
        return "has no columns, which vary with one factor alone"
    rest = range(columns[0])
    rows = _last(rest, left.axes - right.axes)
    outer = tuple([axis for axis in rest if axis not in rows])
    if any(
        set(v.over) != set(columns) or not isinstance(v.node, Reduce) for v in rows_of
    ):
        return "reduces what is made of its sums along other axes than its columns"
    axes = outer, rows, columns, tuple(sorted(depth))
    whole = Contraction(nest, reduction, total, dtype, left, right, *axes)
    return replace(whole, reduces=bool(rows_of))


def _last(axes: Sequence[int], wanted: AbstractSet[int]) -> tuple[int, ...]:
    """Return the last of some axes that are neighbours and wanted."""
    found: list[int] = []
    for axis in reversed(axes):
        if axis in wanted:
            found.insert(0, axis)
        elif found:
            break
    return tuple(found)


def factors_of(
    nest: Nest, reduction: Value
) -> tuple[Value, DType, tuple[Value, Value]] | None:
    """Return what sums come to, the dtype that they are added up in, and the factors.

    Beside running totals there are none: those take what they add up in order, not in
    tiles.
    """
    if nest.running:
        return None
    node, reads = reduction.node, reads_of(nest)
    dot = isinstance(node, Dot)
    if not dot and not (isinstance(node, Reduce) and node.op == "sum"):
        return None
    if node.dtype.kind == "float":
        factors = list(reads.of(reduction).values())
        factors = factors * 2 if dot and len(factors) == 1 else factors
        if len(factors) != 2:
            return None
        return reduction, accumulator(node.dtype), (factors[0], factors[1])
    return None if dot else _of_integers(nest, reduction)


def _of_integers(
    nest: Nest, reduction: Value
) -> tuple[Value, DType, tuple[Value, Value]] | None:
    """Return the factors of integers, whose sums wrap as their products do.

    Sums of 64 bits that are cast to as many bits as the products have, or fewer, are
    those that are added up in the products' dtype.
    """
    (product,) = reduction.args.values()
    if isinstance(product.node, Cast) and product.source is None and not product.guards:
        (product,) = product.args.values()
    dtype = product.node.dtype
    if not isinstance(product.node, Apply) or product.node.op != "multiply":
        return None
    users = [v for v in nest.values if reduction in v.args.values()]
    stored = any(o.value is reduction for o in nest.outputs)
    total = reduction
    if dtype is not reduction.node.dtype:
        if stored or len(users) != 1 or not isinstance(users[0].node, Cast):
            return None
        (total,) = users
        if total.node.dtype.kind != "int" or total.node.dtype.bytes > dtype.bytes:
            return None
    factors = list(product.args.values())
    return total, dtype, (factors[0], factors[-1])


def reached(nest: Nest, values: list[Value], known: set[int]) -> tuple[Value, ...]:
    """Return some values and all that they are made of, but those that are known."""
    needs = reads_of(nest).needs
    return tuple(closure(values, needs, lambda value: value.number not in known))


@lru_cache(maxsize=64)  # every candidate asks
def in_order(
    product: Contraction, values: tuple[Value, ...], axes: tuple[int, ...], lanes: int
) -> bool:
    """Say whether vectors along axes, taken as one, read arrays in order.

    They begin at multiples of `lanes`. What does not vary is read by no vector.
    """
    extents = product.nest.extents
    along = axes[-1:] if extents[axes[-1]] % lanes == 0 else axes
    for value in values:
        own = value.axes.intersection(along)
        computed = frozenset[int]().union(
            *[arg.axes for arg in value.args.values() if value.source is not None],
            *[index.axes for index, _ in value.guards],
        )
        if computed.intersection(along) or (
            own and value.source and product.walks(value.offset, along) != 1
        ):
            return False
    return True


@lru_cache(maxsize=64)
def in_rows(values: tuple[Value, ...], axes: tuple[int, ...]) -> bool:
    """Say whether vectors along the last of some axes read arrays in order.

    They end where it does; some of their lanes may lie outside of the arrays.
    """
    last = axes[-1]
    for value in values:
        if not {index.step(last) for index, _ in value.guards} <= {0, 1}:
            return False
        if value.source is None or last not in value.axes:
            continue
        computed = any(last in arg.axes for arg in value.args.values())
        if computed or value.offset.step(last) != 1:
            return False
    return True
