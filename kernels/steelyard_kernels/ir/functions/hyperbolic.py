"""Hyperbolic functions and their inverses, by expm1, exp, log and log1p.

Where e**|x| would overflow before the result does, its half is taken.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from steelyard_kernels.dtypes import float32
from steelyard_kernels.ir.functions.exp_log import exp, log
from steelyard_kernels.ir.functions.floats import Floats
from steelyard_kernels.ir.functions.sigmoid import expm1, log1p

if TYPE_CHECKING:
    from steelyard_kernels.ir.functions.floats import Statements
    from steelyard_kernels.ir.loops import Operand


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
