"""The logarithm of the gamma function and its slope, the digamma function.

From `FAR` on both are Stirling's series; nearer their recurrences lead to [1, 3) and
[1, 2), where polynomials that interpolate at Chebyshev's points (in 60 digits) have the
functions' zeros as factors. Below 0 they are reflected, and are exact to an ulp of the
larger term: a zero between two poles has few digits, as in most libraries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from steelyard_kernels.dtypes import float32, float64
from steelyard_kernels.ir.functions import exp_log, sines
from steelyard_kernels.ir.functions.floats import Floats, Statements
from steelyard_kernels.ir.loops import Operand

FAR: Final = 8.0
BERNOULLI: Final = (  # B(2) to B(20), of Stirling's series
    *(1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510),
    *(43867 / 798, -174611 / 330),
)


@dataclass(frozen=True, slots=True)
class Gamma:
    """Polynomials near the zeros, highest power first, and where Stirling's series ends."""

    terms: int
    tiny: float  # below, lgamma(-x) is lgamma(x)
    zero: tuple[float, float]  # digamma's, in two numbers
    lgamma: tuple[float, ...]  # of x - 2: lgamma(x) / ((x - 1) (x - 2))
    digamma: tuple[float, ...]  # of x - 3 / 2: digamma(x) / (x - zero)


def lgamma(b: Statements, x: Operand) -> Operand:
    """Return log |gamma(x)|; infinite at 0 and whole numbers below."""
    s = Floats(b, x)
    c, one, two = GAMMA[s.dtype], s.number(1.0), s.number(2.0)
    z = b.let("abs", x)
    far, small = b.let("less", s.number(FAR), z), b.let("less", z, one)
    t: Operand = z
    product: Operand = one
    for _ in range(5):  # gamma(t) = (t - 1) gamma(t - 1)
        above = b.let("less", s.number(3.0), t)
        t = b.let("where", above, b.let("subtract", t, one), t)
        product = b.let("multiply", product, b.let("where", above, t, one))
    ends = b.let("bitwise_or", far, small)
    log = exp_log.log(b, b.let("where", ends, z, product))
    u = b.let("subtract", t, b.let("where", small, one, two))
    v = b.let("where", small, z, b.let("subtract", t, one))
    turned = b.let("where", small, b.let("negative", log), log)
    near = s.fma(b.let("multiply", u, v), s.polynomial(u, c.lgamma), turned)
    inverse = b.let("divide", one, z)
    series = [
        number / (2 * k * (2 * k - 1))
        for k, number in enumerate(BERNOULLI[: c.terms], 1)
    ]
    w = b.let("multiply", inverse, inverse)
    rest = s.fma(
        inverse,
        s.polynomial(w, series[::-1]),
        s.number(math.log(2 * math.pi) / 2 - 0.5),
    )
    half = b.let("subtract", z, s.number(0.5))
    stirling = s.fma(half, b.let("subtract", log, one), rest)
    value = b.let("where", far, stirling, near)
    wave = b.let("abs", sines.sinpi(b, z))
    mirrored = exp_log.log(b, b.let("multiply", z, wave))
    mirrored = b.let("subtract", s.number(math.log(math.pi)), mirrored)
    mirrored = b.let("subtract", mirrored, value)
    infinity = s.number(math.inf)
    mirrored = b.let("where", b.let("equal", z, infinity), infinity, mirrored)
    below = b.let("less", x, s.number(-c.tiny))
    return b.let("where", below, mirrored, value)


def digamma(b: Statements, x: Operand) -> Operand:
    """Return the slope of lgamma; at 0 infinite, NaN at whole numbers below."""
    s = Floats(b, x)
    c, one, zero = GAMMA[s.dtype], s.number(1.0), s.number(0.0)
    below = b.let("less", x, zero)
    z = b.let("where", below, b.let("subtract", one, x), x)
    far, small = b.let("less", s.number(FAR), z), b.let("less", z, one)
    t = b.let("where", small, b.let("add", z, one), z)
    # a sum of 1 / (t - 1), 1 / (t - 2), ... as one fraction; of a small z it is -1 / z
    over = b.let("where", small, s.number(-1.0), zero)
    under = b.let("where", small, z, one)
    for _ in range(7):
        above, left = b.let("less", s.number(2.0), t), b.let("subtract", t, one)
        over = b.let("where", above, s.fma(over, left, under), over)
        under = b.let("where", above, b.let("multiply", under, left), under)
        t = b.let("where", above, left, t)
    ratio = b.let(
        "divide", b.let("where", far, one, over), b.let("where", far, z, under)
    )
    high, low = map(s.number, c.zero)
    off = b.let("subtract", b.let("subtract", t, high), low)
    middle = b.let("subtract", t, s.number(1.5))
    near = s.fma(off, s.polynomial(middle, c.digamma), ratio)
    series = [-number / (2 * k) for k, number in enumerate(BERNOULLI[: c.terms], 1)]
    w = b.let("multiply", ratio, ratio)
    rest = s.fma(ratio, s.polynomial(w, series[::-1]), s.number(-0.5))
    stirling = s.fma(ratio, rest, exp_log.log(b, z))
    value = b.let("where", far, stirling, near)
    wave = sines.sinpi(b, x)
    slope = b.let("multiply", s.number(math.pi), sines.cospi(b, x))
    slope = b.let("divide", slope, wave)
    pole = b.let("equal", wave, zero)
    slope = b.let("where", pole, s.number(math.nan), slope)
    return b.let("where", below, b.let("subtract", value, slope), value)


GAMMA = {
    float32: Gamma(
        terms=4,
        tiny=2.0**-30,
        zero=(1.4616321325302124, 1.2438149938918909e-08),
        lgamma=(
            -9.059813e-06,
            1.9230823e-05,
            -9.279913e-06,
            2.0481895e-05,
            -8.925201e-05,
            0.0001955396,
            -0.0004034612,
            0.00091063994,
            -0.002108514,
            0.0049994495,
            -0.012384168,
            0.03296495,
            -0.1003173,
            0.42278433,
        ),
        digamma=(
            0.010902588,
            -0.01637362,
            0.01711499,
            -0.025786884,
            0.04085003,
            -0.06205598,
            0.09498469,
            -0.14839886,
            0.24054253,
            -0.4236275,
            0.9510559,
        ),
    ),
    float64: Gamma(
        terms=10,
        tiny=2.0**-60,
        zero=(1.4616321449683622, 9.549995429965697e-17),
        lgamma=(
            -2.0542420991550905e-10,
            4.226016675377439e-10,
            6.705737026247826e-10,
            -1.3764318718154119e-09,
            -2.372580625023415e-09,
            4.885761922683655e-09,
            3.613371593815743e-10,
            -6.830399052794191e-10,
            -1.2569945435720683e-08,
            2.615457216445561e-08,
            -4.17254430301382e-08,
            8.75360413423732e-08,
            -1.9252286332850674e-07,
            4.0551922127948146e-07,
            -8.526588188526563e-07,
            1.8074775340912791e-06,
            -3.847396648270243e-06,
            8.222342452139818e-06,
            -1.766166422556033e-05,
            3.8168863787885225e-05,
            -8.30951276372239e-05,
            0.00018255264185594036,
            -0.00040570739742046497,
            0.0009153769220696921,
            -0.002108130833958805,
            0.004998641164703528,
            -0.012384192193371238,
            0.03296500062115574,
            -0.10031730167435392,
            0.42278433509846713,
        ),
        digamma=(
            0.00011881232908510335,
            -0.0001782188548855923,
            9.653646261410062e-05,
            -0.00014480643368061614,
            0.00032395945401345196,
            -0.00048595039220036254,
            0.0006909255761282986,
            -0.0010364584817312839,
            0.0015633696313653504,
            -0.0023454947397380833,
            0.003518106563802472,
            -0.005279937255532708,
            0.007927021796868154,
            -0.011908220105959716,
            0.017907248317313294,
            -0.026975796659787055,
            0.040760833940846085,
            -0.06192213327548831,
            0.09498872445289039,
            -0.14840492305388092,
            0.24054248424078697,
            -0.4236274212814606,
            0.9510558760318328,
        ),
    ),
}
