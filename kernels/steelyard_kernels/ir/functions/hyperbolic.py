"""What is made of exp and log: sigmoid, softplus, hyperbolic functions and their inverses.

Where e**|x| would overflow before the result does, its half is taken.

sigmoid and tanh are what the next iteration of a loop waits for: few of their steps wait
for each other (Estrin's scheme, one division). Edges are those of IEEE 754: results that
underflow are denormal, sigmoid(-inf) = 0, log1p(-1) = -inf, zeros keep their sign where
the function is odd.
"""

from __future__ import annotations

import math

from steelyard_kernels.ir.functions.exp_log import (
    EXP,
    at_the_edges,
    exp,
    log,
    log_near_one,
    power_of,
    reduced,
    taken_apart,
)
from steelyard_kernels.ir.functions.floats import Number, where


def sigmoid(x: Number) -> Number:
    """Return 1 / (1 + e**-x).

    1 + e**-x is 1 + 2**n + 2**n * (e**r - 1), whose large parts are exact. Of a 2**n too
    large for it a part is left to the end: the quotient may not be a normal number.
    """
    c = EXP[x.dtype]
    negative = (-x).at_most(-c.lowest)
    shifted, r = reduced(negative.at_least(-40.0))  # from where it rounds to 1
    power = power_of(shifted)
    scaled = power.let("minimum", x.bias - 30)
    scale = scaled.two_to()
    total = r.estrin((*c.q, 1.0, 0.0)).fma(scale, scale + 1.0)
    rest = (scaled - power).two_to()
    return 1.0 / total * rest


def tanh(x: Number) -> Number:
    """Return the hyperbolic tangent: t / (t + 2), t = e**-2|x| - 1."""
    bound = -20.0 if x.is_single else -40.0  # from here on it rounds to 1
    shifted, r = reduced((abs(x) * -2.0).at_least(bound))
    scale = power_of(shifted).two_to()
    t = _less_one(r).fma(scale, scale - 1.0)
    return (t / (t + 2.0)).signed_as(x)


def expm1(x: Number) -> Number:
    """Return e**x - 1: twice (2**n * (e**r - 1) + 2**n - 1) / 2."""
    bound = -20.0 if x.is_single else -40.0  # from here down it rounds to -1
    shifted, r = reduced(x.at_least(bound).at_most(EXP[x.dtype].highest))
    scale = power_of(shifted).two_to(-1)  # half of 2**n, which may not be a float
    half = _less_one(r).fma(scale, scale - 0.5)
    value = half + half
    return where(x == 0.0, x, value)


def _less_one(r: Number) -> Number:
    """Return e**r - 1 for |r| <= ln 2 / 2."""
    return r.estrin(EXP[r.dtype].q).fma(r * r, r)


def log1p(x: Number) -> Number:
    """Return log(1 + x)."""
    return at_the_edges(x, _log1p(x), -1.0).signed_as(x)


def _log1p(x: Number) -> Number:
    """Return log(1 + x) for x > -1, with what 1 + x rounded away."""
    u = x + 1.0
    small = x - (u - 1.0)
    large = 1.0 - (u - x)
    away = where(x < 1.0, small, large)
    k, f = taken_apart(u, -x.bias)
    return log_near_one(f, k, away / u)


def softplus(x: Number) -> Number:
    """Return log(1 + e**x): max(x, 0) + log1p(e**-|x|)."""
    rest = _log1p(exp(-abs(x)))
    return where(x > 0.0, x, 0.0) + rest


def sinh(x: Number) -> Number:
    """Return the hyperbolic sine: (t + t / (t + 1)) / 2, t = e**|x| - 1."""
    size = abs(x)
    t = expm1(size)
    small = t + t / (t + 1.0)
    value = where(_is_large(size), exp(size, halvings=1), 0.5 * small)
    return value.signed_as(x)


def cosh(x: Number) -> Number:
    """Return the hyperbolic cosine: (e**|x| + 1 / e**|x|) / 2."""
    size, half = abs(x), x.number(0.5)
    t = exp(size)
    small = half.fma(t, half / t)
    return where(_is_large(size), exp(size, halvings=1), small)


def _is_large(size: Number) -> Number:
    """Say where e**-size is nothing beside e**size."""
    return size > (20.0 if size.is_single else 40.0)


def asinh(x: Number) -> Number:
    """Return log(x + sqrt(x**2 + 1)) of |x|, as log1p where that is exact."""
    size = abs(x)
    square = size * size
    root = (square + 1.0).let("sqrt")
    return _or_far(size, log1p(size + square / (1.0 + root))).signed_as(x)


def acosh(x: Number) -> Number:
    """Return log(x + sqrt(x**2 - 1)): log1p(t + sqrt(2 t + t**2)), t = x - 1."""
    t = x - 1.0
    value = _or_far(x, log1p(t + t.fma(t, t + t).let("sqrt")))
    return where(x < 1.0, math.nan, value)


def _or_far(x: Number, near: Number) -> Number:
    """Return log(2 x) where the square of x is far beyond 1, else what is near."""
    far = log(x) + math.log(2)
    return where(x > 2.0 ** (x.mantissa // 2 + 2), far, near)


def atanh(x: Number) -> Number:
    """Return log((1 + x) / (1 - x)) / 2: log1p(2 |x| / (1 - |x|)) / 2."""
    size = abs(x)
    ratio = (size + size) / (1.0 - size)
    return (0.5 * log1p(ratio)).signed_as(x)
