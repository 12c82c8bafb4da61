"""What a program of `random_programs` may give: intervals, in 80-bit arithmetic.

An oracle of its own: nothing of the compiler, nor of its reference, is used. Each value
is an interval that holds the exact result and all that the stated roundings can make of
it: half a unit in the last place of an arithmetic operation, `FUNCTION` units of a
function, n roundings of a sum of n. What no interval can say (an undecided division by
zero, an infinity less another) is `wild`, and anything is right there. Integers are
exact and wrap; a bool that is undecided is the interval from False to True.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from functools import reduce as reduced
from itertools import product
from typing import Any

import numpy as np
from scipy.special import erf, erfinv

Wide = np.longdouble
FUNCTION = 4.0  # units in the last place
# By dtype: half a unit in the last place of 1, the largest and the smallest number.
FLOATS = {
    "float16": (2.0**-11, 65504.0, 2.0**-24),
    "bfloat16": (2.0**-8, 3.3895313892515355e38, 2.0**-133),
    "float32": (2.0**-24, 3.4028234663852886e38, 2.0**-149),
    "float64": (2.0**-53, 1.7976931348623157e308, 2.0**-1074),
}
FUNCTIONS = {
    "exp": np.exp,
    "log": np.log,
    "expm1": np.expm1,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softplus": lambda x: np.logaddexp(x, Wide(0)),
    "erf": lambda x: erf(x.astype(float)).astype(Wide),
    "erfc": np.vectorize(math.erfc, otypes=[Wide]),  # SciPy's is off by 50 ulp
    "cbrt": np.cbrt,
    "erf_inv": lambda x: erfinv(x.astype(float)).astype(Wide),
}


def _turned(x, quarters):
    """Return sin(pi x + pi quarters / 2), the argument reduced exactly."""
    near = np.rint(2 * (x - 2 * np.rint(x / 2)))
    angle = PI * (x - 2 * np.rint(x / 2) - near / 2)
    turn = np.where(np.isfinite(x), near + quarters, 0).astype(int) % 4
    sine, cosine = np.sin(angle), np.cos(angle)
    return np.choose(turn, [sine, cosine, -sine, -cosine])


PI = Wide("3.14159265358979323846264338327950288")
WAVES = {  # with their steepest slopes
    "sin": (np.sin, 1),
    "cos": (np.cos, 1),
    "sinpi": (lambda x: _turned(x, 0), PI),
    "cospi": (lambda x: _turned(x, 1), PI),
}
EXACT = {
    "maximum": np.maximum,
    "minimum": np.minimum,
    "negative": np.negative,
    "floor": np.floor,
    "tf32": lambda x: _cut(x, 11),
}
ROUNDED = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "sqrt": np.sqrt,
}
COMPARED = ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")
LOGICAL = {
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
}
DIVIDED = {"floor_divide": np.floor_divide, "remainder": np.remainder}
BITS = {
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
}


@dataclass(frozen=True)
class Near:
    """Between lo and hi in each element; of a float anything at all where `wild`."""

    dtype: str
    lo: Any
    hi: Any
    wild: Any

    @property
    def shape(self):
        """The extents."""
        return self.lo.shape

    def each(self, change):
        """Return what a change of places makes of it."""
        return Near(self.dtype, change(self.lo), change(self.hi), change(self.wild))

    def holds(self, seen):
        """Say where what was computed is right."""
        seen = seen.astype(Wide) if self.dtype.startswith(("float", "bf")) else seen
        inside = (self.lo <= seen) & (seen <= self.hi)
        return self.wild | inside | (np.isnan(self.lo) & np.isnan(seen))


def of(array, dtype):
    """Return an array as what it is."""
    wide = array.astype(Wide) if dtype in FLOATS else array
    return Near(dtype, wide, wide, np.zeros(wide.shape, bool))


def stacked(parts, like):
    """Return values along a new first axis; of none, `like` says the shape of one."""
    found = [
        np.stack([getattr(part, name) for part in parts])
        if parts
        else np.zeros((0, *like.shape), getattr(like, name).dtype)
        for name in ("lo", "hi", "wild")
    ]
    return Near(like.dtype, *found)


def _rounded(dtype, corners, wild, known, halves, *, fuses=False):
    """Return the hull of corners, so many roundings wider.

    Where a corner is no number, all are only if every operand was `known`. What `fuses`
    is a product, which an FMA does not round: beyond all floats it need not be infinite.
    """
    lo, hi = reduced(np.minimum, corners), reduced(np.maximum, corners)
    lost = np.isnan(lo)
    wild = wild | (lost & ~known)
    unit, largest, least = FLOATS[dtype]
    if halves:
        # A half is rounded from a float32, whose own rounding is the hundredth.
        share = Wide(1.01 * unit * halves)
        lo = np.where(np.isinf(lo), lo, lo - np.abs(lo) * share - least * halves)
        hi = np.where(np.isinf(hi), hi, hi + np.abs(hi) * share + least * halves)
        over = np.inf if fuses else Wide(largest) * (1 + 2 * Wide(unit))
        hi = np.where(hi > largest, np.inf, hi)
        lo = np.where(lo < -largest, -np.inf, lo)
        lo = np.where(lo >= over, np.inf, np.minimum(lo, largest))
        hi = np.where(hi <= -over, -np.inf, np.maximum(hi, -largest))
        lo, hi = np.where(lost, np.nan, lo), np.where(lost, np.nan, hi)
    return Near(dtype, lo, hi, np.broadcast_to(wild, lo.shape))


def _known(*args):
    known = np.asarray(True)
    for arg in args:
        known = known & ((arg.lo == arg.hi) | np.isnan(arg.lo)) & ~arg.wild
    return known


def _ends(value):
    """Return what a value lies between, once where it is known."""
    return (value.lo,) if (value.lo == value.hi).all() else (value.lo, value.hi)


def _cut(x, digits):
    """Return numbers cut to so many binary digits, towards zero."""
    part, power = np.frexp(x)
    return np.ldexp(np.trunc(np.ldexp(part, digits)), power - digits)


def apply(op, *args):
    """Return an elementwise operation."""
    with np.errstate(all="ignore"):
        if op == "where":
            return _where(*args)
        if op in LOGICAL:
            made = [LOGICAL[op](*(getattr(a, n) for a in args)) for n in ("lo", "hi")]
            return Near("bool", *made, np.zeros(made[0].shape, bool))
        if op in {"logical_not", "bitwise_invert"} and args[0].dtype == "bool":
            return replace(args[0], lo=~args[0].hi, hi=~args[0].lo)
        if op in COMPARED:
            return _compared(op, *args)
        if args[0].dtype in FLOATS:
            return _float(op, *args)
        return _int(op, *args)


def _int(op, *args):
    one = {"abs": np.abs, "square": np.square, "bitwise_invert": np.bitwise_invert}
    function = {**EXACT, **ROUNDED, **DIVIDED, **BITS, **one}[op]
    made = np.asarray(function(*(arg.lo for arg in args)))
    return Near(args[0].dtype, made, made, np.zeros(made.shape, bool))


def _float(op, *args):
    dtype, known = args[0].dtype, _known(*args)
    wild = np.logical_or.reduce(np.broadcast_arrays(*(arg.wild for arg in args)))
    if op == "abs":
        low = np.where(args[0].lo > 0, args[0].lo, np.maximum(-args[0].hi, 0))
        low = np.where(np.isnan(args[0].lo), np.nan, low)
        high = np.maximum(np.abs(args[0].lo), np.abs(args[0].hi))
        return Near(dtype, low, high, wild)
    if op == "square":
        sides = apply("abs", *args)
        ends = [sides.lo**2, sides.hi**2]
        return _rounded(dtype, ends, wild, known, 1, fuses=True)
    if op in WAVES:
        middle, radius = (args[0].lo + args[0].hi) / 2, (args[0].hi - args[0].lo) / 2
        middle = np.where(known, args[0].lo, middle)
        wave, slope = WAVES[op]
        wave, radius = wave(middle), np.where(known, 0, radius) * slope
        sides = [np.clip(wave - radius, -1, 1), np.clip(wave + radius, -1, 1)]
        sides = [np.where(np.isnan(wave), np.nan, side) for side in sides]
        return _rounded(dtype, sides, wild, known, 2 * FUNCTION)
    if op == "divide":
        zero = (args[1].lo <= 0) & (args[1].hi >= 0)  # of either sign
        wild = wild | zero
    if op == "multiply":
        for one, other in (args, args[::-1]):
            zero = (one.lo < 0) & (one.hi > 0)  # times infinity it is NaN
            wild = wild | (zero & (np.isinf(other.lo) | np.isinf(other.hi)))
    function = {**EXACT, **ROUNDED, **FUNCTIONS}[op]
    halves = 0 if op in EXACT else 1 if op in ROUNDED else 2 * FUNCTION
    if len(args) == 1 or op in EXACT:
        corners = [function(*(getattr(a, n) for a in args)) for n in ("lo", "hi")]
    else:
        corners = [function(*ends) for ends in product(*map(_ends, args))]
    return _rounded(dtype, corners, wild, known, halves, fuses=op == "multiply")


def _where(condition, a, b):
    yes, no = condition.lo, ~condition.hi
    joined = [np.minimum(a.lo, b.lo), np.maximum(a.hi, b.hi)]
    found = [
        np.where(yes, x, np.where(no, y, both))
        for x, y, both in ((a.lo, b.lo, joined[0]), (a.hi, b.hi, joined[1]))
    ]
    open_ = ~yes & ~no
    wild = np.where(yes, a.wild, np.where(no, b.wild, a.wild | b.wild))
    if a.dtype in FLOATS:
        wild = wild | (open_ & np.isnan(joined[0]))
    return Near(a.dtype, *found, wild)


def _compared(op, a, b):
    if op.startswith("greater"):
        return _compared(op.replace("greater", "less"), b, a)
    if op == "less":
        surely, maybe = a.hi < b.lo, a.lo < b.hi
    elif op == "less_equal":
        surely, maybe = a.hi <= b.lo, a.lo <= b.hi
    else:
        surely = (a.lo == a.hi) & (b.lo == b.hi) & (a.lo == b.lo)
        maybe = (a.lo <= b.hi) & (b.lo <= a.hi)
        if op == "not_equal":
            surely, maybe = ~maybe, ~surely
    wild = a.wild | b.wild
    return Near("bool", surely & ~wild, maybe | wild, np.zeros(wild.shape, bool))


def cast(value, dtype):
    """Return the values rounded to another dtype: of bools and integers to floats too."""
    if dtype not in FLOATS:
        made = value.lo.astype(dtype)
        return Near(dtype, made, made, value.wild)
    corners = [value.lo.astype(Wide), value.hi.astype(Wide)]
    order = list(FLOATS)
    exact = value.dtype in {"bool", dtype} or value.dtype.startswith("float8")
    exact |= (
        value.dtype in FLOATS and order.index(value.dtype) < order.index(dtype) >= 2
    )
    with np.errstate(all="ignore"):
        made = Near("", *corners, value.wild)
        return _rounded(dtype, corners, value.wild, _known(made), 0 if exact else 1)


def reduce(op, value, *, keepdims):
    """Return a reduction over the last axis; sums of integers are int64."""
    axis = {"axis": -1, "keepdims": keepdims}
    with np.errstate(all="ignore"):
        if value.dtype not in FLOATS:
            total = {"sum": np.sum, "max": np.max, "min": np.min}[op](value.lo, **axis)
            total = np.asarray(total, None if op == "sum" else value.dtype)
            return Near(str(total.dtype), total, total, np.zeros(total.shape, bool))
        wild = np.any(value.wild, **axis)
        if op in {"max", "min"}:
            made = [getattr(np, op)(side, **axis) for side in (value.lo, value.hi)]
            return Near(value.dtype, *made, wild)
        named = _product if op == "prod" else partial(_added, op)
        return named(value, axis, wild)


def running(op, value, axis, *, back=False):
    """Return running totals along an axis: each is a reduction of the first ones."""
    turn = (lambda x: np.flip(x, -1)) if back else (lambda x: x)
    flat = value.each(lambda x: turn(np.moveaxis(x, axis, -1)))
    if op == "sum" and value.dtype in FLOATS:
        with np.errstate(all="ignore"):
            found = _totals(flat)
    else:
        parts = [
            flat.each(lambda x, n=n: x[..., :n]) for n in range(1, flat.shape[-1] + 1)
        ]
        found = stacked([reduce(op, part, keepdims=False) for part in parts], flat)
        found = found.each(lambda x: np.moveaxis(x, 0, -1))
    return found.each(lambda x: np.moveaxis(turn(x), -1, axis))


def _totals(value):
    """Return the sums of the first ones, each as `_added` has it."""
    middle, radius = (value.lo + value.hi) / 2, (value.hi - value.lo) / 2
    size = np.abs(middle) + radius
    sums = (np.cumsum(x, -1) for x in (middle, radius, size))
    count = np.arange(1, value.shape[-1] + 1).astype(Wide)
    wild = np.logical_or.accumulate(value.wild, -1)
    lost = np.logical_or.accumulate(np.isnan(value.lo), -1) & ~wild
    return _summed(value.dtype, count, sums, wild, lost)


def _summed(dtype, count, sums, wild, lost):
    """Return sums of so many, by those of their middles, radii and largest sizes."""
    total, error, size = sums
    unit, largest, least = FLOATS[_accumulated(dtype)]
    slack = error + (count + 2) * unit * size + count * least
    wild = wild | (~lost & ~(size < largest / 4))
    return _rounded(dtype, [total - slack, total + slack], wild, lost, 2)


def _product(value, axis, wild):
    """Return a product of values of which no part overflows or underflows."""
    unit, largest, least = FLOATS[_accumulated(value.dtype)]
    middle, radius = (value.lo + value.hi) / 2, (value.hi - value.lo) / 2
    size = np.abs(middle) + radius
    total, most = np.prod(middle, **axis), np.prod(size, **axis)
    error = most * (1 + 2 * value.shape[-1] * Wide(unit)) - np.abs(total)
    over = np.prod(np.maximum(size, 1), **axis) > largest / 4
    under = np.prod(np.where(size > 0, np.minimum(size, 1), 1), **axis) < least * 2**24
    lost = np.any(np.isnan(value.lo), **axis) & ~wild
    wild = wild | (~lost & (over | under))
    return _rounded(value.dtype, [total - error, total + error], wild, lost, 2)


def _accumulated(dtype):
    """Return the dtype that halves are added up and multiplied in."""
    return "float32" if dtype in {"float16", "bfloat16"} else dtype


def _added(op, value, axis, wild):
    """Return a sum, mean or variance, of finite values that do not overflow."""
    dtype, count = value.dtype, value.shape[-1]
    unit, largest, least = FLOATS[_accumulated(dtype)]
    middle, radius = (value.lo + value.hi) / 2, (value.hi - value.lo) / 2
    size = np.abs(middle) + radius
    if op == "var":
        mean = np.mean(middle, axis=-1, keepdims=True)
        far = middle - mean
        near = radius + np.mean(radius, axis=-1, keepdims=True)
        total = np.sum(far**2, **axis)
        error = np.sum(2 * np.abs(far) * near + near**2, **axis)
        size = size**2
        # Deviations are of a mean that is rounded: by its square each.
        slack = (count + 16) * (unit * total + least)
        slack = slack + np.sum((8 * unit * np.abs(mean)) ** 2 * count, **axis)
    else:
        total, error = np.sum(middle, **axis), np.sum(radius, **axis)
        slack = (count + 2) * unit * np.sum(size, **axis) + count * least
    lost = np.any(np.isnan(value.lo), **axis) & ~wild  # that is what all becomes
    wild = wild | (~lost & ~(np.sum(size, **axis) < largest / 4))
    share = 1 if op == "sum" else count
    lo, hi = (total - error - slack) / share, (total + error + slack) / share
    lo = np.maximum(lo, 0) if op == "var" else lo
    return _rounded(dtype, [np.asarray(lo), np.asarray(hi)], wild, lost, 2)


def dot(a, b):
    """Return the sum over k of a[..., k] * b[..., k, n]."""
    if a.dtype in {"float16", "bfloat16"}:  # products are not rounded to halves
        return cast(dot(*(replace(x, dtype="float32") for x in (a, b))), a.dtype)
    with np.errstate(all="ignore"):
        if all((np.isfinite(x.lo) & _known(x)).all() for x in (a, b)):
            return _dot(a, b)
    every = apply("multiply", a.each(lambda x: x[..., None]), b)
    every = every.each(lambda x: np.moveaxis(x, -2, -1))
    return reduce("sum", every, keepdims=False)


def _dot(a, b):
    """Return the same of numbers that are known, without an array of all products."""
    (unit, _, least), count = FLOATS[a.dtype], a.shape[-1]
    total, size = (
        np.matmul(x[..., None, :], y)[..., 0, :]
        for x, y in ((a.lo, b.lo), (np.abs(a.lo), np.abs(b.lo)))
    )
    error = size * Wide(1.01 * unit) + count * least  # each product is rounded
    none = np.zeros(total.shape, bool)
    return _summed(a.dtype, count, (total, error, size + error), none, none)
