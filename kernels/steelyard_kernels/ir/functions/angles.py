"""Inverse trigonometric functions: atan by pieces, the others by it.

atan is Moshier's (Cephes, atan.c and atanf.c): an argument above tan(3 pi / 8) is turned
by pi / 2, one above tan(pi / 8) by pi / 4, and what is left is x + x * z * p(z).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from steelyard_kernels.dtypes import float32, float64
from steelyard_kernels.ir.functions.floats import Floats
from steelyard_kernels.ir.functions.sines import HALF_PI

if TYPE_CHECKING:
    from steelyard_kernels.ir.functions.floats import Statements
    from steelyard_kernels.ir.loops import Operand

ABOVE: Final = {  # highest power of z = x**2 first: (atan(x) / x - 1) / z
    float32: (
        8.05374449538e-2,
        -1.38776856032e-1,
        1.99777106478e-1,
        -3.33329491539e-1,
    ),
    float64: (
        -8.750608600031904122785e-1,
        -1.615753718733365076637e1,
        -7.500855792314704667340e1,
        -1.228866684490136173410e2,
        -6.485021904942025371773e1,
    ),
}
BELOW: Final = (  # of float64 a quotient
    1.0,
    2.485846490142306297962e1,
    1.650270098316988542046e2,
    4.328810604912902668951e2,
    4.853903996359136964868e2,
    1.945506571482613964425e2,
)
EIGHTH: Final = {float32: math.tan(math.pi / 8), float64: 0.66}


def atan(b: Statements, x: Operand) -> Operand:
    """Return the angle of a tangent."""
    s = Floats(b, x)
    return s.signed_as(_atan(s, b.let("abs", x)), x)


def _atan(s: Floats, x: Operand) -> Operand:
    """Return the angle of a tangent that is not negative."""
    b, one = s.b, s.number(1.0)
    steep = b.let("greater", x, s.number(math.tan(3 * math.pi / 8)))
    middle = b.let("greater", x, s.number(EIGHTH[s.dtype]))
    above = b.let("where", middle, b.let("subtract", x, one), x)
    below = b.let("where", middle, b.let("add", x, one), one)
    above = b.let("where", steep, s.number(-1.0), above)
    below = b.let("where", steep, x, below)
    t = b.let("divide", above, below)
    z = b.let("multiply", t, t)
    p = s.polynomial(z, ABOVE[s.dtype])
    if s.dtype is float64:
        p = b.let("divide", p, s.polynomial(z, BELOW))
    zero, parts = s.number(0.0), [float.fromhex(part) for part in HALF_PI[s.dtype]]
    turns = [(s.number(part / 2), s.number(part)) for part in parts]
    high, low = (
        b.let("where", steep, half, b.let("where", middle, quarter, zero))
        for quarter, half in (turns[0], (turns[1]))
    )
    rest = b.let("add", s.fma(b.let("multiply", z, p), t, low), t)
    return b.let("add", high, rest)


def asin(b: Statements, x: Operand) -> Operand:
    """Return the angle of a sine: atan(x / sqrt((1 - x) (1 + x)))."""
    s = Floats(b, x)
    one = s.number(1.0)
    product = b.let("multiply", b.let("subtract", one, x), b.let("add", one, x))
    return atan(b, b.let("divide", x, b.let("sqrt", product)))


def acos(b: Statements, x: Operand) -> Operand:
    """Return the angle of a cosine: 2 atan(sqrt((1 - x) / (1 + x)))."""
    s = Floats(b, x)
    one = s.number(1.0)
    ratio = b.let("divide", b.let("subtract", one, x), b.let("add", one, x))
    angle = _atan(s, b.let("sqrt", ratio))
    return b.let("add", angle, angle)


def atan2(b: Statements, y: Operand, x: Operand) -> Operand:
    """Return the angle of the point (x, y), between -pi and pi."""
    s = Floats(b, x)
    zero, infinite = s.number(0.0), s.number(math.inf)
    up, across = b.let("abs", y), b.let("abs", x)
    same = b.let("equal", up, across)  # of zeros 0 / 0, of infinities inf / inf
    ratio = b.let("divide", up, across)
    ratio = b.let("where", same, s.number(1.0), ratio)
    ratio = b.let("where", b.let("equal", up, zero), zero, ratio)
    ratio = b.let(
        "where",
        b.let("equal", across, infinite),
        b.let(
            "where",
            b.let("equal", up, infinite),
            s.number(1.0),
            b.let("multiply", up, zero),
        ),
        ratio,
    )
    angle = _atan(s, ratio)
    left = b.let("less", s.as_word(x), s.whole(0))
    high, low = (2 * float.fromhex(part) for part in HALF_PI[s.dtype][:2])
    turned = b.let("add", b.let("subtract", s.number(high), angle), s.number(low))
    value = s.signed_as(b.let("where", left, turned, angle), y)
    known = b.let("bitwise_and", b.let("equal", x, x), b.let("equal", y, y))
    return b.let("where", known, value, s.number(math.nan))
