"""Sums of rows that are weighted by what is made of products: a pass of attention's gradient.

    dq[i] = sum over j of ds[i, j] k[j]          where s = q @ k.T, p = exp(s - l),
    dk[j] = sum over i of ds[i, j] q[i]                dp = g @ v.T, ds = p * (dp - d)
    dv[j] = sum over i of p[i, j] g[i]

The products are computed again by each kernel that weighs by them, so that no matrix of
queries and keys lies in memory. Weights are computed as the program says, but that
roundings of float32 values which widen again are left out, and that powers of e are the
GPU's own: their errors are below those of the weights' rounding to halves.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import inf
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from steelyard_kernels.dtypes import HALVES, float32
from steelyard_kernels.expression.expr import Apply, Cast, Constant, Input, Reduce
from steelyard_kernels.nest.axes import Nest, Value
from steelyard_kernels.nest.contraction import Contraction, factors_of, reached
from steelyard_kernels.nest.weighing import line_below, together
from steelyard_kernels.schedule.attention import lie
from steelyard_kernels.schedule.contraction import MOST_BATCH, Factor, Product, array_of
from steelyard_kernels.schedule.online import Online, online_of, taken

T = TypeVar("T")
WIDENED: Final = (float32, *HALVES)  # what totals are kept of, in float32


class Score(Struct, frozen=True, eq=False):
    """Products of rows and keys, summed along the axis `depth` to the value `total`."""

    total: Value
    depth: int
    rows: Factor
    keys: Factor


class Pass(Struct, frozen=True, eq=False):
    """A walk along the keys: what is `wanted` of each, for `totals` or sums.

    `values` are what that is made of, operands first, `scores` those that it takes.
    """

    totals: tuple[Value, ...]
    wanted: tuple[Value, ...]
    values: tuple[Value, ...]
    scores: tuple[int, ...]
    online: Online | None = None

    @property
    def ahead(self) -> list[Value]:
        """The values that wait for none of its own totals."""
        later = {total.number for total in self.totals}
        for value in self.values:
            if later & {arg.number for arg in value.args.values()}:
                later.add(value.number)
        return [value for value in self.values if value.number not in later]


@dataclass(frozen=True, eq=False)
class Weighted(Product):
    """Sums of keys' values, weighted by what is made of scores of rows and keys.

    `axes` are those of the batch, the rows, the values' columns and the keys. `others`
    are sums of other weights, or values, along the same axes. Weights are zero but for
    keys where `seen` holds: up to a row's own number and `ahead` more, or else from that
    less `ahead` on (None: anywhere).

    Instead of sums there may be `totals` of each row over all keys, of what is made of
    scores and of other totals, which are then of an earlier level.
    """

    scores: tuple[Score, ...]
    others: tuple[Product, ...]
    seen: Value | None
    ahead: int
    upward: bool
    totals: tuple[tuple[Value, ...], ...] = ()

    @property
    def every(self) -> tuple[Product, ...]:
        """All sums."""
        return () if self.totals else (self, *self.others)

    @cached_property
    def weights(self) -> tuple[Value, ...]:
        """The halves that each sum weighs by."""
        return tuple([_halved(each.sums.left) for each in self.every])

    @cached_property
    def passes(self) -> tuple[Pass, ...]:
        """What is computed in each walk along the keys."""
        known, found = {score.total.number for score in self.scores}, list[Pass]()
        online = online_of(self.nest, self.totals, known) if self.totals else None
        for level in (online.totals,) if online else self.totals or ((),):
            wanted = tuple([taken(total) for total in level]) or self.weights
            totals = {total.number for total in level}
            values = reached(self.nest, list(wanted), known | totals)
            read = {arg.number for value in values for arg in value.args.values()}
            read |= {value.number for value in wanted}
            every = enumerate(self.scores)
            scores = tuple([k for k, score in every if score.total.number in read])
            found.append(Pass(level, wanted, values, scores, online))
            known |= totals
        return tuple(found)

    @cached_property
    def between(self) -> tuple[Value, ...]:
        """The values that are made of the scores, operands first."""
        return tuple([value for each in self.passes for value in each.values])

    @property
    def key_lanes(self) -> int:
        """Keys whose weights a thread computes at a time."""
        return self.together(self.between, self.axes[3])


@lru_cache(maxsize=2)  # a build asks for it to choose a schedule, then to lower
def weighted_of(nest: Nest) -> Weighted | str:
    """Return the weighted sums that a nest is, or why it is none."""
    every = [v for v in nest.values if v.over]
    last = nest.space - 1
    sums = [v for v in every if last in v.axes]
    if len(every) < 2 or not sums or any(len(v.over) != 1 for v in every):
        return "has not sums of rows that are weighted by sums of products"
    scores = [v for v in every if max(v.axes, default=0) >= nest.space]
    if scores and all(last in v.axes for v in scores):
        return _of_totals(nest, [v for v in every if v not in scores], scores)
    if len({nest.extents[v.over[0]] for v in sums}) > 1:
        return "weighs sums of several lengths"
    if nest.inner or any(o.offset.axes != set(range(nest.space)) for o in nest.outputs):
        return "has an output of another shape than the product's"
    if len(sums) > 1:
        nest = together(nest, sums)
        every = [v for v in nest.values if v.over]
        sums = [v for v in every if last in v.axes]
    return _of_sums(nest, sums, [v for v in every if last not in v.axes])


def _of_sums(nest: Nest, sums: list[Value], totals: list[Value]) -> Weighted | str:
    """Return what some sums weigh, by what is made of some totals, or why not so."""
    (j,) = sums[0].over
    found = _all([_sum(nest, total, j) for total in sums])
    if isinstance(found, str):
        return found
    own = {each.left.axes - each.right.axes - {j} for each in found}
    if len(own) != 1 or own == {frozenset()}:
        return "has not rows of one kind"
    rows = sorted(own.pop(), key=lambda k: (nest.extents[k], k), reverse=True)
    every = [_of_rows(nest, found, totals, (i, j)) for i in rows]
    return next((each for each in every if isinstance(each, Weighted)), every[0])


def _of_rows(
    nest: Nest, found: list[Contraction], totals: list[Value], axes: tuple[int, int]
) -> Weighted | str:
    """Return what rows along an axis weigh, or why they do not."""
    (i, j), last = axes, nest.space - 1
    batch = tuple([k for k in range(last) if k != i])
    if len(batch) > MOST_BATCH:
        return f"has more than {MOST_BATCH} axes of a batch"
    scores = _all([_score(nest, total, (i, j), batch) for total in totals])
    products = _all([_product(each, (batch, i, last, j)) for each in found])
    if isinstance(scores, str) or isinstance(products, str):
        return scores if isinstance(scores, str) else str(products)
    (first, *others), weights = products, [_halved(each.left) for each in found]
    columns = [each.columns.source for each in others]
    if any(node.dtype is not first.dtype for node in (*_arrays(scores), *columns)):
        return "has arrays of several types"
    between = reached(nest, weights, {score.total.number for score in scores})
    every = [w for w in weights if not {i, j} <= w.axes]
    if not scores or every or any(v.over for v in between):
        return "weighs by more than what is made of scores"
    return Weighted(
        *(first.sums, first.dtype, first.axes, scores[0].rows, first.columns),
        *(first.loops, tuple(scores), tuple(others)),
        *_seen(between, [(weight, 0) for weight in weights], i, j),
    )


def _of_totals(nest: Nest, totals: list[Value], sums: list[Value]) -> Weighted | str:
    """Return the totals of rows, of what is made of some sums of products, or why not so."""
    space = frozenset(range(nest.space))
    reduced = [v for v in totals if isinstance(v.node, Reduce) and v.axes == space]
    plain = [v for v in reduced if taken(v).node.dtype is v.node.dtype in WIDENED]
    kinds = {v.node.op for v in plain if isinstance(v.node, Reduce)}
    if not totals or len(plain) < len(totals) or kinds - {"sum", "max", "min"}:
        return "has not sums or extrema of rows"
    if len({v.over for v in totals}) > 1:
        return "walks several axes"
    found, (j,) = factors_of(nest, sums[0]), totals[0].over
    rows = [f.axes for f in found[2] if j not in f.axes] if found else []
    keys = [f.axes for f in found[2] if j in f.axes] if found else []
    own = rows[0] & space - keys[0] if len(rows) == 1 else frozenset()
    if not own:
        return "has not rows and keys, each with an axis of its own"
    i = max(own, key=lambda k: (nest.extents[k], k))
    batch = tuple([k for k in range(nest.space) if k != i])
    scores = _all([_score(nest, each, (i, j), batch) for each in sums])
    if isinstance(scores, str) or len(batch) > MOST_BATCH:
        return (
            scores if isinstance(scores, str) else f"has {len(batch)} axes of a batch"
        )
    first, levels = totals[0], _levels(nest, totals, {each.number for each in sums})
    dtype = scores[0].rows.source.dtype
    if any(node.dtype is not dtype for node in _arrays(scores)):
        return "has arrays of several types"
    of = taken(first)
    made = Contraction(nest, first, first, float32, of, of, batch, (i,), (), (j,))
    wanted = [(taken(v), -inf if v.node.op == "max" else 0) for v in totals]  # type: ignore[union-attr]
    known = {each.number for each in (*sums, *totals)}
    between = reached(nest, [value for value, _ in wanted], known)
    if any(v.over for v in between):
        return "totals more than what is made of scores"
    loops = tuple([(axis,) for axis in range(len(nest.extents))])
    return Weighted(
        *(made, dtype, (batch, i, i, j), scores[0].rows, scores[0].keys, loops),
        *(tuple(scores), (), *_seen(between, wanted, i, j), levels),
    )


def _levels(
    nest: Nest, totals: list[Value], known: set[int]
) -> tuple[tuple[Value, ...], ...]:
    """Return totals in the order that they need one another."""
    found: list[tuple[Value, ...]] = []
    while totals:
        reads = {v.number: reached(nest, [taken(v)], known) for v in totals}
        ready = [v for v in totals if not {*totals} & {*reads[v.number]}]
        found.append(tuple(ready))
        totals = [v for v in totals if v not in ready]
        known = known | {v.number for v in ready}
    return tuple(found)


def _arrays(scores: list[Score]) -> list[Input]:
    return [array.source for each in scores for array in (each.rows, each.keys)]


def _all(every: list[T | str]) -> list[T] | str:
    """Return what was found, or why one was not."""
    found: list[T] = []
    for each in every:
        if isinstance(each, str):
            return each
        found.append(each)
    return found


def _product(
    sums: Contraction, axes: tuple[tuple[int, ...], int, int, int]
) -> Product | str:
    """Return sums with the axes of the batch, rows, columns and keys, or why not so."""
    (batch, i, last, j), nest = axes, sums.nest
    weight, value = _halved(sums.left), array_of(sums.right)
    if value is None or value.node.dtype is not weight.node.dtype:
        return "weighs no arrays of halves by such"
    columns = lie(nest, (value, last, j), batch=batch)
    if isinstance(columns, str):
        return columns
    rows = replace(sums, outer=batch, rows=(i,), columns=(last,))
    loops = tuple([(axis,) for axis in range(len(nest.extents))])
    return Product(rows, weight.node.dtype, axes, columns[0], columns[0], loops)


def _halved(weight: Value) -> Value:
    """Return the halves that a weight is, widened or not."""
    if isinstance(weight.node, Cast) and weight.source is None:
        (arg,) = weight.args.values()
        return arg if arg.node.dtype in HALVES else weight
    return weight


def _sum(nest: Nest, total: Value, j: int) -> Contraction | str:
    """Return the sum of weights, its left factor, and values; its axes are not known yet."""
    found = factors_of(nest, total)
    if found is None or found[0] is not total or found[1] is not float32:
        return "has not sums of products of floats"
    last = nest.space - 1
    weight, value = sorted(found[2], key=lambda factor: last in factor.axes)
    if last in weight.axes or last not in value.axes or total.over != (j,):
        return "has not sums of weights and rows of values"
    if _halved(weight).node.dtype not in HALVES:
        return f"weighs by {weight.node.dtype}; round the weights to halves"
    of = [
        place
        for place, output in enumerate(nest.outputs)
        if total in reached(nest, [output.value], set())
    ]
    return Contraction(
        nest, total, total, float32, weight, value, (), (), (), (j,), tuple(of)
    )


def _score(
    nest: Nest, total: Value, axes: tuple[int, int], batch: tuple[int, ...]
) -> Score | str:
    """Return the products of rows and keys that a total adds up, or why it does not."""
    found, (i, j) = factors_of(nest, total), axes
    if found is None or found[1] is not float32 or j in total.over:
        return "has not sums of products of floats"
    rows, keys = sorted(map(array_of, found[2]), key=lambda v: v is None or j in v.axes)
    if rows is None or keys is None or i not in rows.axes or j not in keys.axes:
        return "scores what is computed, not two arrays of halves"
    (depth,) = total.over
    found_lie = lie(nest, (rows, i, depth), (keys, j, depth), batch=batch)
    if isinstance(found_lie, str):
        return found_lie
    return Score(total, depth, *found_lie)


def _seen(
    between: tuple[Value, ...], wanted: list[tuple[Value, float]], i: int, j: int
) -> tuple[Value | None, int, bool]:
    """Return what values are nothing without, and along which keys that holds."""
    for value in between:
        if value.node.dtype.kind != "bool" or not {i, j} <= value.axes:
            continue
        for upward, (a, b) in ((True, (i, j)), (False, (j, i))):
            ahead = line_below(value, a, b)
            if ahead is not None and all(_without(v, value) == n for v, n in wanted):
                return value, ahead, upward
    return None, 0, True


def _without(value: Value, seen: Value) -> float | None:
    """Return what a value is where a condition fails: 0, minus infinity, or None.

    What else it depends on is taken to be finite.
    """
    node = value.node
    if isinstance(node, Constant):
        return float(node.value) if node.value in {0, -inf} else None
    args = [value.args[arg.number] for arg in getattr(node, "args", ())]
    if isinstance(node, Cast) and value.source is None:
        args = list(value.args.values())
    if not isinstance(node, Apply | Cast) or not args or value.guards:
        return None
    if isinstance(node, Apply) and node.op == "where":
        return _without(args[2], seen) if args[0] is seen else None
    first, *rest = [_without(arg, seen) for arg in args]
    op = node.op if isinstance(node, Apply) else "cast"
    if op == "exp":
        return 0 if first == -inf else None
    if op == "cast" or (op == "divide" and first == 0):
        return first
    if op == "multiply":
        if {first, *rest} & {0, -inf} == {0}:
            return 0
        signs = [arg.node.value for arg in args if isinstance(arg.node, Constant)]
        return -inf if -inf in {first, *rest} and signs and signs[0] > 0 else None
    return -inf if op == "subtract" and first == -inf and rest != [-inf] else None
