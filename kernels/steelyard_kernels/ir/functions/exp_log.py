"""exp, log and rsqrt for float32 and float64, as our own polynomials.

Largest errors seen in ulp, float32 on a third of all arguments against float64,
float64 on 30 million a function against longdouble (tests hold them on a sample):

              exp    log    rsqrt
    float32   0.90   0.84   1.50
    float64   0.89   0.87   1.50

Infinities, NaN, denormal arguments and results, overflow and underflow are those
of IEEE 754: exp(-inf) = 0, log(0) = -inf, log(-1) = NaN, rsqrt(0) = inf.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from steelyard_kernels.dtypes import float32, float64
from steelyard_kernels.ir.functions.floats import Floats, Statements
from steelyard_kernels.ir.loops import Operand


@dataclass(frozen=True, slots=True)
class Exp:
    """exp(x) = 2**n * (1 + r * (1 + r * q(r))), with n = round(x / ln 2)."""

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


LEAST = -88.0  # rounds to -127 ln 2
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


def rsqrt(b: Statements, x: Operand) -> Operand:
    """Return 1 / sqrt(x): two operations, each rounded correctly."""
    return b.let("divide", Floats(b, x).number(1.0), b.let("sqrt", x))


def exp(b: Statements, x: Operand, halvings: int = 0) -> Operand:
    """Return e**x / 2**halvings."""
    s = Floats(b, x)
    c = EXP[s.dtype]
    highest = c.highest + halvings
    shifted, r = reduced(s, s.at_most(s.at_least(x, c.lowest), highest))
    near = s.polynomial(r, (*c.q, 1.0, 1.0))
    n = b.let("subtract", shifted, s.number(magic(s) + halvings))
    return b.let("scaled", near, n)


def exp_in_two(s: Floats, x: Operand, more: Operand) -> Operand:
    """Return e**(x + more) within 0.65 ulp, more being below 2**-40 of 1."""
    b, c, one = s.b, EXP[s.dtype], s.number(1.0)
    x = s.at_most(s.at_least(x, c.lowest), c.highest)
    shifted, r = reduced(s, x)
    n = b.let("subtract", shifted, s.number(magic(s)))
    whole = s.fma(n, s.number(-c.ln2_high), x)  # exact
    lost = s.fma(n, s.number(-c.ln2_low), b.let("subtract", whole, r))
    more = b.let("add", more, lost)
    # e**(r + more) = e**r + more e**r, and e**r = 1 + r, in two numbers, + r**2 q(r)
    near = b.let("add", one, r)
    left = b.let("add", b.let("subtract", one, near), r)
    left = s.fma(b.let("multiply", r, r), s.polynomial(r, c.q), left)
    left = s.fma(more, b.let("add", near, left), left)
    return b.let("scaled", b.let("add", near, left), n)


def scaled(b: Statements, x: Operand, n: Operand) -> Operand:
    """Return x * 2**n of a float n that is an integer, -1100 to 1100, or NaN.

    In two steps: 2**n may not be a float. Of the bits of n + magic, halved, only the low
    ones are left by the shift into the exponent's place: with twice an exponent's bias in
    them, its own.
    """
    s = Floats(b, x)
    word = s.as_word(b.let("add", n, s.number(magic(s) + 2 * s.bias)))
    half = b.let("shift_right_logical", word, s.whole(1))
    first = b.let("multiply", x, s.power(half))
    return b.let("multiply", first, s.power(b.let("subtract", word, half)))


def exp_of_lower(b: Statements, x: Operand) -> Operand:
    """Return e**x of float32 values that are not above 0; below 2**-126.5 it is 0.

    2**n is n and a bias in the exponent's place: no bits at all for the least.
    """
    s = Floats(b, x)
    shifted, r = reduced(s, s.at_least(x, LEAST), s.bias)
    near = s.polynomial(r, (*EXP[s.dtype].q, 1.0, 1.0))
    return b.let("multiply", near, s.power(s.as_word(shifted)))


def exp_below(b: Statements, x: Operand, *, summed: bool) -> Operand:
    """Return e**x of float32 values that are not above 0, on a GPU; below 2**-126 it is 0.

    2**t of t = x log2(e) is off by what t's rounding lost, which is put back: the error is
    that of the GPU's 2**t, 2**-22.5 of the result, and 2**-28 |x| for the rounding of ln 2.

    Where n powers are only `summed`, one of them that of 0, nothing is put back: their sum
    is off by at most 2**-22.5 + 2**-24 log(n) of it. Each is off by 2**-24 |x| besides, and
    the mean of |x|, by the powers' shares of the sum, is the shares' entropy less the
    logarithm of the sum: at most log(n).
    """
    s = Floats(b, x)
    if not summed:
        x = b.let("maximum", x, s.number(EXP[s.dtype].lowest))  # infinity has no rest
    t = b.let("multiply", x, s.number(1 / math.log(2)))
    power = b.let("exp2_approx", t)
    if summed:
        return power
    return s.fma(power, s.fma(t, s.number(-math.log(2)), x), power)


def reduced(s: Floats, x: Operand, more: int = 0) -> tuple[Operand, Operand]:
    """Return n = round(x / ln 2) + `magic` + more, and r = x - round(x / ln 2) ln 2.

    x is between the bounds of EXP, or NaN; n is what `power_of` takes.
    """
    c, rounder = EXP[s.dtype], s.number(magic(s) + more)
    shifted = s.fma(x, s.number(1 / math.log(2)), rounder)
    n = s.b.let("subtract", shifted, rounder)
    r = s.fma(n, s.number(-c.ln2_high), x)
    return shifted, s.fma(n, s.number(-c.ln2_low), r)


def power_of(s: Floats, shifted: Operand) -> Operand:
    """Return the n of `reduced` as an integer."""
    return s.b.let("subtract", s.as_word(shifted), s.whole(s.word_of(magic(s))))


def magic(s: Floats) -> float:
    """Return what rounds to an integer, in the low bits, when it is added."""
    return 1.5 * 2.0**s.mantissa


def log(b: Statements, x: Operand) -> Operand:
    """Return the natural logarithm of x."""
    s = Floats(b, x)
    k, f = parts(s, x)
    return at_the_edges(s, x, log_near_one(s, f, k), 0.0)


def parts(s: Floats, x: Operand) -> tuple[Operand, Operand]:
    """Return k and f as `taken_apart` does, of denormal numbers too."""
    b, c = s.b, LOG[s.dtype]
    tiny = b.let("less", x, s.number(2.0 ** (1 - s.bias)))
    scaled = b.let("multiply", x, s.number(2.0**c.rescale))
    offset = b.let("where", tiny, s.whole(-s.bias - c.rescale), s.whole(-s.bias))
    return taken_apart(s, b.let("where", tiny, scaled, x), offset)


def taken_apart(s: Floats, x: Operand, offset: Operand) -> tuple[Operand, Operand]:
    """Return k and f of x = 2**k * (1 + f), 1 + f between the roots of 1/2 and 2.

    x is a normal number above zero, `offset` minus its exponent's bias.
    """
    b, c, one = s.b, LOG[s.dtype], s.bias << s.mantissa
    word = b.let("add", s.as_word(x), s.whole(one - c.root_half))
    k = b.let("add", b.let("shift_right_logical", word, s.whole(s.mantissa)), offset)
    fraction = b.let("bitwise_and", word, s.whole((1 << s.mantissa) - 1))
    near_one = b.let("bitcast", b.let("add", fraction, s.whole(c.root_half)))
    return b.cast(k, s.dtype), b.let("subtract", near_one, s.number(1.0))


def log_near_one(
    s: Floats, f: Operand, k: Operand, low: Operand | None = None
) -> Operand:
    """Return k * ln 2 + log(1 + f) + low, its small parts added first."""
    b, c = s.b, LOG[s.dtype]
    ratio = b.let("divide", f, b.let("add", f, s.number(2.0)))
    z = b.let("multiply", ratio, ratio)
    w = b.let("multiply", z, z)
    odd = b.let("multiply", z, s.polynomial(w, c.odd))
    rest = s.fma(w, s.polynomial(w, c.even), odd)
    square = b.let("multiply", b.let("multiply", f, s.number(0.5)), f)
    small: Operand = b.let("multiply", ratio, b.let("add", square, rest))
    if low is not None:
        small = b.let("add", small, low)
    small = s.fma(k, s.number(c.ln2_low), small)
    tail = b.let("subtract", b.let("subtract", square, small), f)
    return s.fma(k, s.number(c.ln2_high), b.let("negative", tail))


def at_the_edges(s: Floats, x: Operand, value: Operand, pole: float) -> Operand:
    """Return NaN below the pole, -inf at it, and infinity and NaN where x is."""
    b, at = s.b, s.number(pole)
    edge = b.let(
        "where", b.let("equal", x, at), s.number(-math.inf), s.number(math.nan)
    )
    value = b.let("where", b.let("less_equal", x, at), edge, value)
    return b.let("where", b.let("less", x, s.number(math.inf)), value, x)
