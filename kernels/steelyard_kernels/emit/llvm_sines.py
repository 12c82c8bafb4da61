"""Sines and cosines for float32 and float64, on a CPU: of angles and of half turns.

An angle becomes a number of quarter turns and what is left, at most pi / 4. Below FAR
it is x - n pi / 2 with pi / 2 in three parts: the first step is exact, what is left has
no digits below the last of its first part; parts are rounded to zero, so that -0 stays
itself. From FAR on, behind a branch, `llvm_angle` tells both.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from steelyard_kernels.dtypes import float32, float64
from steelyard_kernels.emit.llvm_angle import from_afar, seldom
from steelyard_kernels.emit.llvm_math import Lanes, magic
from steelyard_kernels.emit.llvm_text import ELEMENT, mangle

if TYPE_CHECKING:
    from steelyard_kernels.emit.llvm_text import Writer
    from steelyard_kernels.ir.loops import Type

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


def sin(w: Writer, x: str, type_: Type) -> str:
    """Return the sine of x radians as an expression."""
    return _of_angle(Lanes(w, type_), x, 0)


def cos(w: Writer, x: str, type_: Type) -> str:
    """Return the cosine of x radians as an expression."""
    return _of_angle(Lanes(w, type_), x, 1)


def sinpi(w: Writer, x: str, type_: Type) -> str:
    """Return sin(pi x) as an expression."""
    return _of_half_turns(Lanes(w, type_), x, 0)


def cospi(w: Writer, x: str, type_: Type) -> str:
    """Return cos(pi x) as an expression."""
    return _of_half_turns(Lanes(w, type_), x, 1)


def _of_half_turns(s: Lanes, x: str, quarters: int) -> str:
    """Return sin(pi x + pi quarters / 2), the argument reduced exactly."""
    name = f"llvm.rint.{mangle(ELEMENT[s.dtype], s.lanes)}"
    half = s.on_floats("fmul", x, s.number(0.5))
    turns = s.writer.put(s.writer.call(s.type, name, (s.type, half)))
    left = s.fma(turns, s.number(-2.0), x)  # of whole turns; NaN if x is infinite
    shifted = s.fma(left, s.number(2.0), s.number(magic(s)))
    near = s.on_floats("fsub", shifted, s.number(magic(s)))
    r = s.fma(near, s.number(-0.5), left)
    return _turned(s, r, s.as_bits(shifted), quarters, math.pi)


def _of_angle(s: Lanes, x: str, quarters: int) -> str:
    """Return sin(x + pi quarters / 2)."""
    shifted = s.fma(x, s.number(2 / math.pi), s.number(magic(s)))
    near = s.on_floats("fsub", shifted, s.number(magic(s)))
    r = x
    for part in HALF_PI[s.dtype]:
        r = s.fma(near, s.number(-float.fromhex(part)), r)
    r, quarter = _from_afar(s, x, r, s.as_bits(shifted))
    return _turned(s, r, quarter, quarters, 1.0)


def _turned(s: Lanes, r: str, quarter: str, quarters: int, unit: float) -> str:
    """Return sin(unit r + pi (quarter + quarters) / 2)."""
    quarter = s.on_bits("add", quarter, s.whole(quarters))
    odd = s.on_bits("and", quarter, s.whole(1))
    is_odd = s.writer.put(f"icmp ne {s.bits} {odd}, zeroinitializer")
    value = s.as_bits(s.choose(is_odd, _cosine(s, r, unit), _sine(s, r, unit)))
    high = s.on_bits("and", quarter, s.whole(2))
    sign = s.on_bits("shl", high, s.whole(8 * s.dtype.bytes - 2))
    return f"bitcast {s.bits} {s.on_bits('xor', value, sign)} to {s.type}"


def _sine(s: Lanes, r: str, unit: float) -> str:
    """Append sin(u r) for |u r| <= pi / 4, as u r + r * (what is small)."""
    z = s.on_floats("fmul", r, r)
    high, low = PI[s.dtype] if unit == math.pi else (unit, 0.0)
    rest = s.fma(s.polynomial(z, _taylor(s, 1, unit)[:-1]), z, s.number(low))
    return s.fma(r, s.number(high), s.on_floats("fmul", r, rest))


def _cosine(s: Lanes, r: str, unit: float) -> str:
    """Append cos(u r) for |u r| <= pi / 4, as 1 - u**2 / 2 * r**2 and what that lost."""
    high, low = HALF_SQUARE[s.dtype] if unit == math.pi else (unit / 2, 0.0)
    one = s.number(1.0)
    z = s.on_floats("fmul", r, r)
    z_low = s.fma(r, r, s.writer.put(f"fneg {s.type} {z}"))
    near = s.fma(z, s.number(-high), one)
    lost = s.fma(z, s.number(-high), s.on_floats("fsub", one, near))
    lost = s.fma(z_low, s.number(-high), lost)
    rest = s.fma(s.polynomial(z, _taylor(s, 0, unit)[:-2]), z, s.number(-low))
    return s.on_floats("fadd", near, s.fma(rest, z, lost))


def _taylor(s: Lanes, first: int, unit: float) -> list[float]:
    """Return the coefficients of sin(u r) / r or cos(u r) in r**2, highest first."""
    count = TERMS[s.dtype is float32]
    return [
        (-1) ** k * unit ** (2 * k + first) / math.factorial(2 * k + first)
        for k in reversed(range(count))
    ]


def _from_afar(s: Lanes, x: str, r: str, quarter: str) -> tuple[str, str]:
    """Append r and its quarter turn: as given, but of large x as they should be."""
    w = s.writer
    far = any_far = s.on_floats("fcmp oge", s.magnitude(x), s.number(FAR[s.dtype]))
    if s.lanes > 1:
        name = f"llvm.vector.reduce.or.{mangle('i1', s.lanes)}"
        any_far = w.put(w.call("i1", name, (s.flag, far)))
    before, here = w.block, f"far.{w.fresh()}"
    w.do(f"br i1 {any_far}, label %{here}, label %{here}.end, !prof {seldom(w)}")
    w.label(here)
    angle, turned = from_afar(s, x)
    angle = s.choose(far, angle, r)
    turned = s.choose(far, turned, quarter, bits=True)
    w.do(f"br label %{here}.end")
    w.label(f"{here}.end")
    both = (s.type, angle, r), (s.bits, turned, quarter)
    r, quarter = [
        w.put(f"phi {type_} [ {new}, %{here} ], [ {old}, %{before} ]")
        for type_, new, old in both
    ]
    return r, quarter
