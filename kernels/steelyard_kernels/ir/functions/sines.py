"""Sines and cosines for float32 and float64: of angles and of half turns.

An angle becomes a number of quarter turns and what is left, at most pi / 4. Below FAR
it is x - n pi / 2 with pi / 2 in three parts: the first step is exact, what is left has
no digits below the last of its first part; parts are rounded to zero, so that -0 stays
itself. From FAR on, behind a branch, the operations
`far_angle` and `far_quarter` give both.

Inverse functions: atan by pieces, the others by it. atan is Moshier's (Cephes, atan.c and
atanf.c): an argument above tan(3 pi / 8) is turned by pi / 2, one above tan(pi / 8) by pi
/ 4, and what is left is x + x * z * p(z).
"""

from __future__ import annotations

import math
from typing import Final

from steelyard_kernels.dtypes import float32, float64
from steelyard_kernels.ir.functions.exp_log import magic
from steelyard_kernels.ir.functions.floats import Floats, Statements
from steelyard_kernels.ir.loops import Operand

PI: Final = {  # and what its rounding left
    float32: (float.fromhex("0x1.921fb6p+1"), -8.742278000372485e-08),
    float64: (math.pi, 1.2246467991473532e-16),
}
HALF_SQUARE: Final = {  # pi**2 / 2, and what its rounding left
    float32: (float.fromhex("0x1.3bd3ccp+2"), 1.4518579259066726e-07),
    float64: (4.934802200544679, 3.1326477543698557e-16),
}
# Taylor's, in r**2 for |r| <= pi / 4: the next term is below 2**-26 or 2**-57.
TERMS: Final = {False: 9, True: 6}  # by whether it is float32

HALF_PI: Final = {
    float32: ("0x1.921fb4p+0", "0x1.4442dp-24", "0x1.846988p-48"),
    float64: (
        *("0x1.921fb54442d18p+0", "0x1.1a62633145c06p-54"),
        "0x1.c1cd129024e08p-107",
    ),
}
FAR: Final = {float32: 2.0**17, float64: 2.0**30}  # three parts are enough below


def sin(b: Statements, x: Operand) -> Operand:
    """Return the sine of x radians."""
    return _of_angle(Floats(b, x), x, 0)


def cos(b: Statements, x: Operand) -> Operand:
    """Return the cosine of x radians."""
    return _of_angle(Floats(b, x), x, 1)


def sinpi(b: Statements, x: Operand) -> Operand:
    """Return sin(pi x); its zeros have the sign of x, as IEEE 754-2019 has it."""
    s = Floats(b, x)
    value, zero = _of_half_turns(s, x, 0), s.number(0.0)
    return b.let("where", b.let("equal", value, zero), s.signed_as(zero, x), value)


def cospi(b: Statements, x: Operand) -> Operand:
    """Return cos(pi x)."""
    return _of_half_turns(Floats(b, x), x, 1)


def _of_half_turns(s: Floats, x: Operand, quarters: int) -> Operand:
    """Return sin(pi x + pi quarters / 2), the argument reduced exactly."""
    b = s.b
    turns = b.let("round", b.let("multiply", x, s.number(0.5)))
    left = s.fma(turns, s.number(-2.0), x)  # of whole turns; NaN if x is infinite
    shifted = s.fma(left, s.number(2.0), s.number(magic(s)))
    near = b.let("subtract", shifted, s.number(magic(s)))
    r = s.fma(near, s.number(-0.5), left)
    return _turned(s, r, s.as_word(shifted), quarters, math.pi)


def tan(b: Statements, x: Operand) -> Operand:
    """Return the tangent of x radians: sine over cosine, or minus what is upside down."""
    s = Floats(b, x)
    r, quarter = _reduced(s, x)
    is_odd = b.let("not_equal", b.let("bitwise_and", quarter, s.whole(1)), s.whole(0))
    sine, cosine = _sine(s, r, 1.0), _cosine(s, r, 1.0)
    above = b.let("where", is_odd, b.let("negative", cosine), sine)
    return b.let("divide", above, b.let("where", is_odd, sine, cosine))


def _of_angle(s: Floats, x: Operand, quarters: int) -> Operand:
    """Return sin(x + pi quarters / 2)."""
    r, quarter = _reduced(s, x)
    return _turned(s, r, quarter, quarters, 1.0)


def _reduced(s: Floats, x: Operand) -> tuple[Operand, Operand]:
    """Return what quarter turns leave of an angle, and how many they are."""
    b = s.b
    shifted = s.fma(x, s.number(2 / math.pi), s.number(magic(s)))
    near = b.let("subtract", shifted, s.number(magic(s)))
    r = x
    for part in HALF_PI[s.dtype]:
        r = s.fma(near, s.number(-float.fromhex(part)), r)
    quarter = s.as_word(shifted)
    far = b.let("greater_equal", b.let("abs", x), s.number(FAR[s.dtype]))
    with b.branch(b.let("reduce_bitwise_or", far), seldom=True) as branch:
        turned = b.let("where", far, b.let("far_quarter", x), quarter)
        branch.gives(b.let("where", far, b.let("far_angle", x), r), turned)
        branch.otherwise()
        branch.gives(r, quarter)
    r, quarter = branch.results
    return r, quarter


def _turned(
    s: Floats, r: Operand, quarter: Operand, quarters: int, unit: float
) -> Operand:
    """Return sin(unit r + pi (quarter + quarters) / 2)."""
    b = s.b
    quarter = b.let("add", quarter, s.whole(quarters))
    is_odd = b.let("not_equal", b.let("bitwise_and", quarter, s.whole(1)), s.whole(0))
    value = b.let("where", is_odd, _cosine(s, r, unit), _sine(s, r, unit))
    high = b.let("bitwise_and", quarter, s.whole(2))
    sign = b.let("bitwise_left_shift", high, s.whole(8 * s.dtype.bytes - 2))
    return b.let("bitcast", b.let("bitwise_xor", s.as_word(value), sign))


def _sine(s: Floats, r: Operand, unit: float) -> Operand:
    """Return sin(u r) for |u r| <= pi / 4, as u r + r * (what is small)."""
    z = s.b.let("multiply", r, r)
    high, low = PI[s.dtype] if unit == math.pi else (unit, 0.0)
    rest = s.fma(s.polynomial(z, _taylor(s, 1, unit)[:-1]), z, s.number(low))
    return s.fma(r, s.number(high), s.b.let("multiply", r, rest))


def _cosine(s: Floats, r: Operand, unit: float) -> Operand:
    """Return cos(u r) for |u r| <= pi / 4, as 1 - u**2 / 2 * r**2 and what that lost."""
    b, one = s.b, s.number(1.0)
    high, low = HALF_SQUARE[s.dtype] if unit == math.pi else (unit / 2, 0.0)
    z = b.let("multiply", r, r)
    z_low = s.fma(r, r, b.let("negative", z))
    near = s.fma(z, s.number(-high), one)
    lost = s.fma(z, s.number(-high), b.let("subtract", one, near))
    lost = s.fma(z_low, s.number(-high), lost)
    rest = s.fma(s.polynomial(z, _taylor(s, 0, unit)[:-2]), z, s.number(-low))
    return b.let("add", near, s.fma(rest, z, lost))


def _taylor(s: Floats, first: int, unit: float) -> list[float]:
    """Return the coefficients of sin(u r) / r or cos(u r) in r**2, highest first."""
    count = TERMS[s.dtype is float32]
    return [
        (-1) ** k * unit ** (2 * k + first) / math.factorial(2 * k + first)
        for k in reversed(range(count))
    ]


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
