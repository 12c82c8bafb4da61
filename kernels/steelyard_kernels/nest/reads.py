"""What the values of a nest are made of, with products taken up by sums."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Final

from msgspec import Struct

from steelyard_kernels import dtypes
from steelyard_kernels.dtypes import DType
from steelyard_kernels.expression.expr import Along, Apply, Cast, Dot, Reduce, Segments
from steelyard_kernels.expression.structure import closure, users
from steelyard_kernels.monoids import MONOIDS, Monoid, accumulator
from steelyard_kernels.nest.axes import Nest, Value, segmented
from steelyard_kernels.schedule.values import fusions, largest_of

ADDED: Final = MONOIDS["sum"]


class Term(Struct, frozen=True):
    """What is accumulated: values, or of two their product, in a dtype.

    Reductions of the same values share it: a sum, a mean, a variance.
    """

    monoid: Monoid
    args: tuple[Value, ...]
    dtype: DType

    @property
    def neutral(self) -> float:
        """What changes no total."""
        return self.monoid.neutral(self.dtype)


@lru_cache(maxsize=2)  # a build asks for it to choose a schedule, then to lower
def reads_of(nest: Nest, *, narrow: bool = False) -> Reads:
    """Return what each value of a nest reads."""
    return Reads(nest, narrow=narrow)


class Reads:
    """What each value reads: inside and outside of reductions.

    `narrow`: extrema of halves are found among halves, as GPUs do two at a time, also
    where the program widens them first. So there are half as many registers between this
    walk and the next.
    """

    def __init__(self, nest: Nest, *, narrow: bool = False) -> None:
        self.narrow = narrow
        level = {value.node.number: value.axes for value in nest.values}
        exact = {output.value.node.number for output in nest.outputs}
        self.fused = fusions(nest.program.nodes, level, exact)
        self._uses = users(nest.program.nodes)
        for number in exact:
            self._uses[number] = self._uses.get(number, 0) + 1
        sums = [v.node for v in nest.values if isinstance(v.node, Reduce)]
        self.summed = frozenset([n.arg.number for n in sums if self._is_all(n)])

    def _is_all(self, node: Reduce) -> bool:
        """Say whether a sum is all that powers below a largest value of its lines are for."""
        largest = largest_of(node.arg)
        lines = largest is not None and largest.axes == node.axes
        return lines and node.op == "sum" and self._uses[node.arg.number] == 1

    def of(self, value: Value) -> Mapping[int, Value]:
        """Return what a value is made of, by operands' numbers.

        Of a product that it takes up, these are the factors.
        """
        if value.over:
            return self._taken(value)
        fusion = self.fused.get(value.node.number)
        if fusion is None:
            return value.args
        taken, (a, b, c) = value.args[fusion.product], (fusion.a, fusion.b, fusion.c)
        return {
            a.number: taken.args[a.number],
            b.number: taken.args[b.number],
            c.number: value.args[c.number],
        }

    def _taken(self, reduction: Value) -> Mapping[int, Value]:
        """Return what a reduction takes in: of a sum of products, the factors."""
        node, args = reduction.node, reduction.args
        if self.narrow and isinstance(node, Reduce) and MONOIDS[node.op].chooses:
            return {n: _unwidened(arg) for n, arg in args.items()}
        if not isinstance(node, Reduce) or node.op not in {"sum", "mean"}:
            return args
        arg = args[node.arg.number]
        alone = self._uses[arg.node.number] == 1 and arg.node is node.arg
        if not alone or node.dtype not in {dtypes.float32, dtypes.float64}:
            return args
        if (
            isinstance(arg.node, Apply)
            and arg.node.op == "multiply"
            and arg.guards == ()
        ):
            return arg.args if len(arg.args) == 2 else args
        return args

    def inside(self, values: Iterable[Value], over: Container[int]) -> list[Value]:
        """Return what values need that varies with some axes, operands first."""
        roots = [arg for v in values for arg in self.of(v).values()]
        return closure(roots, self.needs, lambda v: any(k in over for k in v.axes))

    def ahead(self, values: Iterable[Value]) -> frozenset[int]:
        """Return the numbers of values, and what they need, that wait for no reduction."""
        found: set[int] = set()
        for value in values:
            needed = closure([value], lambda each: self.of(each).values())
            if not any(each.over for each in needed):
                found |= {each.number for each in needed}
        return frozenset(found)

    def needs(self, value: Value) -> list[Value]:
        """Return what must be emitted before a value."""
        return self.outside(value) if value.over else list(self.of(value).values())

    def outside(self, reduction: Value) -> list[Value]:
        """Return what a reduction needs that does not vary with its axes."""
        inner = self.inside([reduction], reduction.over)
        reads = list(self.of(reduction).values())
        for value in inner:
            reads += self.needs(value)
        return [v for v in reads if not v.axes.intersection(reduction.over)]

    def together(
        self, values: Sequence[Value], is_known: Callable[[Value], bool]
    ) -> list[Value]:
        """Return the first of some values, a reduction, and those that its walk serves."""
        first, *more = values
        return [first] + [
            value
            for value in more
            if (value.over, value.axes) == (first.over, first.axes)
            and not isinstance(value.node, Along)
            and all(map(is_known, self.outside(value)))
        ]


def terms(value: Value, reads: Reads, *, one_pass: bool) -> list[Term]:
    """Return what a reduction accumulates in its walk."""
    node, args = value.node, tuple(reads.of(value).values())
    dtype = accumulator(node.dtype)
    if isinstance(node, Dot):
        return [Term(ADDED, args * (3 - len(args)), dtype)]  # of itself too
    if isinstance(node, Segments):
        return [Term(ADDED, (value.args[node.arg.number],), dtype)]
    assert isinstance(node, Reduce)
    if not deviates(value):
        monoid = MONOIDS[node.op]
        if reads.narrow and monoid.chooses:
            dtype = args[0].node.dtype
        return [Term(ADDED if monoid.mean else monoid, args, dtype)]
    found = [Term(ADDED, args, dtype)]
    return found + [Term(ADDED, args * 2, dtype)] * one_pass


def _unwidened(value: Value) -> Value:
    """Return the halves whose casts to wider floats a value is; itself if it is none."""
    while isinstance(value.node, Cast) and not value.guards:
        (arg,) = value.args.values()
        if arg.node.dtype not in dtypes.HALVES or value.node.dtype.kind != "float":
            break
        value = arg
    return value


def deviates(value: Value) -> bool:
    """Say whether a value is a variance, for which deviations from the mean are walked."""
    node = value.node
    return isinstance(node, Reduce) and MONOIDS[node.op].moments


class Pass(Struct, frozen=True):
    """One walk: all values it needs that vary with walked axes, operands first.

    Of these it is the first to compute `fresh`, if earlier ones' stay where they are; then
    it reads `again` what earlier ones computed.
    """

    values: tuple[Value, ...]
    fresh: tuple[Value, ...]
    again: frozenset[int]
    reductions: int


class Passes(Struct, frozen=True):
    """The walks of a nest, in order, along its `walked` axes.

    They are those of a row, which is an index of the `space`, whose `last` axis has a row's
    neighbours (-1: there is one).
    The last one has the outputs; where these vary with no walked axis it is empty.
    """

    walked: frozenset[int]
    space: frozenset[int]
    last: int
    passes: tuple[Pass, ...]

    @classmethod
    def of(cls, nest: Nest) -> Passes:
        """Find a nest's walks: one for all reductions that wait for as many others."""
        reads = Reads(nest, narrow=True)
        walked = nest.inner.union(*[value.over for value in nest.values])
        depth: dict[int, int] = {}
        goals: dict[int, list[Value]] = {}
        count: dict[int, int] = {}
        for value in _needed(nest, reads):
            args = reads.of(value).values()
            wait = max([depth[arg.number] for arg in args], default=0)
            depth[value.number] = wait + bool(value.over)
            if value.over:
                goals.setdefault(wait, []).extend(args)
                count[wait] = count.get(wait, 0) + 1
        stored = [output.value for output in nest.outputs]
        last = max([depth[value.number] for value in stored])
        goals.setdefault(last, []).extend(stored)
        known: set[int] = set()
        found = []
        for k in range(last + 1):
            values = _inside(goals.get(k, ()), reads, walked, frozenset())
            fresh = _inside(goals.get(k, ()), reads, walked, known)
            here = [v for v in fresh if v.number not in known]
            again = frozenset([v.number for v in fresh]) & known
            found.append(Pass(values, tuple(here), again, count.get(k, 0)))
            known |= {value.number for value in here}
        rows = frozenset(range(nest.space)) - walked
        return cls(walked, rows, max(rows, default=-1), tuple(found))


def walks_of(nest: Nest) -> list[frozenset[int]]:
    """Return the axes of each reduction's walks, and of what these are walked again for.

    One that another reduction's walk needs is walked again for each of its steps.
    """
    reads, found = reads_of(nest), []
    stored = {output.value.number for output in nest.outputs}
    around = {v.number: [v.axes] * (v.number in stored) for v in nest.values}
    for value in reversed([value for value in nest.values if value.over]):
        walks = around[value.number] or [value.axes]
        found += [axes.union(value.over) - segmented(value) for axes in walks]
        opened = max(walks, key=len).union(value.over)
        for each in reads.inside([value], value.over):
            around[each.number].append(opened)
    return found


def walks_behind(nest: Nest) -> list[frozenset[int]]:
    """Return the axes behind the first loop that are walked within one another."""
    inner = frozenset(range(nest.outer, len(nest.extents)))
    if len(inner) < 2:
        return [inner]
    stored = frozenset(range(nest.space))
    found = {walk & inner for walk in (*walks_of(nest), stored)}
    rest = inner.difference(*found)
    found |= {rest} if rest else set()
    return [each for each in found if not any(each < other for other in found)]


def _needed(nest: Nest, reads: Reads) -> list[Value]:
    """Return all values that outputs are made of, operands first."""
    outputs = [output.value for output in nest.outputs]
    return closure(outputs, lambda value: reads.of(value).values())


def _inside(
    goals: Iterable[Value],
    reads: Reads,
    walked: AbstractSet[int],
    known: AbstractSet[int],
) -> tuple[Value, ...]:
    """Return what goals are made of that varies with walked axes, but no reductions.

    What is known is made of nothing.
    """
    found = closure(
        goals,
        lambda value: () if value.number in known else reads.of(value).values(),
        lambda value: not value.over and bool(value.axes & walked),
    )
    return tuple(found)
