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
from steelyard_kernels.ir.functions.floats import Number, where

PI: Final = {  # and what its rounding left
    float32: (float.fromhex("0x1.921fb6p+1"), -8.742278000372485e-08),
    float64: (math.pi, 1.2246467991473532e-16),
}
HALF_SQUARE: Final = {  # pi**2 / 2, and what its rounding left
    float32: (float.fromhex("0x1.3bd3ccp+2"), 1.4518579259066726e-07),
    float64: (4.934802200544679, 3.1326477543698557e-16),
}
# Taylor's, in r**2 for |r| <= pi / 4: the next term is below 2**-26 or 2**-57.
TERMS: Final = {float64: 9, float32: 6}

HALF_PI: Final = {
    float32: ("0x1.921fb4p+0", "0x1.4442dp-24", "0x1.846988p-48"),
    float64: (
        *("0x1.921fb54442d18p+0", "0x1.1a62633145c06p-54"),
        "0x1.c1cd129024e08p-107",
    ),
}
FAR: Final = {float32: 2.0**17, float64: 2.0**30}  # three parts are enough below


def sin(x: Number) -> Number:
    """Return the sine of x radians."""
    return _turned(*_reduced(x), 0, 1.0)


def cos(x: Number) -> Number:
    """Return the cosine of x radians."""
    return _turned(*_reduced(x), 1, 1.0)


def sinpi(x: Number) -> Number:
    """Return sin(pi x); its zeros have the sign of x, as IEEE 754-2019 has it."""
    value = _of_half_turns(x, 0)
    return where(value == 0.0, x.number(0.0).signed_as(x), value)


def cospi(x: Number) -> Number:
    """Return cos(pi x)."""
    return _of_half_turns(x, 1)


def _of_half_turns(x: Number, quarters: int) -> Number:
    """Return sin(pi x + pi quarters / 2), the argument reduced exactly."""
    turns = (x * 0.5).let("round")
    left = turns.fma(-2.0, x)  # of whole turns; NaN if x is infinite
    shifted = left.fma(2.0, x.magic)
    r = (shifted - x.magic).fma(-0.5, left)
    return _turned(r, shifted.bits, quarters, math.pi)


def tan(x: Number) -> Number:
    """Return the tangent of x radians: sine over cosine, or minus what is upside down."""
    r, quarter = _reduced(x)
    is_odd = (quarter & 1) != 0
    sine, cosine = _sine(r, 1.0), _cosine(r, 1.0)
    return where(is_odd, -cosine, sine) / where(is_odd, sine, cosine)


def _reduced(x: Number) -> tuple[Number, Number]:
    """Return what quarter turns leave of an angle, and how many they are."""
    shifted = x.fma(2 / math.pi, x.magic)
    near, r = shifted - x.magic, x
    for part in HALF_PI[x.dtype]:
        r = near.fma(-float.fromhex(part), r)
    quarter = shifted.bits
    far = abs(x) >= FAR[x.dtype]
    with x.b.branch(far.let("reduce_bitwise_or").operand, seldom=True) as branch:
        turned = where(far, x.let("far_quarter"), quarter)
        branch.gives(where(far, x.let("far_angle"), r).operand, turned.operand)
        branch.otherwise()
        branch.gives(r.operand, quarter.operand)
    r, quarter = (Number(x.b, each) for each in branch.results)
    return r, quarter


def _turned(r: Number, quarter: Number, quarters: int, unit: float) -> Number:
    """Return sin(unit r + pi (quarter + quarters) / 2)."""
    quarter = quarter + quarters
    is_odd = (quarter & 1) != 0
    value = where(is_odd, _cosine(r, unit), _sine(r, unit))
    sign = (quarter & 2) << 8 * r.dtype.bytes - 2
    return (value.bits ^ sign).bits


def _sine(r: Number, unit: float) -> Number:
    """Return sin(u r) for |u r| <= pi / 4, as u r + r * (what is small)."""
    z = r * r
    high, low = PI[r.dtype] if unit == math.pi else (unit, 0.0)
    rest = z.polynomial(_taylor(r, 1, unit)[:-1]).fma(z, low)
    return r.fma(high, r * rest)


def _cosine(r: Number, unit: float) -> Number:
    """Return cos(u r) for |u r| <= pi / 4, as 1 - u**2 / 2 * r**2 and what that lost."""
    high, low = HALF_SQUARE[r.dtype] if unit == math.pi else (unit / 2, 0.0)
    z = r * r
    z_low = r.fma(r, -z)
    near = z.fma(-high, 1.0)
    lost = z_low.fma(-high, z.fma(-high, 1.0 - near))
    rest = z.polynomial(_taylor(r, 0, unit)[:-2]).fma(z, -low)
    return near + rest.fma(z, lost)


def _taylor(r: Number, first: int, unit: float) -> list[float]:
    """Return the coefficients of sin(u r) / r or cos(u r) in r**2, highest first."""
    return [
        (-1) ** k * unit ** (2 * k + first) / math.factorial(2 * k + first)
        for k in reversed(range(TERMS[r.dtype]))
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


def atan(x: Number) -> Number:
    """Return the angle of a tangent."""
    return _atan(abs(x)).signed_as(x)


def _atan(x: Number) -> Number:
    """Return the angle of a tangent that is not negative."""
    steep = x > math.tan(3 * math.pi / 8)
    middle = x > EIGHTH[x.dtype]
    above = where(middle, x - 1.0, x)
    below = where(middle, x + 1.0, 1.0)
    above = where(steep, -1.0, above)
    below = where(steep, x, below)
    t = above / below
    z = t * t
    p = z.polynomial(ABOVE[x.dtype])
    if not x.is_single:
        p = p / z.polynomial(BELOW)
    halves = [float.fromhex(part) for part in HALF_PI[x.dtype][:2]]
    high, low = (
        where(steep, half, where(middle, x.number(half / 2), 0.0)) for half in halves
    )
    return high + ((z * p).fma(t, low) + t)


def asin(x: Number) -> Number:
    """Return the angle of a sine: atan(x / sqrt((1 - x) (1 + x)))."""
    return atan(x / ((1.0 - x) * (1.0 + x)).let("sqrt"))


def acos(x: Number) -> Number:
    """Return the angle of a cosine: 2 atan(sqrt((1 - x) / (1 + x)))."""
    angle = _atan(((1.0 - x) / (1.0 + x)).let("sqrt"))
    return angle + angle


def atan2(y: Number, x: Number) -> Number:
    """Return the angle of the point (x, y), between -pi and pi."""
    up, across = abs(y), abs(x)
    same = up == across  # of zeros 0 / 0, of infinities inf / inf
    ratio = where(same, 1.0, up / across)
    ratio = where(up == 0.0, 0.0, ratio)
    far = across == math.inf
    ratio = where(far, where(up == math.inf, 1.0, up * 0.0), ratio)
    angle = _atan(ratio)
    left = x.bits < 0
    high, low = (2 * float.fromhex(part) for part in HALF_PI[x.dtype][:2])
    turned = high - angle + low
    value = where(left, turned, angle).signed_as(y)
    return where((x == x) & (y == y), value, math.nan)  # noqa: PLR0124 - NaN
