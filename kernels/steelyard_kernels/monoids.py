# ruff: noqa: ARG005 - all gradients, and all oracles, take the same
"""Reductions: one table for expressions, their lowering, gradients, oracle and costs.

Adding a reduction whose state is one number is adding its row. Halves accumulate in
float32; a sum of products takes them in rounded once.

Running totals and other functions of whole lines along an axis are rows of a table too.
Adding a running total is adding its row: halves are taken in as float32 and rounded where
they are stored, integers as their reduction takes them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import inf, nan
from typing import Any, Final

import numpy as np
from msgspec import Struct

from steelyard_kernels import dtypes
from steelyard_kernels.dtypes import DType
from steelyard_kernels.ops.row import FLOAT, NUMBER


class Monoid(Struct, frozen=True, eq=False):
    """How values become one.

    name, doc: the function of `steelyard_kernels.array`.
    oracle: NumPy's function of values, `axis` and `keepdims`.
    combine: the operation that takes a value in and merges two totals.
    start: what it leaves as it is; an infinity stands for the end of an integer dtype.
    gradient: (xp, g, y, x, axes, count) -> the cotangent of x, where g and y are those of
        the result in the shape with axes of extent 1, and count that of the values.
    kinds: of the values. nothing: what no values at all come to; None: there is no such.
    mean: the result is the total over the number of values.
    widened: integers are of 64 bits before they are taken in.
    count: the arithmetic operations that an element is counted as.
    moments: the state is a sum and one of squares, which strategies spell themselves.
    jax: the primitive of JAX's that it is.
    """

    name: str
    doc: str
    oracle: Callable[..., Any]
    combine: str
    start: float
    gradient: Callable[..., Any]
    kinds: frozenset[str] = NUMBER
    nothing: float | None = None
    mean: bool = False
    widened: bool = False
    count: int = 1
    moments: bool = False
    jax: str = ""

    def neutral(self, dtype: DType) -> float:
        """Return what changes no value of a dtype."""
        if dtype.kind == "float" or self.start not in {-inf, inf}:
            return self.start
        return dtype.largest if self.start > 0 else dtype.smallest

    def runs_in_order(self, dtype: DType) -> bool:
        """Whether running totals on a CPU take elements in one by one.

        A product of some may be infinite, or 0, where none of those with all before it is.
        """
        return self.combine == "multiply" and dtype.kind == "float"

    @property
    def chooses(self) -> bool:
        """Whether the result is one of the values."""
        return self.combine in {"maximum", "minimum"}


def accumulator(dtype: DType) -> DType:
    """Return the dtype in which values of a dtype are accumulated."""
    return dtypes.float32 if dtype in dtypes.HALVES else dtype


def _shared(xp: Any, g: Any, y: Any, x: Any, axes: tuple[int, ...], _: int) -> Any:
    """Return g where x is the extremum y, shared between equal ones."""
    one, zero = (xp.full((), value, dtype=g.dtype) for value in (1.0, 0.0))
    hits = xp.where(x == y, one, zero)
    return g * (hits / xp.sum(hits, axis=axes, keepdims=True))


def _of_var(xp: Any, g: Any, _: Any, x: Any, axes: tuple[int, ...], count: int) -> Any:
    return g * ((x - xp.mean(x, axis=axes, keepdims=True)) * (2.0 / count))


def _of_prod(xp: Any, g: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """Return g times the product of the others, where there are zeros too.

    Those factors that are zeros are sums of zeros, so that they have slopes of their own.
    """
    one, zero = (xp.full((), value, dtype=g.dtype) for value in (1.0, 0.0))
    gone = x == 0
    zeros, total = (
        xp.sum(xp.where(gone, each, zero), axis=axes, keepdims=True)
        for each in (one, x)
    )
    kept = xp.where(gone, one, x)
    others = xp.prod(kept, axis=axes, keepdims=True) / kept
    count = zeros - xp.where(gone, one, zero)  # of zeros among the others
    rest = xp.where(gone, total - x, total)
    return g * xp.where(count == 0, others, xp.where(count == 1, others * rest, 0.0))


MONOIDS: Final[dict[str, Monoid]] = {
    row.name: row
    for row in (
        Monoid(
            "sum",
            "Return the sum; integers add up in int64 or uint64.",
            np.sum,
            "add",
            0,
            lambda xp, g, y, x, axes, count: xp.broadcast_to(g, x.shape),
            nothing=0,
            widened=True,
            jax="reduce_sum",
        ),
        Monoid(
            "prod",
            "Return the product; integers multiply in int64 or uint64.",
            np.prod,
            "multiply",
            1,
            lambda xp, g, y, x, axes, count: _of_prod(xp, g, x, axes),
            nothing=1,
            widened=True,
        ),
        Monoid(
            "max",
            "Return the largest value; NaN when there is one.",
            np.max,
            "maximum",
            -inf,
            _shared,
        ),
        Monoid(
            "min",
            "Return the smallest value; NaN when there is one.",
            np.min,
            "minimum",
            inf,
            _shared,
        ),
        Monoid(
            "mean",
            "Return the mean.",
            np.mean,
            "add",
            0,
            lambda xp, g, y, x, axes, count: xp.broadcast_to(
                g * (1.0 / count), x.shape
            ),
            FLOAT,
            nothing=nan,
            mean=True,
        ),
        Monoid(
            "logsumexp",
            "Return log(sum(exp(x))), which does not overflow on the way.",
            np.logaddexp.reduce,
            "logaddexp",
            -inf,
            lambda xp, g, y, x, axes, count: g * xp.exp(x - y),
            FLOAT,
            nothing=-inf,
            count=4,
        ),
        Monoid(
            "var",
            "Return the variance.",
            np.var,
            "add",
            0,
            _of_var,
            FLOAT,
            nothing=nan,
            count=3,
            moments=True,
        ),
    )
}


def rounding_loss(extent: int, dtype: DType) -> float:
    """Return the share of a mean square that sums may lose to rounding.

    A variance below that is 0.
    """
    return extent * 2.0 ** -(24 if dtype is dtypes.float32 else 53)


class Line(Struct, frozen=True, eq=False):
    """How a line becomes another of as many elements.

    name, doc: the function of `steelyard_kernels.array`.
    oracle: NumPy's function of values and `axis`.
    total: the reduction whose running total it is; "": none's.
    gradient: (xp, run, g, y, x) -> the cotangent of x; run(name, value) is a row of this
        table in the other direction, run(name, value, again=True) in the node's own. Of
        extremes it is `grad`'s own.
    """

    name: str
    doc: str
    oracle: Callable[..., Any]
    total: str = ""
    gradient: Callable[..., Any] | None = None


def _of_product(xp: Any, run: Any, g: Any, y: Any, x: Any) -> Any:
    """Return g times the products of the others, where there are zeros too.

    Behind the first zero all that follows is 0; at it the others' product counts, as if it
    were 1. Behind it, and at the second one, it is a factor that has a slope.
    """
    one, zero = (xp.full((), value, dtype=g.dtype) for value in (1.0, 0.0))
    gone = x == 0
    zeros = run("cumulative_sum", xp.where(gone, one, zero), again=True)
    first, second = (xp.logical_and(gone, zeros == count) for count in (1.0, 2.0))
    either = xp.logical_or(first, second)
    others = run("cumulative_prod", xp.where(either, one, x), again=True)
    a, b = (
        run("cumulative_sum", xp.where(each, x, zero), again=True)
        for each in (first, second)
    )
    but_first = run("cumulative_sum", g * xp.where(zeros < 2.0, others, others * b))
    but_second = a * run("cumulative_sum", g * others)
    kept = xp.where(gone, one, x)
    before = run("cumulative_sum", g * y) / kept
    behind = xp.where(zeros == 1.0, a * but_first / kept, zero)
    behind = xp.where(second, but_second, behind)
    return xp.where(zeros == 0.0, before, xp.where(first, but_first, behind))


def _of_logarithm(xp: Any, run: Any, g: Any, y: Any, x: Any) -> Any:
    """Return e**x times the sum of g e**-y from each element on, by logarithms of both.

    A logarithm has no slope at 0: where g is 0 both its parts are a number that is none.
    """
    wide = accumulator(x.dtype)
    g, y, z = (each.astype(wide) for each in (g, y, x))
    zero, least = (xp.full((), value, dtype=wide) for value in (0.0, 2.0**-100))

    def part(size: Any) -> Any:
        live = xp.logical_and(size != 0, y != -inf)
        size = xp.where(live, xp.log(xp.where(live, size, 1.0)) - y, -inf)
        return xp.exp(z + run("cumulative_logsumexp", size))

    up = xp.where(g == 0, g + least, xp.where(g < 0, zero, g))
    down = xp.where(g == 0, least, xp.where(g > 0, zero, -g))
    return (part(up) - part(down)).astype(x.dtype)


def segments(x: Any, starts: Any, axis: int) -> Any:
    """Return the sums along an axis from each of the starts to the next one, in NumPy.

    The axes before are those of the starts too; NumPy's rules broadcast them.
    """
    lead = np.broadcast_shapes(x.shape[:axis], starts.shape[:-1])
    x = np.broadcast_to(x, (*lead, *x.shape[axis:]))
    starts = np.broadcast_to(starts, (*lead, starts.shape[-1]))
    found = np.zeros((*lead, starts.shape[-1] - 1, *x.shape[axis + 1 :]), x.dtype)
    for at in np.ndindex(lead):
        for place, ends in enumerate(pairwise(starts[at].tolist())):
            found[(*at, place)] = np.sum(x[at][slice(*ends)], axis=0)
    return found


ALONG: Final[dict[str, Line]] = {
    row.name: row
    for row in (
        Line(
            "cumulative_sum",
            "Return the sum of each element and all before it.",
            np.cumsum,
            "sum",
            lambda xp, run, g, y, x: run("cumulative_sum", g),
        ),
        Line(
            "cumulative_prod",
            "Return the product of each element and all before it.",
            np.cumprod,
            "prod",
            _of_product,
        ),
        Line(
            "cumulative_max",
            "Return the largest value so far.",
            np.maximum.accumulate,
            "max",
        ),
        Line(
            "cumulative_min",
            "Return the smallest value so far.",
            np.minimum.accumulate,
            "min",
        ),
        Line(
            "cumulative_logsumexp",
            "Return the log(sum(exp(x))) so far.",
            np.logaddexp.accumulate,
            "logsumexp",
            _of_logarithm,
        ),
        Line(
            "order",
            "Return where the least key is, the next one, and so on; of equal ones the first.",
            lambda x, axis: np.argsort(x, axis=axis, kind="stable").astype(np.int32),
        ),
        Line(
            "copy",
            "Return the values themselves, where elements are taken at computed places.",
            lambda x, axis: x,
            gradient=lambda xp, run, g, y, x: g,
        ),
    )
}
