"""What is made of exp and log: sigmoid, softplus, hyperbolic functions and their inverses.

Where e**|x| would overflow before the result does, its half is taken.

sigmoid and tanh are what the next iteration of a loop waits for: few of their steps wait
for each other (Estrin's scheme, one division). Edges are those of IEEE 754: results that
underflow are denormal, sigmoid(-inf) = 0, log1p(-1) = -inf, zeros keep their sign where
the function is odd.
"""

from __future__ import annotations

import math

from steelyard_kernels.dtypes import float32
from steelyard_kernels.ir.functions import exp_log
from steelyard_kernels.ir.functions.exp_log import (
    EXP,
    exp,
    log,
    log_near_one,
    power_of,
    reduced,
    taken_apart,
)
from steelyard_kernels.ir.functions.floats import Floats, Statements
from steelyard_kernels.ir.loops import Operand


def sigmoid(b: Statements, x: Operand) -> Operand:
    """Return 1 / (1 + e**-x).

    1 + e**-x is 1 + 2**n + 2**n * (e**r - 1), whose large parts are exact. Of a 2**n too
    large for it a part is left to the end: the quotient may not be a normal number.
    """
    s = Floats(b, x)
    c, one = EXP[s.dtype], s.number(1.0)
    negative = s.at_most(b.let("negative", x), -c.lowest)
    shifted, r = reduced(s, s.at_least(negative, -40.0))  # from where it rounds to 1
    power = power_of(s, shifted)
    scaled = b.let("minimum", power, s.whole(s.bias - 30))
    scale = s.two_to(scaled)
    sum_ = s.fma(s.estrin(r, (*c.q, 1.0, 0.0)), scale, b.let("add", scale, one))
    rest = s.two_to(b.let("subtract", scaled, power))
    return b.let("multiply", b.let("divide", one, sum_), rest)


def tanh(b: Statements, x: Operand) -> Operand:
    """Return the hyperbolic tangent: t / (t + 2), t = e**-2|x| - 1."""
    s = Floats(b, x)
    bound = -20.0 if s.dtype is float32 else -40.0  # from here on it rounds to 1
    twice = b.let("multiply", b.let("abs", x), s.number(-2.0))
    shifted, r = reduced(s, s.at_least(twice, bound))
    scale = s.two_to(power_of(s, shifted))
    t = s.fma(_less_one(s, r), scale, b.let("subtract", scale, s.number(1.0)))
    return s.signed_as(b.let("divide", t, b.let("add", t, s.number(2.0))), x)


def expm1(b: Statements, x: Operand) -> Operand:
    """Return e**x - 1: twice (2**n * (e**r - 1) + 2**n - 1) / 2."""
    s = Floats(b, x)
    bound = -20.0 if s.dtype is float32 else -40.0  # from here down it rounds to -1
    shifted, r = reduced(s, s.at_most(s.at_least(x, bound), EXP[s.dtype].highest))
    scale = s.two_to(power_of(s, shifted), -1)  # half of 2**n, which may not be a float
    half = s.fma(_less_one(s, r), scale, b.let("subtract", scale, s.number(0.5)))
    value = b.let("add", half, half)
    return b.let("where", b.let("equal", x, s.number(0.0)), x, value)


def _less_one(s: Floats, r: Operand) -> Operand:
    """Return e**r - 1 for |r| <= ln 2 / 2."""
    return s.fma(s.estrin(r, EXP[s.dtype].q), s.b.let("multiply", r, r), r)


def log1p(b: Statements, x: Operand) -> Operand:
    """Return log(1 + x)."""
    s = Floats(b, x)
    value = exp_log.at_the_edges(s, x, _log1p(s, x), -1.0)
    return s.signed_as(value, x)


def _log1p(s: Floats, x: Operand) -> Operand:
    """Return log(1 + x) for x > -1, with what 1 + x rounded away."""
    b, one = s.b, s.number(1.0)
    u = b.let("add", x, one)
    small = b.let("subtract", x, b.let("subtract", u, one))
    large = b.let("subtract", one, b.let("subtract", u, x))
    away = b.let("where", b.let("less", x, one), small, large)
    k, f = taken_apart(s, u, s.whole(-s.bias))
    return log_near_one(s, f, k, b.let("divide", away, u))


def softplus(b: Statements, x: Operand) -> Operand:
    """Return log(1 + e**x): max(x, 0) + log1p(e**-|x|)."""
    s = Floats(b, x)
    rest = _log1p(s, exp_log.exp(b, b.let("negative", b.let("abs", x))))
    above = b.let("greater", x, s.number(0.0))
    return b.let("add", b.let("where", above, x, s.number(0.0)), rest)


def sinh(b: Statements, x: Operand) -> Operand:
    """Return the hyperbolic sine: (t + t / (t + 1)) / 2, t = e**|x| - 1."""
    s = Floats(b, x)
    size, half = b.let("abs", x), s.number(0.5)
    t = expm1(b, size)
    small = b.let("add", t, b.let("divide", t, b.let("add", t, s.number(1.0))))
    value = b.let(
        "where",
        _is_large(s, size),
        exp(b, size, halvings=1),
        b.let("multiply", half, small),
    )
    return s.signed_as(value, x)


def cosh(b: Statements, x: Operand) -> Operand:
    """Return the hyperbolic cosine: (e**|x| + 1 / e**|x|) / 2."""
    s = Floats(b, x)
    size, half = b.let("abs", x), s.number(0.5)
    t = exp(b, size)
    small = s.fma(half, t, b.let("divide", half, t))
    return b.let("where", _is_large(s, size), exp(b, size, halvings=1), small)


def _is_large(s: Floats, size: Operand) -> Operand:
    """Say where e**-size is nothing beside e**size."""
    return s.b.let("greater", size, s.number(20.0 if s.dtype is float32 else 40.0))


def asinh(b: Statements, x: Operand) -> Operand:
    """Return log(x + sqrt(x**2 + 1)) of |x|, as log1p where that is exact."""
    s = Floats(b, x)
    one, size = s.number(1.0), b.let("abs", x)
    square = b.let("multiply", size, size)
    root = b.let("sqrt", b.let("add", square, one))
    small = log1p(
        b, b.let("add", size, b.let("divide", square, b.let("add", one, root)))
    )
    return s.signed_as(_or_far(s, size, small), x)


def acosh(b: Statements, x: Operand) -> Operand:
    """Return log(x + sqrt(x**2 - 1)): log1p(t + sqrt(2 t + t**2)), t = x - 1."""
    s = Floats(b, x)
    t = b.let("subtract", x, s.number(1.0))
    root = b.let("sqrt", s.fma(t, t, b.let("add", t, t)))
    value = _or_far(s, x, log1p(b, b.let("add", t, root)))
    return b.let("where", b.let("less", x, s.number(1.0)), s.number(math.nan), value)


def _or_far(s: Floats, x: Operand, near: Operand) -> Operand:
    """Return log(2 x) where the square of x is far beyond 1, else what is near."""
    b = s.b
    far = b.let("add", log(b, x), s.number(math.log(2)))
    bound = s.number(2.0 ** (s.mantissa // 2 + 2))
    return b.let("where", b.let("greater", x, bound), far, near)


def atanh(b: Statements, x: Operand) -> Operand:
    """Return log((1 + x) / (1 - x)) / 2: log1p(2 |x| / (1 - |x|)) / 2."""
    s = Floats(b, x)
    size = b.let("abs", x)
    ratio = b.let(
        "divide", b.let("add", size, size), b.let("subtract", s.number(1.0), size)
    )
    return s.signed_as(b.let("multiply", s.number(0.5), log1p(b, ratio)), x)
