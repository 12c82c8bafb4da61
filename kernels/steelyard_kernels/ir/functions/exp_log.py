"""exp and log for float32 and float64, as our own polynomials.

Largest errors seen in ulp, float32 on a third of all arguments against float64,
float64 on 30 million a function against longdouble (tests hold them on a sample):

              exp    log
    float32   0.90   0.84
    float64   0.89   0.87

Infinities, NaN, denormal arguments and results, overflow and underflow are those
of IEEE 754: exp(-inf) = 0, log(0) = -inf, log(-1) = NaN.
"""

from __future__ import annotations

import math

from msgspec import Struct

from steelyard_kernels.dtypes import float32, float64
from steelyard_kernels.ir.functions.floats import Number, where


class Exp(Struct, frozen=True):
    """exp(x) = 2**n * (1 + r * (1 + r * q(r))), with n = round(x / ln 2)."""

    lowest: float  # rounds to 0 from here down
    highest: float  # overflows from here up
    ln2_high: float
    ln2_low: float
    q: tuple[float, ...]  # highest power first


class Log(Struct, frozen=True):
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


def exp(x: Number, halvings: int = 0) -> Number:
    """Return e**x / 2**halvings."""
    c = EXP[x.dtype]
    shifted, r = reduced(x.at_least(c.lowest).at_most(c.highest + halvings))
    near = r.polynomial((*c.q, 1.0, 1.0))
    return near.let("scaled", shifted - (x.magic + halvings))


def exp_in_two(x: Number, more: Number) -> Number:
    """Return e**(x + more) within 0.65 ulp, more being below 2**-40 of 1."""
    c = EXP[x.dtype]
    x = x.at_least(c.lowest).at_most(c.highest)
    shifted, r = reduced(x)
    n = shifted - x.magic
    whole = n.fma(-c.ln2_high, x)  # exact
    more = more + n.fma(-c.ln2_low, whole - r)
    # e**(r + more) = e**r + more e**r, and e**r = 1 + r, in two numbers, + r**2 q(r)
    near = 1.0 + r
    left = 1.0 - near + r
    left = (r * r).fma(r.polynomial(c.q), left)
    left = more.fma(near + left, left)
    return (near + left).let("scaled", n)


def scaled(x: Number, n: Number) -> Number:
    """Return x * 2**n of a float n that is an integer, -1100 to 1100, or NaN.

    In two steps: 2**n may not be a float. Of the bits of n + magic, halved, only the low
    ones are left by the shift into the exponent's place: with twice an exponent's bias in
    them, its own.
    """
    word = (n + (x.magic + 2 * x.bias)).bits
    half = word >> 1
    return x * half.power * (word - half).power


def exp_of_lower(x: Number) -> Number:
    """Return e**x of float32 values that are not above 0; below 2**-126.5 it is 0.

    2**n is n and a bias in the exponent's place: no bits at all for the least.
    """
    shifted, r = reduced(x.at_least(LEAST), x.bias)
    return r.polynomial((*EXP[x.dtype].q, 1.0, 1.0)) * shifted.bits.power


def exp_below(x: Number, *, summed: bool) -> Number:
    """Return e**x of float32 values that are not above 0, on a GPU; below 2**-126 it is 0.

    2**t of t = x log2(e) is off by what t's rounding lost, which is put back: the error is
    that of the GPU's 2**t, 2**-22.5 of the result, and 2**-28 |x| for the rounding of ln 2.

    Where n powers are only `summed`, one of them that of 0, nothing is put back: their sum
    is off by at most 2**-22.5 + 2**-24 log(n) of it. Each is off by 2**-24 |x| besides, and
    the mean of |x|, by the powers' shares of the sum, is the shares' entropy less the
    logarithm of the sum: at most log(n).
    """
    if not summed:
        x = x.let("maximum", EXP[x.dtype].lowest)  # infinity has no rest
    t = x * (1 / math.log(2))
    power = t.let("exp2_approx")
    return power if summed else power.fma(t.fma(-math.log(2), x), power)


def reduced(x: Number, more: int = 0) -> tuple[Number, Number]:
    """Return n = round(x / ln 2) + `magic` + more, and r = x - round(x / ln 2) ln 2.

    x is between the bounds of EXP, or NaN; n is what `power_of` takes.
    """
    c, rounder = EXP[x.dtype], x.magic + more
    shifted = x.fma(1 / math.log(2), rounder)
    n = shifted - rounder
    return shifted, n.fma(-c.ln2_low, n.fma(-c.ln2_high, x))


def power_of(shifted: Number) -> Number:
    """Return the n of `reduced` as an integer."""
    return shifted.bits - shifted.word_of(shifted.magic)


def log(x: Number) -> Number:
    """Return the natural logarithm of x."""
    k, f = parts(x)
    return at_the_edges(x, log_near_one(f, k), 0.0)


def parts(x: Number) -> tuple[Number, Number]:
    """Return k and f as `taken_apart` does, of denormal numbers too."""
    c = LOG[x.dtype]
    tiny = x < 2.0 ** (1 - x.bias)
    scaled = x * 2.0**c.rescale
    offset = where(tiny, x.whole(-x.bias - c.rescale), -x.bias)
    return taken_apart(where(tiny, scaled, x), offset)


def taken_apart(x: Number, offset: Number | int) -> tuple[Number, Number]:
    """Return k and f of x = 2**k * (1 + f), 1 + f between the roots of 1/2 and 2.

    x is a normal number above zero, `offset` minus its exponent's bias.
    """
    c, one = LOG[x.dtype], x.bias << x.mantissa
    word = x.bits + (one - c.root_half)
    k = (word >> x.mantissa) + offset
    near_one = ((word & (1 << x.mantissa) - 1) + c.root_half).bits
    return k.cast(x.dtype), near_one - 1.0


def log_near_one(f: Number, k: Number, low: Number | None = None) -> Number:
    """Return k * ln 2 + log(1 + f) + low, its small parts added first."""
    c = LOG[f.dtype]
    ratio = f / (f + 2.0)
    z = ratio * ratio
    w = z * z
    odd = z * w.polynomial(c.odd)
    rest = w.fma(w.polynomial(c.even), odd)
    square = f * 0.5 * f
    small = ratio * (square + rest)
    if low is not None:
        small = small + low
    small = k.fma(c.ln2_low, small)
    return k.fma(c.ln2_high, -(square - small - f))


def at_the_edges(x: Number, value: Number, pole: float) -> Number:
    """Return NaN below the pole, -inf at it, and infinity and NaN where x is."""
    edge = where(x == pole, x.number(-math.inf), math.nan)
    value = where(x <= pole, edge, value)
    return where(x < math.inf, value, x)
