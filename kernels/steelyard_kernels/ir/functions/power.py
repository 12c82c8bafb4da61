"""Powers, and logarithms of other bases.

x**y is e**(y log x), whose relative error is the absolute one of y log x, up to 745 of
which count in float64: the logarithm is found as a sum of two numbers. Special values
are those of IEEE 754-2019, 9.2.1 (`pow`).
"""

from __future__ import annotations

import math

from steelyard_kernels.dtypes import float64
from steelyard_kernels.ir.functions import exact
from steelyard_kernels.ir.functions.exp_log import (
    EXP,
    LOG,
    at_the_edges,
    exp,
    exp_in_two,
    log,
    log_near_one,
    parts,
)
from steelyard_kernels.ir.functions.floats import Number, where


def log2(x: Number) -> Number:
    """Return the logarithm of base 2: exact of its powers."""
    k, f = parts(x)
    near = log_near_one(f, x.number(0.0))
    return at_the_edges(x, near.fma(1 / math.log(2), k), 0.0)


def log10(x: Number) -> Number:
    """Return the logarithm of base 10."""
    k, f = parts(x)
    near = log_near_one(f, x.number(0.0)) * (1 / math.log(10))
    value = k.fma(LOG10_2[1], near)
    return at_the_edges(x, k.fma(LOG10_2[0], value), 0.0)


LOG10_2 = (3.01029995663611771306e-01, 3.69423907715893078616e-13)  # FreeBSD, e_log10.c


def power(x: Number, y: Number) -> Number:
    """Return x**y."""
    if x.dtype.kind == "int":
        return exact.power(x, y)
    size = abs(x)
    if x.is_single:
        value = exp(y.cast(float64) * log(size.cast(float64))).cast(x.dtype)
    else:
        value = _exp_of_product(size, y)
    half = y * 0.5
    is_whole = y.let("floor") == y
    is_odd = is_whole & (half.let("floor") != half)
    negative = x.bits < 0
    turned = where(is_odd, -value, value)
    value = where(negative, turned, value)
    finite = size < math.inf
    lost = (x < 0.0) & (is_whole != (x == x))  # noqa: PLR0124 - NaN
    lost = lost & finite
    value = where(lost, math.nan, value)
    far = abs(y) == math.inf
    unit = (size == 1.0) & far
    unit = unit | (x == 1.0)
    unit = unit | (y == 0.0)
    return where(unit, 1.0, value)


def _exp_of_product(size: Number, y: Number) -> Number:
    """Return e**(y log size) of float64, the product in two numbers."""
    high, low = _log_in_two(size)
    product = y * high
    rest = y.fma(low, y.fma(high, -product))
    bounded = abs(product) < 2 * EXP[size.dtype].highest
    return exp_in_two(product, where(bounded, rest, 0.0))


def _log_in_two(x: Number) -> tuple[Number, Number]:
    """Return log(x) = k ln 2 + 2 atanh(s) as a sum of two numbers, s = f / (2 + f)."""
    k, f = parts(x)
    below = f + 2.0
    lost = f - (below - 2.0)
    t = f / below
    rest = (-t).fma(below, f)
    t_low = (-t).fma(lost, rest) / below
    z = t * t
    z_low = t.fma(t, -z)
    z_low = (t + t).fma(t_low, z_low)
    # 2 atanh(t) / t = 2 + z (2/3 + z (2/5 + ...)): the first product in two numbers
    tail = z.polynomial([2 / n for n in range(27, 3, -2)])
    third, third_low = x.number(2 / 3), 3.700743415417188e-17
    inner = z.fma(tail, third)
    inner_low = z.fma(tail, third - inner) + third_low
    total = z * inner
    total_low = z.fma(inner, -total)
    total_low = z_low.fma(inner, z.fma(inner_low, total_low))
    twice = total + 2.0
    twice_low = total - (twice - 2.0) + total_low
    high = t * twice
    low = t.fma(twice, -high)
    low = t_low.fma(twice, t.fma(twice_low, low))
    c = LOG[x.dtype]
    whole = k * c.ln2_high  # exact
    total = whole + high
    left = whole - total + high  # |whole| > high, or 0
    rest = left + k.fma(c.ln2_low, low)
    high = total + rest
    low = total - high + rest
    known = x < math.inf
    positive = x > 0.0
    edge = at_the_edges(x, high, 0.0)
    return edge, where(known & positive, low, 0.0)


def cbrt(x: Number) -> Number:
    """Return the cube root, with the sign of x: e**(log(x) / 3) and a step of Newton's."""
    size, by = abs(x), 20 if x.is_single else 100
    tiny = size < 2.0 ** -(9 * by // 2)  # whose digits products lose
    scale = where(tiny, x.number(2.0 ** (3 * by)), 1.0)
    back = where(tiny, x.number(2.0**-by), 1.0)
    cube = size * scale
    root = exp(log(cube) * (1 / 3))
    square = root * root
    lost = root.fma(root, -square)
    over = lost.fma(root, square.fma(root, -cube))
    found = root - over / (square * 3.0)
    known = abs(found) < math.inf  # not 0, infinity
    return (where(known, found, root) * back).signed_as(x)


def hypot(x: Number, y: Number) -> Number:
    """Return sqrt(x**2 + y**2) without an overflow on the way."""
    x, y = abs(x), abs(y)
    large, small = x.let("maximum", y), x.let("minimum", y)
    ratio = small / large
    ratio = where(small == 0.0, 0.0, ratio)
    value = large * ratio.fma(ratio, 1.0).let("sqrt")
    infinite = (x == math.inf) | (y == math.inf)
    return where(infinite, math.inf, value)


def logaddexp(x: Number, y: Number) -> Number:
    """Return log(e**x + e**y): max + log1p(e**-|x - y|)."""
    rest = (-abs(x - y)).let("exp").let("log1p")
    rest = where(x == y, math.log(2), rest)
    return x.let("maximum", y) + rest
