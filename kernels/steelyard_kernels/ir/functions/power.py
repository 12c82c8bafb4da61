"""Powers, and logarithms of other bases.

x**y is e**(y log x), whose relative error is the absolute one of y log x, up to 745 of
which count in float64: the logarithm is found as a sum of two numbers. Special values
are those of IEEE 754-2019, 9.2.1 (`pow`).
"""

from __future__ import annotations

import math

from steelyard_kernels.dtypes import float32, float64
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
from steelyard_kernels.ir.functions.floats import Floats, Statements
from steelyard_kernels.ir.loops import Operand


def log2(b: Statements, x: Operand) -> Operand:
    """Return the logarithm of base 2: exact of its powers."""
    s = Floats(b, x)
    k, f = parts(s, x)
    near = log_near_one(s, f, s.number(0.0))
    return at_the_edges(s, x, s.fma(near, s.number(1 / math.log(2)), k), 0.0)


def log10(b: Statements, x: Operand) -> Operand:
    """Return the logarithm of base 10."""
    s = Floats(b, x)
    k, f = parts(s, x)
    near = b.let(
        "multiply", log_near_one(s, f, s.number(0.0)), s.number(1 / math.log(10))
    )
    value = s.fma(k, s.number(LOG10_2[1]), near)
    return at_the_edges(s, x, s.fma(k, s.number(LOG10_2[0]), value), 0.0)


LOG10_2 = (3.01029995663611771306e-01, 3.69423907715893078616e-13)  # FreeBSD, e_log10.c


def power(b: Statements, x: Operand, y: Operand) -> Operand:
    """Return x**y."""
    if x.type.dtype.kind == "int":
        return exact.power(b, x, y)
    s = Floats(b, x)
    size, one, zero = b.let("abs", x), s.number(1.0), s.number(0.0)
    if s.dtype is float32:
        wide = b.let("multiply", b.cast(y, float64), log(b, b.cast(size, float64)))
        value = b.cast(exp(b, wide), float32)
    else:
        value = _exp_of_product(s, size, y)
    half = b.let("multiply", y, s.number(0.5))
    is_whole = b.let("equal", b.let("floor", y), y)
    is_odd = b.let(
        "bitwise_and", is_whole, b.let("not_equal", b.let("floor", half), half)
    )
    negative = b.let("less", s.as_word(x), s.whole(0))
    turned = b.let("where", is_odd, b.let("negative", value), value)
    value = b.let("where", negative, turned, value)
    finite = b.let("less", size, s.number(math.inf))
    lost = b.let(
        "bitwise_and",
        b.let("less", x, zero),
        b.let("not_equal", is_whole, b.let("equal", x, x)),
    )
    lost = b.let("bitwise_and", lost, finite)
    value = b.let("where", lost, s.number(math.nan), value)
    far = b.let("equal", b.let("abs", y), s.number(math.inf))
    unit = b.let("bitwise_and", b.let("equal", size, one), far)
    unit = b.let("bitwise_or", unit, b.let("equal", x, one))
    unit = b.let("bitwise_or", unit, b.let("equal", y, zero))
    return b.let("where", unit, one, value)


def _exp_of_product(s: Floats, size: Operand, y: Operand) -> Operand:
    """Return e**(y log size) of float64, the product in two numbers."""
    b = s.b
    c = EXP[s.dtype]
    high, low = _log_in_two(s, size)
    product = b.let("multiply", y, high)
    rest = s.fma(y, low, s.fma(y, high, b.let("negative", product)))
    bounded = b.let("less", b.let("abs", product), s.number(2 * c.highest))
    more = b.let("where", bounded, rest, s.number(0.0))
    return exp_in_two(s, product, more)


def _log_in_two(s: Floats, x: Operand) -> tuple[Operand, Operand]:
    """Return log(x) = k ln 2 + 2 atanh(s) as a sum of two numbers, s = f / (2 + f)."""
    b = s.b
    k, f = parts(s, x)
    below = b.let("add", f, s.number(2.0))
    lost = b.let("subtract", f, b.let("subtract", below, s.number(2.0)))
    t = b.let("divide", f, below)
    rest = s.fma(b.let("negative", t), below, f)
    t_low = b.let("divide", s.fma(b.let("negative", t), lost, rest), below)
    z = b.let("multiply", t, t)
    z_low = s.fma(t, t, b.let("negative", z))
    z_low = s.fma(b.let("add", t, t), t_low, z_low)
    # 2 atanh(t) / t = 2 + z (2/3 + z (2/5 + ...)): the first product in two numbers
    tail = s.polynomial(z, [2 / n for n in range(27, 3, -2)])
    third, third_low = s.number(2 / 3), s.number(3.700743415417188e-17)
    inner = s.fma(z, tail, third)
    inner_low = b.let("add", s.fma(z, tail, b.let("subtract", third, inner)), third_low)
    sum_ = b.let("multiply", z, inner)
    sum_low = s.fma(z, inner, b.let("negative", sum_))
    sum_low = s.fma(z_low, inner, s.fma(z, inner_low, sum_low))
    twice = b.let("add", sum_, s.number(2.0))
    twice_low = b.let(
        "add", b.let("subtract", sum_, b.let("subtract", twice, s.number(2.0))), sum_low
    )
    high = b.let("multiply", t, twice)
    low = s.fma(t, twice, b.let("negative", high))
    low = s.fma(t_low, twice, s.fma(t, twice_low, low))
    c = LOG[s.dtype]
    whole = b.let("multiply", k, s.number(c.ln2_high))  # exact
    total = b.let("add", whole, high)
    left = b.let("add", b.let("subtract", whole, total), high)  # |whole| > high, or 0
    rest = b.let("add", left, s.fma(k, s.number(c.ln2_low), low))
    high = b.let("add", total, rest)
    low = b.let("add", b.let("subtract", total, high), rest)
    known = b.let("less", x, s.number(math.inf))
    positive = b.let("greater", x, s.number(0.0))
    edge = at_the_edges(s, x, high, 0.0)
    inside = b.let("bitwise_and", known, positive)
    return edge, b.let("where", inside, low, s.number(0.0))


def cbrt(b: Statements, x: Operand) -> Operand:
    """Return the cube root, with the sign of x: e**(log(x) / 3) and a step of Newton's."""
    s = Floats(b, x)
    size, by = b.let("abs", x), 20 if s.dtype is float32 else 100
    tiny = b.let(
        "less", size, s.number(2.0 ** -(9 * by // 2))
    )  # whose digits products lose
    scale = b.let("where", tiny, s.number(2.0 ** (3 * by)), s.number(1.0))
    back = b.let("where", tiny, s.number(2.0**-by), s.number(1.0))
    cube = b.let("multiply", size, scale)
    root = exp(b, b.let("multiply", log(b, cube), s.number(1 / 3)))
    square = b.let("multiply", root, root)
    lost = s.fma(root, root, b.let("negative", square))
    over = s.fma(square, root, b.let("negative", cube))
    over = s.fma(lost, root, over)
    step = b.let("divide", over, b.let("multiply", square, s.number(3.0)))
    found = b.let("subtract", root, step)
    known = b.let("less", b.let("abs", found), s.number(math.inf))  # not 0, infinity
    found = b.let("multiply", b.let("where", known, found, root), back)
    return s.signed_as(found, x)


def hypot(b: Statements, x: Operand, y: Operand) -> Operand:
    """Return sqrt(x**2 + y**2) without an overflow on the way."""
    s = Floats(b, x)
    one, zero = s.number(1.0), s.number(0.0)
    x, y = b.let("abs", x), b.let("abs", y)
    large, small = b.let("maximum", x, y), b.let("minimum", x, y)
    ratio = b.let("divide", small, large)
    ratio = b.let("where", b.let("equal", small, zero), zero, ratio)
    value = b.let("multiply", large, b.let("sqrt", s.fma(ratio, ratio, one)))
    infinite = b.let(
        "bitwise_or",
        b.let("equal", x, s.number(math.inf)),
        b.let("equal", y, s.number(math.inf)),
    )
    return b.let("where", infinite, s.number(math.inf), value)


def logaddexp(b: Statements, x: Operand, y: Operand) -> Operand:
    """Return log(e**x + e**y): max + log1p(e**-|x - y|)."""
    s = Floats(b, x)
    apart = b.let("negative", b.let("abs", b.let("subtract", x, y)))
    rest = b.let("log1p", b.let("exp", apart))
    rest = b.let("where", b.let("equal", x, y), s.number(math.log(2)), rest)
    return b.let("add", b.let("maximum", x, y), rest)
