"""The corpus' programs of whole lines along an axis: running totals, orders, searches."""

from __future__ import annotations

import numpy as np
from corpus import SPECIAL, Row

from steelyard_kernels import array as xp
from steelyard_kernels import library
from steelyard_kernels.array import Array
from steelyard_kernels.expression import lines
from steelyard_kernels.grad import grad

PLACES = np.array([0, 0, 3, 1])
SHAPES = "7,33; 3,1; 1,64; 130; 5,2,9"


def special(rng):
    """Return rows with many equal values, zeros of both signs and NaNs."""
    return [rng.choice(np.array((*SPECIAL, 2.0, -1.0), np.float32), (6, 40))]


def special64(rng):
    """Return rows that differ in the lower half of their bits, and special ones."""
    near = 1.0 + rng.integers(-3, 4, (4, 17)) * 2.0**-52
    return [np.concatenate([near, rng.choice(np.array(SPECIAL), (2, 17))])]


def integers64(rng):
    """Return rows that differ in their upper half, their lower half, and in neither."""
    return [(rng.integers(-3, 3, (5, 17)) << 32) + rng.integers(0, 3, (5, 17))]


def naturals64(rng):
    """Return the same beyond the largest int64."""
    (x,) = integers64(rng)
    return [x.astype(np.uint64)]


def both(x):
    """Return an order of columns, and rows put in order from the largest."""
    return xp.argsort(x, axis=0), xp.sort(x, axis=1, descending=True)


def searched(x, v):
    """Return where values stand, on both sides."""
    return xp.searchsorted(x, v), xp.searchsorted(x, v, side="right")


def in_order(rng):
    """Return an array in order, with equal values and NaN, and what is looked for."""
    x = np.sort(rng.integers(-9, 9, 37).astype(np.float32))
    x[-2:] = np.nan
    v = np.concatenate([x, x + 0.5, [np.inf, -np.inf]]).astype(np.float32)
    return [x, v.reshape(4, -1)]


def sorter(rng):
    """Return an array, its order, and what is looked for."""
    x = rng.integers(-9, 9, 21)
    return [x, np.argsort(x), rng.integers(-12, 12, (3, 5))]


def segments(x, starts, axis):
    """Return sums from each start to the next one."""
    return Array(x.graph, lines.segments(x.graph, x.node, starts.node, axis))


def segmented(before, *behind, dtype="float64"):
    """Return what draws 41 values and the starts of 13 segments, some of them empty."""

    def data(rng):
        x = rng.standard_normal((*before, 41, *behind)).astype(dtype)
        inner = np.sort(rng.integers(0, 42, (*before, 12)), -1)
        return [x, np.pad(inner, [(0, 0)] * len(before) + [(0, 2)], constant_values=41)]

    return data


def weighed(x, w):
    """Return a sum over sorted rows, and medians."""
    found = xp.sort(x, axis=1)
    return xp.sum(found * w, axis=1), found[:, found.shape[1] // 2]


LINES = [
    Row(
        "running sum",
        lambda x: xp.cumulative_sum(x, axis=-1),
        SHAPES,
        "float32 float64 float16 bfloat16 int32 int8 uint8",
    ),
    Row(
        "running sum down",
        lambda x: xp.cumulative_sum(x * 2.0, axis=0) + 1.0,
        "33,7; 100,65; 1,5; 4,3,5",
        "float32 float16 float64",
    ),
    Row(
        "long running sum",
        lambda x: xp.cumulative_sum(x, axis=-1),
        "3,5003; 2000; 40000",
        "float32 float16 int32",
    ),
    Row(
        "running down from the end",
        lambda x: xp.flip(xp.cumulative_sum(xp.flip(x, axis=0), axis=0), axis=0),
        "40,7",
    ),
    Row(
        "running sum's gradient at padding",
        grad(lambda x: xp.sum(xp.cumulative_sum(xp.pad(x, [(2, 1)]), axis=0))),
        "1; 2",
        "float32 float64",
    ),
    Row(
        "running along columns beside sums of rows",
        lambda x, c: (c + xp.sum(x, axis=2, keepdims=True), xp.cumulative_sum(c)),
        "8,1,8 8; 5,3,33 33",
    ),
    Row(
        "running in place",
        lambda x: {"x": xp.cumulative_sum(x, axis=1)},
        "5,33; 693,4",
    ),
    Row(
        "sum of running sums",
        lambda x: (
            xp.sum(xp.cumulative_sum(x, axis=1) * x, axis=1),
            xp.max(xp.cumulative_sum(x, axis=0), axis=1),
        ),
        "7,7",
    ),
    Row(
        "products of running sums",
        lambda a, w: (
            xp.cumulative_sum(a, axis=1) @ w + a @ xp.cumulative_sum(w, axis=0)
        ),
        "33,63 63,8; 160,64 64,64",
    ),
    Row(
        "lines of products in another order",
        lambda a, w: xp.roll(xp.reshape(xp.cumulative_sum(a @ w, axis=1), (-1,)), 3),
        "2,3 3,4; 3,127 127,64",
    ),
    Row(
        "values weighted by running scores",
        lambda q, k, v: library.softmax(xp.cumulative_sum(q @ k.T, axis=1)) @ v,
        "33,16 33,16 33,16",
        "float32 float16",
    ),
    Row(
        "running totals of weighted values",
        lambda q, k, v: xp.cumulative_sum((q @ k.mT) @ v, axis=0),
        "2,33,16 2,33,16 2,33,16",
        "float16",
    ),
    Row(
        "running product",
        lambda x: xp.cumulative_prod(x, axis=-1),
        "5,9; 3,1",
        "float32 float64 int64",
    ),
    Row(
        "running from the start",
        lambda x: (
            xp.cumulative_sum(x, axis=1, include_initial=True),
            xp.cumulative_prod(x, axis=1, include_initial=True),
        ),
        "5,9; 3,1",
        "float32 float16",
        data="unit",
    ),
    Row(
        "running both ways",
        lambda x: xp.cumulative_sum(xp.cumulative_sum(x, axis=0), axis=1),
        "5,9; 17,4",
    ),
    Row(
        "running along each axis, vectors of both unrolled",
        lambda x: (xp.cumulative_sum(x, axis=1), xp.cumulative_sum(x, axis=0)),
        "5,33; 3,70",
    ),
    Row(
        "share so far",
        lambda x: xp.cumulative_sum(x, axis=-1) / xp.sum(x, axis=-1, keepdims=True),
        "5,33; 130",
        data="positive",
    ),
    Row(
        "parts of running sums",
        lambda x: xp.flip(xp.cumulative_sum(x, axis=1), axis=1)[:, 2:5],
        "5,33",
    ),
    Row(
        "running beside repeats",
        lambda x: xp.repeat(xp.cumulative_sum(x, axis=0), 3, axis=1),
        "5,1; 40,1",
    ),
    Row(
        "zeros around running totals",
        lambda x: (
            xp.pad(xp.cumulative_prod(x, axis=0), [(2, 3), (0, 0)]),
            xp.pad(xp.cumulative_sum(x, axis=0), [(2, 3), (0, 0)]),
        ),
        "4,3; 67,7",
        "float32 float16 int32",
    ),
    Row(
        "running sums taken beside what is turned",
        lambda x: (
            xp.sum(xp.cumulative_sum(xp.tanh(x), axis=-1)[..., PLACES], axis=-1),
            xp.flip(xp.tanh(x), axis=-1),
        ),
        "4,5; 40",
        data="unit",
    ),
    Row(
        "elements of two beside what is turned",
        lambda x: (
            xp.sum(xp.concat([xp.tanh(x), x], axis=-1)[..., PLACES], axis=-1)
            + xp.sum(xp.flip(xp.concat([xp.tanh(x), x], axis=-1), axis=-1), axis=-1)
        ),
        "4,5; 40",
        data="unit",
    ),
    Row("part of a running sum", lambda x: xp.cumulative_sum(x)[1:5], "5; 9"),
    Row(
        "diagonal of running sums",
        lambda x: (
            xp.diagonal(xp.cumulative_sum(x, axis=1), offset=-1),
            xp.diagonal(xp.cumulative_sum(x, axis=0), offset=1),
        ),
        "7,7; 9,4",
    ),
    Row(
        "running sum's gradient",
        grad(lambda x: xp.sum(xp.square(xp.cumulative_sum(x, axis=1)))),
        "5,9",
    ),
    Row(
        "running product's gradient",
        grad(lambda x: xp.sum(xp.cumulative_prod(x, axis=1))),
        "4,6",
        data="unit",
    ),
    Row(
        "extremes' and logarithms' gradient",
        grad(
            lambda x: (
                xp.sum(xp.cumulative_max(x, axis=1) * x)
                - xp.sum(xp.cumulative_logsumexp(x, axis=0) * x)
            )
        ),
        "4,6",
    ),
    Row("long order", lambda x: xp.sort(x, axis=-1), "3,1000; 700; 2,4097"),
    Row(
        "long gradient",
        grad(lambda x: xp.sum(xp.square(xp.cumulative_sum(x, axis=1)))),
        "2,1300",
        "float64",
    ),
    Row("order", both, "7,33; 1,1; 40,3", "float32 int32 int8 uint16 uint32 bool"),
    Row("order of half", lambda x: xp.argsort(x, axis=-1), "7,33", "float16 bfloat16"),
    Row("special order", both, data=special, exact=True),
    Row("special float64", both, data=special64, exact=True),
    Row("order of int64", both, data=integers64),
    Row("order of uint64", both, data=naturals64),
    Row("largest", lambda x: xp.topk(x, 5), "7,33; 1,5; 40"),
    Row("first of long lines", lambda x: xp.topk(x, 5)[1], "2,1013", times=2),
    Row("least", lambda x: xp.topk(x, 3, axis=0, largest=False), "33,7"),
    Row("median", weighed, "4,5 5; 7,33 33"),
    Row(
        "sort's gradient",
        grad(lambda x, w: xp.sum(xp.square(xp.sort(x, axis=1)) * w)),
        "5,9 9",
    ),
    Row(
        "largest's gradient",
        grad(lambda x: xp.sum(xp.square(xp.topk(x, 3)[0]))),
        "5,9",
    ),
    Row("searched", searched, data=in_order),
    Row(
        "searched by order",
        lambda x, s, v: xp.searchsorted(x, v, sorter=s),
        data=sorter,
    ),
    Row(
        "taken of a search",
        lambda a, b, i: xp.take(xp.searchsorted(a, b), i),
        data=lambda rng: [
            np.arange(5000),
            rng.integers(-9, 5009, 17),
            rng.permutation(17),
        ],
    ),
    Row("searched in nothing", lambda x, v: xp.searchsorted(x, v) + 1, "0 7; 1 7; 2 7"),
    Row(
        "lines in a loop",
        lambda x: xp.fori_loop(
            0, 2, lambda i, c: xp.sort(xp.cumulative_sum(c, axis=0) % 7 - 3, axis=0), x
        ),
        "4:int64; 1:int64",
    ),
    Row(
        "segments",
        lambda x, s: segments(x * 2.0, s, 0) + 1.0,
        data=segmented(()),
    ),
    Row(
        "segments of rows",
        lambda x, s: segments(x, s, 0),
        data=segmented((), 37),
        times=2,
    ),
    Row(
        "segments of halves",
        lambda x, s: segments(x, s, 1),
        data=segmented((3,), 5, dtype="float16"),
        times=2,
    ),
    Row(
        "segments in another order",
        lambda x, s, o: segments(xp.take(x, o, axis=0), s, 0),
        data=lambda rng: [*segmented((), 9)(rng), rng.permutation(41)],
        times=2,
    ),
    Row(
        "too long an order",
        lambda x: xp.sort(x, axis=1),
        "2,300000",
        refused={"*": "of whole lines along an axis"},
    ),
]
