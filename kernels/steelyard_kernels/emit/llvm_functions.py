"""What is made of exp and log, sines and erf, for float32 and float64.

Largest errors seen in ulp on 20 million arguments a function, float32 against float64
and float64 against longdouble (erf_inv on a million, its float64 on 20,000 against erf
in 40 digits); tests hold them on a sample:

              expm1  log1p  tanh  sigmoid  softplus  erf   erf_inv
    float32   1.60   0.86   2.50  2.45     1.60      1.35  2.85
    float64   1.95   0.83   2.63  2.40     1.65      1.30  3.45

              sin   cos   sinpi  cospi
    float32   1.50  1.50  0.97   0.70
    float64   1.50  1.50  0.85   0.80

sigmoid and tanh are what the next iteration of a loop waits for: few of their steps
wait for each other (Estrin's scheme, one division). Edges are those of IEEE 754:
results that underflow are denormal, sigmoid(-inf) = 0, log1p(-1) = -inf, zeros keep
their sign where the function is odd.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from steelyard_kernels.dtypes import float32
from steelyard_kernels.emit import llvm_math, llvm_sines
from steelyard_kernels.emit.llvm_erf import erf
from steelyard_kernels.emit.llvm_erf_inv import erf_inv
from steelyard_kernels.emit.llvm_math import (
    BIAS,
    EXP,
    Lanes,
    log_near_one,
    power_of,
    reduced,
    taken_apart,
    two_to,
)
from steelyard_kernels.emit.llvm_text import mangle

if TYPE_CHECKING:
    from steelyard_kernels.emit.llvm_text import Writer
    from steelyard_kernels.ir.loops import Type


def sigmoid(w: Writer, x: str, type_: Type) -> str:
    """Return 1 / (1 + e**-x) as an expression.

    1 + e**-x is 1 + 2**n + 2**n * (e**r - 1), whose large parts are exact. Of a 2**n too
    large for it a part is left to the end: the quotient may not be a normal number.
    """
    s, c = Lanes(w, type_), EXP[type_.dtype]
    negative = s.at_most(w.put(f"fneg {s.type} {x}"), -c.lowest)
    shifted, r = reduced(s, s.at_least(negative, -40.0))  # from where it rounds to 1
    power = power_of(s, shifted)
    most = s.whole(BIAS[s.dtype] - 30)
    name = f"llvm.smin.{mangle(s.word, s.lanes)}"
    scaled = w.put(w.call(s.bits, name, (s.bits, power), (s.bits, most)))
    scale, one = two_to(s, scaled), s.number(1.0)
    sum_ = s.fma(s.estrin(r, (*c.q, 1.0, 0.0)), scale, s.on_floats("fadd", scale, one))
    rest = two_to(s, s.on_bits("sub", scaled, power))
    return f"fmul {s.type} {s.on_floats('fdiv', one, sum_)}, {rest}"


def tanh(w: Writer, x: str, type_: Type) -> str:
    """Return the hyperbolic tangent as an expression: t / (t + 2), t = e**-2|x| - 1."""
    s = Lanes(w, type_)
    bound = -20.0 if s.dtype is float32 else -40.0  # from here on it rounds to 1
    twice = s.on_floats("fmul", s.magnitude(x), s.number(-2.0))
    shifted, r = reduced(s, s.at_least(twice, bound))
    scale = two_to(s, power_of(s, shifted))
    less_one = s.on_floats("fsub", scale, s.number(1.0))
    t = s.fma(_less_one(s, r), scale, less_one)
    quotient = s.on_floats("fdiv", t, s.on_floats("fadd", t, s.number(2.0)))
    return s.signed_as(quotient, x)


def expm1(w: Writer, x: str, type_: Type) -> str:
    """Return e**x - 1 as an expression: twice (2**n * (e**r - 1) + 2**n - 1) / 2."""
    s = Lanes(w, type_)
    bound = -20.0 if s.dtype is float32 else -40.0  # from here down it rounds to -1
    shifted, r = reduced(s, s.at_most(s.at_least(x, bound), EXP[s.dtype].highest))
    power = s.on_bits("sub", power_of(s, shifted), s.whole(1))
    scale = two_to(s, power)  # half of 2**n, which may not be a float
    less_half = s.on_floats("fsub", scale, s.number(0.5))
    half = s.fma(_less_one(s, r), scale, less_half)
    value = s.on_floats("fadd", half, half)
    zero = s.on_floats("fcmp oeq", x, s.number(0.0))
    return f"select {s.flag} {zero}, {s.type} {x}, {s.type} {value}"


def _less_one(s: Lanes, r: str) -> str:
    """Append e**r - 1 for |r| <= ln 2 / 2."""
    square = s.on_floats("fmul", r, r)
    return s.fma(s.estrin(r, EXP[s.dtype].q), square, r)


def log1p(w: Writer, x: str, type_: Type) -> str:
    """Return log(1 + x) as an expression."""
    s = Lanes(w, type_)
    value = _log1p(s, x)
    one = s.number(-1.0)
    edge = s.choose(
        s.on_floats("fcmp oeq", x, one), s.number(-math.inf), s.number(math.nan)
    )
    value = s.choose(s.on_floats("fcmp ole", x, one), edge, value)
    top = s.on_floats("fcmp uge", x, s.number(math.inf))
    value = s.choose(top, x, value)
    return s.signed_as(value, x)


def _log1p(s: Lanes, x: str) -> str:
    """Append log(1 + x) for x > -1, with what 1 + x rounded away."""
    one = s.number(1.0)
    u = s.on_floats("fadd", x, one)
    small = s.on_floats("fsub", x, s.on_floats("fsub", u, one))
    large = s.on_floats("fsub", one, s.on_floats("fsub", u, x))
    away = s.choose(s.on_floats("fcmp olt", x, one), small, large)
    k, f = taken_apart(s, u, s.whole(-BIAS[s.dtype]))
    return log_near_one(s, f, k, s.on_floats("fdiv", away, u))


def softplus(w: Writer, x: str, type_: Type) -> str:
    """Return log(1 + e**x) as an expression: max(x, 0) + log1p(e**-|x|)."""
    s = Lanes(w, type_)
    negative = w.put(f"fneg {s.type} {s.magnitude(x)}")
    rest = _log1p(s, w.put(llvm_math.exp(w, negative, type_)))
    above = s.on_floats("fcmp ogt", x, s.number(0.0))
    return f"fadd {s.type} {s.choose(above, x, s.number(0.0))}, {rest}"


FUNCTIONS = {
    "erf_inv": erf_inv,
    "expm1": expm1,
    "log1p": log1p,
    "tanh": tanh,
    "sigmoid": sigmoid,
    "softplus": softplus,
    "erf": erf,
    "sin": llvm_sines.sin,
    "cos": llvm_sines.cos,
    "sinpi": llvm_sines.sinpi,
    "cospi": llvm_sines.cospi,
}
