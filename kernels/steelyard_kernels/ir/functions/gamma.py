"""The logarithm of the gamma function and its slope, the digamma function.

From `FAR` on both are Stirling's series; nearer their recurrences lead to [1, 3) and
[1, 2), where polynomials that interpolate at Chebyshev's points (in 60 digits) have the
functions' zeros as factors. Below 0 they are reflected, and are exact to an ulp of the
larger term: a zero between two poles has few digits, as in most libraries.
"""

from __future__ import annotations

import math
from typing import Final

from msgspec import Struct

from steelyard_kernels.dtypes import float32, float64
from steelyard_kernels.ir.functions.exp_log import log
from steelyard_kernels.ir.functions.floats import Number, where
from steelyard_kernels.ir.functions.sines import cospi, sinpi

FAR: Final = 8.0
BERNOULLI: Final = (  # B(2) to B(20), of Stirling's series
    *(1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510),
    *(43867 / 798, -174611 / 330),
)


class Gamma(Struct, frozen=True):
    """Polynomials near the zeros, highest power first, and where Stirling's series ends."""

    terms: int
    tiny: float  # below, lgamma(-x) is lgamma(x)
    zero: tuple[float, float]  # digamma's, in two numbers
    lgamma: tuple[float, ...]  # of x - 2: lgamma(x) / ((x - 1) (x - 2))
    digamma: tuple[float, ...]  # of x - 3 / 2: digamma(x) / (x - zero)


def lgamma(x: Number) -> Number:
    """Return log |gamma(x)|; infinite at 0 and whole numbers below."""
    c, one = GAMMA[x.dtype], x.number(1.0)
    z = abs(x)
    far, small = x.number(FAR) < z, z < 1.0
    t, product = z, one
    for _ in range(5):  # gamma(t) = (t - 1) gamma(t - 1)
        above = x.number(3.0) < t
        t = where(above, t - 1.0, t)
        product = product * where(above, t, 1.0)
    ends = far | small
    size = log(where(ends, z, product))
    u = t - where(small, one, 2.0)
    v = where(small, z, t - 1.0)
    turned = where(small, -size, size)
    near = (u * v).fma(u.polynomial(c.lgamma), turned)
    inverse = 1.0 / z
    series = [
        number / (2 * k * (2 * k - 1))
        for k, number in enumerate(BERNOULLI[: c.terms], 1)
    ]
    w = inverse * inverse
    rest = inverse.fma(w.polynomial(series[::-1]), math.log(2 * math.pi) / 2 - 0.5)
    stirling = (z - 0.5).fma(size - 1.0, rest)
    value = where(far, stirling, near)
    wave = abs(sinpi(z))
    mirrored = math.log(math.pi) - log(z * wave) - value
    mirrored = where(z == math.inf, math.inf, mirrored)
    return where(x < -c.tiny, mirrored, value)


def digamma(x: Number) -> Number:
    """Return the slope of lgamma; at 0 infinite, NaN at whole numbers below."""
    c = GAMMA[x.dtype]
    below = x < 0.0
    z = where(below, 1.0 - x, x)
    far, small = x.number(FAR) < z, z < 1.0
    t = where(small, z + 1.0, z)
    # a sum of 1 / (t - 1), 1 / (t - 2), ... as one fraction; of a small z it is -1 / z
    over = where(small, x.number(-1.0), 0.0)
    under = where(small, z, 1.0)
    for _ in range(7):
        above, left = x.number(2.0) < t, t - 1.0
        over = where(above, over.fma(left, under), over)
        under = where(above, under * left, under)
        t = where(above, left, t)
    ratio = where(far, 1.0, over) / where(far, z, under)
    high, low = c.zero
    off = t - high - low
    near = off.fma((t - 1.5).polynomial(c.digamma), ratio)
    series = [-number / (2 * k) for k, number in enumerate(BERNOULLI[: c.terms], 1)]
    w = ratio * ratio
    rest = ratio.fma(w.polynomial(series[::-1]), -0.5)
    stirling = ratio.fma(rest, log(z))
    value = where(far, stirling, near)
    wave = sinpi(x)
    slope = math.pi * cospi(x) / wave
    slope = where(wave == 0.0, math.nan, slope)
    return where(below, value - slope, value)


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
