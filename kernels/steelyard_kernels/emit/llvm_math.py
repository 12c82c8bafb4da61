"""exp, log and rsqrt for float32 and float64, as our own polynomials.

Largest errors seen in ulp, float32 on a third of all arguments against float64,
float64 on 30 million a function against longdouble (tests hold them on a sample):

              exp    log    rsqrt
    float32   1.02   0.84   1.50
    float64   1.01   0.87   1.50

Infinities, NaN, denormal arguments and results, overflow and underflow are those
of IEEE 754: exp(-inf) = 0, log(0) = -inf, log(-1) = NaN, rsqrt(0) = inf.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from steelyard_kernels.dtypes import float32, float64
from steelyard_kernels.emit.llvm_text import (
    ELEMENT,
    everywhere,
    mangle,
    register,
    scalar,
    spell,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard_kernels.dtypes import DType
    from steelyard_kernels.emit.llvm_text import Writer
    from steelyard_kernels.ir.loops import Type


@dataclass(frozen=True, slots=True)
class Exp:
    """exp(x) = 2**n * (1 + r + r**2 * q(r)), with n = round(x / ln 2)."""

    lowest: float  # rounds to 0 from here down
    highest: float  # overflows from here up
    ln2_high: float
    ln2_low: float
    q: tuple[float, ...]  # highest power first


@dataclass(frozen=True, slots=True)
class Log:
    """log(2**k * (1 + f)) by s = f / (2 + f), as in FreeBSD's e_log.c."""

    ln2_high: float
    ln2_low: float
    root_half: int  # bits of sqrt(1/2)
    rescale: int  # a power of two that makes denormals normal
    even: tuple[float, ...]  # of w = s**4, highest power first
    odd: tuple[float, ...]


EXP = {
    float32: Exp(  # q: Moshier's Cephes, expf.c; ln 2 as in FreeBSD's e_expf.c
        lowest=-104.0,
        highest=89.0,
        ln2_high=float.fromhex("0x1.62e4p-1"),
        ln2_low=float.fromhex("0x1.7f7d1cp-20"),
        q=(
            1.9875691500e-4,
            1.3981999507e-3,
            8.3334519073e-3,
            4.1665795894e-2,
            1.6666665459e-1,
            5.0000001201e-1,
        ),
    ),
    float64: Exp(  # q: Taylor's, 1 / k! for k = 13 ... 2: next term < 2**-57
        lowest=-746.0,
        highest=710.0,
        ln2_high=6.93147180369123816490e-01,
        ln2_low=1.90821492927058770002e-10,
        q=tuple(1 / math.factorial(k) for k in range(13, 1, -1)),
    ),
}
LOG = {
    float32: Log(  # FreeBSD's e_logf.c
        ln2_high=float.fromhex("0x1.62e3p-1"),
        ln2_low=float.fromhex("0x1.2fefa2p-17"),
        root_half=0x3F3504F3,
        rescale=25,
        even=(float.fromhex("0xf89e26p-26"), float.fromhex("0xccce13p-25")),
        odd=(float.fromhex("0x91e9eep-25"), float.fromhex("0xaaaaaap-24")),
    ),
    float64: Log(  # FreeBSD's e_log.c
        ln2_high=6.93147180369123816490e-01,
        ln2_low=1.90821492927058770002e-10,
        root_half=0x3FE6A09E00000000,
        rescale=54,
        even=(
            1.531383769920937332e-01,
            2.222219843214978396e-01,
            3.999999999940941908e-01,
        ),
        odd=(
            1.479819860511658591e-01,
            1.818357216161805012e-01,
            2.857142874366239149e-01,
            6.666666666666735130e-01,
        ),
    ),
}
MANTISSA = {float32: 23, float64: 52}  # stored bits
BIAS = {float32: 127, float64: 1023}


class Lanes:
    """Arithmetic on one float type, a line a call: what the polynomials are in."""

    __slots__ = ("bits", "dtype", "flag", "lanes", "mantissa", "type", "word", "writer")

    def __init__(self, writer: Writer, type_: Type) -> None:
        self.writer = writer
        self.dtype: DType = type_.dtype
        self.lanes = type_.lanes
        self.type = register(type_)
        self.word = "i32" if type_.dtype is float32 else "i64"
        self.bits = spell(self.word, type_.lanes)
        self.flag = spell("i1", type_.lanes)
        self.mantissa = MANTISSA[type_.dtype]

    def number(self, value: float) -> str:
        """Spell a float for every lane."""
        spelled = scalar(value, self.dtype)
        return everywhere(spelled, ELEMENT[self.dtype], self.lanes)

    def whole(self, value: int) -> str:
        """Spell an integer of the float's width for every lane."""
        return everywhere(str(value), self.word, self.lanes)

    def on_floats(self, op: str, a: str, b: str) -> str:
        """Append a float operation of two arguments."""
        return self.writer.put(f"{op} {self.type} {a}, {b}")

    def on_bits(self, op: str, a: str, b: str) -> str:
        """Append an integer operation of two arguments."""
        return self.writer.put(f"{op} {self.bits} {a}, {b}")

    def fma(self, a: str, b: str, c: str) -> str:
        """Append a * b + c, rounded once."""
        return self.writer.put(fma(self.writer, self.type, self.lanes, (a, b, c)))

    def choose(self, condition: str, a: str, b: str, *, bits: bool = False) -> str:
        """Append `a` where the condition holds, else `b`."""
        type_ = self.bits if bits else self.type
        return self.writer.put(
            f"select {self.flag} {condition}, {type_} {a}, {type_} {b}"
        )

    def as_bits(self, value: str) -> str:
        """Append the reinterpretation of a float as an integer."""
        return self.writer.put(f"bitcast {self.type} {value} to {self.bits}")

    def as_float(self, value: str) -> str:
        """Append the reinterpretation of an integer as a float."""
        return self.writer.put(f"bitcast {self.bits} {value} to {self.type}")

    def polynomial(self, x: str, coefficients: Sequence[float]) -> str:
        """Append Horner's scheme, highest power first."""
        value = self.number(coefficients[0])
        for coefficient in coefficients[1:]:
            value = self.fma(value, x, self.number(coefficient))
        return value

    def estrin(self, x: str, coefficients: Sequence[float]) -> str:
        """Append Estrin's scheme, highest power first: fewer steps one after another.

        Of n coefficients log2(n) fused operations wait for each other, not n - 1.
        """
        values = [self.number(c) for c in reversed(coefficients)]
        while len(values) > 1:
            pairs = zip(values[::2], values[1::2], strict=False)
            odd = values[-1:] if len(values) % 2 else []
            values = [*[self.fma(high, x, low) for low, high in pairs], *odd]
            if len(values) > 1:
                x = self.on_floats("fmul", x, x)
        return values[0]

    def magnitude(self, x: str) -> str:
        """Append |x|."""
        name = f"llvm.fabs.{mangle(ELEMENT[self.dtype], self.lanes)}"
        return self.writer.put(self.writer.call(self.type, name, (self.type, x)))

    def at_least(self, x: str, bound: float) -> str:
        """Append x, or the bound where x is below; NaN goes through."""
        low = self.number(bound)
        return self.choose(self.on_floats("fcmp olt", x, low), low, x)

    def at_most(self, x: str, bound: float) -> str:
        """Append x, or the bound where x is above; NaN goes through."""
        high = self.number(bound)
        return self.choose(self.on_floats("fcmp ogt", x, high), high, x)

    def signed_as(self, x: str, sign: str) -> str:
        """Return x with the sign of another value, as an expression."""
        name = f"llvm.copysign.{mangle(ELEMENT[self.dtype], self.lanes)}"
        return self.writer.call(self.type, name, (self.type, x), (self.type, sign))


def fma(w: Writer, type_: str, lanes: int, args: tuple[str, str, str]) -> str:
    """Return a * b + c, rounded once, as an expression."""
    w.needs("fma", "a fused multiply-add")
    element = "double" if "double" in type_ else "float"
    typed_args = [(type_, arg) for arg in args]
    return w.call(type_, f"llvm.fma.{mangle(element, lanes)}", *typed_args)


def rsqrt(w: Writer, x: str, type_: Type) -> str:
    """Return 1 / sqrt(x): two operations, each rounded correctly.

    A GPU has an instruction for float32, within 2 ulp (PTX ISA, `rsqrt.approx`), which
    is what the CUDA library's rsqrtf is.
    """
    s = Lanes(w, type_)
    if w.host.architecture == "nvptx64":
        return _each_lane(s, "llvm.nvvm.rsqrt.approx.f", x)
    name = f"llvm.sqrt.{mangle(ELEMENT[s.dtype], s.lanes)}"
    root = w.put(w.call(s.type, name, (s.type, x)))
    return f"fdiv {s.type} {s.number(1.0)}, {root}"


def _each_lane(s: Lanes, name: str, x: str) -> str:
    """Return a function of one float32 of every lane, as an expression."""
    w, value = s.writer, "poison"
    if s.lanes == 1:
        return w.call("float", name, ("float", x))
    for lane in range(s.lanes):
        one = w.put(f"extractelement {s.type} {x}, i64 {lane}")
        one = w.put(w.call("float", name, ("float", one)))
        last = f"insertelement {s.type} {value}, float {one}, i64 {lane}"
        value = w.put(last) if lane + 1 < s.lanes else last
    return value


def exp(w: Writer, x: str, type_: Type) -> str:
    """Return e**x as an expression."""
    s, c = Lanes(w, type_), EXP[type_.dtype]
    shifted, r = reduced(s, s.at_most(s.at_least(x, c.lowest), c.highest))
    q = s.polynomial(r, c.q)
    near = s.on_floats("fadd", s.fma(q, s.on_floats("fmul", r, r), r), s.number(1.0))
    power = power_of(s, shifted)
    half = s.on_bits("ashr", power, s.whole(1))  # in two steps: 2**n may not be a float
    first = s.on_floats("fmul", near, two_to(s, half))
    rest = two_to(s, s.on_bits("sub", power, half))
    return f"fmul {s.type} {first}, {rest}"


def reduced(s: Lanes, x: str) -> tuple[str, str]:
    """Append n = round(x / ln 2) and r = x - n ln 2; n is yet to be told from its bits.

    It is what `power_of` takes. x is between the bounds of EXP, or NaN.
    """
    c, rounder = EXP[s.dtype], s.number(magic(s))
    shifted = s.fma(x, s.number(1 / math.log(2)), rounder)
    n = s.on_floats("fsub", shifted, rounder)
    r = s.fma(n, s.number(-c.ln2_high), x)
    return shifted, s.fma(n, s.number(-c.ln2_low), r)


def power_of(s: Lanes, shifted: str) -> str:
    """Append the n of `reduced` as an integer."""
    return s.on_bits("sub", s.as_bits(shifted), s.whole(_bits(magic(s), s.dtype)))


def magic(s: Lanes) -> float:
    """Return what rounds to an integer, in the low bits, when it is added."""
    return 1.5 * 2.0**s.mantissa


def log(w: Writer, x: str, type_: Type) -> str:
    """Return the natural logarithm of x as an expression."""
    s, c = Lanes(w, type_), LOG[type_.dtype]
    bias = BIAS[s.dtype]
    tiny = s.on_floats("fcmp olt", x, s.number(2.0 ** (1 - bias)))
    scaled = s.on_floats("fmul", x, s.number(2.0**c.rescale))
    offset = s.choose(tiny, s.whole(-bias - c.rescale), s.whole(-bias), bits=True)
    k, f = taken_apart(s, s.choose(tiny, scaled, x), offset)
    return _log_at_the_edges(s, x, log_near_one(s, f, k, ""))


def taken_apart(s: Lanes, x: str, offset: str) -> tuple[str, str]:
    """Append k and f of x = 2**k * (1 + f), 1 + f between the roots of 1/2 and 2.

    x is a normal number above zero, `offset` minus its exponent's bias.
    """
    c, one = LOG[s.dtype], BIAS[s.dtype] << s.mantissa
    word = s.on_bits("add", s.as_bits(x), s.whole(one - c.root_half))
    k = s.on_bits("add", s.on_bits("ashr", word, s.whole(s.mantissa)), offset)
    fraction = s.on_bits("and", word, s.whole((1 << s.mantissa) - 1))
    near_one = s.as_float(s.on_bits("add", fraction, s.whole(c.root_half)))
    f = s.on_floats("fsub", near_one, s.number(1.0))
    return s.writer.put(f"sitofp {s.bits} {k} to {s.type}"), f


def log_near_one(s: Lanes, f: str, k: str, low: str) -> str:
    """Append k * ln 2 + log(1 + f) + low, its small parts added first."""
    c = LOG[s.dtype]
    ratio = s.on_floats("fdiv", f, s.on_floats("fadd", f, s.number(2.0)))
    z = s.on_floats("fmul", ratio, ratio)
    w = s.on_floats("fmul", z, z)
    odd = s.on_floats("fmul", z, s.polynomial(w, c.odd))
    rest = s.fma(w, s.polynomial(w, c.even), odd)
    square = s.on_floats("fmul", s.on_floats("fmul", f, s.number(0.5)), f)
    small = s.on_floats("fmul", ratio, s.on_floats("fadd", square, rest))
    if low:
        small = s.on_floats("fadd", small, low)
    small = s.fma(k, s.number(c.ln2_low), small)
    tail = s.on_floats("fsub", s.on_floats("fsub", square, small), f)
    negated = s.writer.put(f"fneg {s.type} {tail}")
    return s.fma(k, s.number(c.ln2_high), negated)


def _log_at_the_edges(s: Lanes, x: str, value: str) -> str:
    """Put NaN below zero, -inf at zero, and infinity and NaN where x is."""
    zero = s.number(0.0)
    edge = s.choose(
        s.on_floats("fcmp oeq", x, zero), s.number(-math.inf), s.number(math.nan)
    )
    value = s.choose(s.on_floats("fcmp ole", x, zero), edge, value)
    top = s.on_floats("fcmp uge", x, s.number(math.inf))
    return f"select {s.flag} {top}, {s.type} {x}, {s.type} {value}"


def two_to(s: Lanes, exponent: str) -> str:
    """Append 2**exponent, for exponents of normal numbers."""
    biased = s.on_bits("add", exponent, s.whole(BIAS[s.dtype]))
    return s.as_float(s.on_bits("shl", biased, s.whole(s.mantissa)))


def _bits(value: float, dtype: DType) -> int:
    codes = ("<I", "<f") if dtype is float32 else ("<Q", "<d")
    (bits,) = struct.unpack(codes[0], struct.pack(codes[1], value))
    return int(bits)
