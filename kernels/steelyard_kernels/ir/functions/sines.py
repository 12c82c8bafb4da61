"""Sines and cosines for float32 and float64: of angles and of half turns.

An angle becomes a number of quarter turns and what is left, at most pi / 4. Below FAR
it is x - n pi / 2 with pi / 2 in three parts: the first step is exact, what is left has
no digits below the last of its first part; parts are rounded to zero, so that -0 stays
itself. From FAR on, behind a branch, the operations
`far_angle` and `far_quarter` give both.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from steelyard_kernels.dtypes import float32, float64
from steelyard_kernels.ir.functions.exp_log import magic
from steelyard_kernels.ir.functions.floats import Floats

if TYPE_CHECKING:
    from steelyard_kernels.ir.functions.floats import Statements
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
