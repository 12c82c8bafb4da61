"""The error function for float32 and float64.

Below 1 it is x + x * p(x**2), above it 1 - e**q(|x|) with q near log(1 - erf): both are
computed and one is chosen, as vectors have it. p and q have the least error relative to
erf that a polynomial of their degree can have (Lawson's iteration, in 50 digits).

Its inverse: erf_inv(x) = x * p(w) by pieces of w = -log((1 - x) * (1 + x)), as in Giles,
"Approximating the erfinv function" (GPU Computing Gems, 2011): p is a polynomial in w
near zero and in its root beyond. These interpolate at Chebyshev's points, in 60 digits.
"""

from __future__ import annotations

import math

from msgspec import Struct

from steelyard_kernels.dtypes import float32, float64
from steelyard_kernels.ir.functions.exp_log import (
    EXP,
    exp_in_two,
    log,
    power_of,
    reduced,
)
from steelyard_kernels.ir.functions.floats import Number, where


class Erf(Struct, frozen=True):
    """Polynomials of erf, highest power first."""

    one: float  # from here on it rounds to 1
    below: tuple[float, ...]  # of x**2: erf(x) / x - 1
    above: tuple[float, ...]  # of |x|: log(1 - erf(|x|))


def erf(x: Number) -> Number:
    """Return the error function."""
    c, size = ERF[x.dtype], abs(x)
    below = (x * x).polynomial(c.below).fma(x, x)
    shifted, r = reduced(size.at_most(c.one).polynomial(c.above))
    near = -r.estrin((*EXP[x.dtype].q, 1.0, 1.0))
    rest = near.fma(power_of(shifted).two_to(), 1.0)
    return where(size < 1.0, below, rest.signed_as(x))


ERF = {
    float32: Erf(  # errors below 2**-29 and 2**-35
        one=4.0,
        below=(
            7.888122177176845e-05,
            -0.000802053180770791,
            0.005189499060744436,
            -0.02685442478028986,
            0.11283599679081341,
            -0.3761262708897663,
            0.1283791659059675,
        ),
        above=(
            -2.1724844985392614e-05,
            0.0004418097956667295,
            -0.004207036937559806,
            0.02521529637619305,
            -0.10843034516261492,
            -0.6332083266526013,
            -1.1295846165315846,
            0.00018943400114806815,
        ),
    ),
    float64: Erf(  # errors below 2**-62 and 2**-59
        one=6.0,
        below=(
            5.960385683857061e-11,
            -1.1374775948873854e-09,
            1.4660281535658318e-08,
            -1.6350389109507218e-07,
            1.6461007797928967e-06,
            -1.4925595729274047e-05,
            0.00012055331131150134,
            -0.0008548326981375544,
            0.005223977624827554,
            -0.026866170645077785,
            0.11283791670954885,
            -0.3761263890318375,
            0.1283791670955126,
        ),
        above=(
            1.0494797770209686e-12,
            -4.795356488574619e-11,
            1.0255520400006396e-09,
            -1.362473198839022e-08,
            1.256871501451366e-07,
            -8.504578127665485e-07,
            4.3264701001402834e-06,
            -1.651177740806999e-05,
            4.503098385995337e-05,
            -7.035166770512995e-05,
            -4.485036523852681e-05,
            0.0006412140353610523,
            -0.0017690489174130453,
            0.000280532397133347,
            0.019078125519674086,
            -0.10274723714612623,
            -0.636628494199384,
            -1.128377328112181,
            -1.7973717418780278e-07,
        ),
    ),
}


class Erfc(Struct, frozen=True):
    """A polynomial of erfc, highest power first; Shepherd and Laframboise, 1981."""

    beyond: float  # from here on it is 0
    center: float
    p: tuple[float, ...]  # of (x - center) / (x + center): (1 + 2 x) e**x**2 erfc(x)


def erfc(x: Number) -> Number:
    """Return the rest of the error function to 1; of -x it is what is left to 2."""
    c = ERFC[x.dtype]
    size = abs(x).at_most(c.beyond)
    y = (size - c.center) / (size + c.center)
    square = size * size
    lost = size.fma(size, -square)
    power = exp_in_two(-square, -lost)
    value = y.polynomial(c.p) / size.fma(2.0, 1.0) * power
    below = x < 0.0
    value = where(below, 2.0 - value, value)
    near = 1.0 - (x * x).polynomial(ERF[x.dtype].below).fma(x, x)
    return where(size < 0.5, near, value)


ERFC = {
    float32: Erfc(  # error below 2**-29
        beyond=11.0,
        center=2.5,
        p=(
            -6.3412386e-05,
            -5.6331686e-05,
            0.00059478433,
            0.00046291092,
            -0.0043697,
            0.0009421739,
            0.032758888,
            -0.10296861,
            0.15763007,
            -0.09902445,
            -0.122356765,
            1.2648382,
        ),
    ),
    float64: Erfc(  # error below 2**-58
        beyond=28.0,
        center=4.0,
        p=(
            1.263782858042137e-09,
            1.868487385473519e-09,
            -1.4091982822555755e-08,
            -1.799947545903142e-08,
            1.1005996198640057e-07,
            7.471952780500971e-08,
            -8.254699744871162e-07,
            2.9377854943443786e-07,
            5.709784760966506e-06,
            -1.1222046316669005e-05,
            -2.439924428312988e-05,
            0.00015062169704678355,
            -0.00019925668432389153,
            -0.0007577732973669146,
            0.005031969975753176,
            -0.01619773405599449,
            0.03716751553777026,
            -0.0663303658124095,
            0.09373283499833023,
            -0.10103906603629459,
            0.06809705425469323,
            0.015379652102619558,
            -0.13962111684056253,
            1.2329951186255526,
        ),
    ),
}


class Piece(Struct, frozen=True):
    """A polynomial for w up to a bound, in w (the first piece) or its root."""

    below: float
    center: float  # what is subtracted first
    coefficients: tuple[float, ...]  # highest power first


def erf_inv(x: Number) -> Number:
    """Return the inverse of the error function."""
    pieces = PIECES[x.dtype]
    size = -log((1.0 - x) * (1.0 + x))
    root = size.let("sqrt")
    inside = [size < piece.below for piece in pieces[:-1]]

    def chosen(values: list[Number]) -> Number:
        """Return each lane's piece's value."""
        value = values[-1]
        for flag, other in zip(reversed(inside), reversed(values[:-1]), strict=True):
            value = where(flag, other, value)
        return value

    z = chosen(
        [(root if at else size) - piece.center for at, piece in enumerate(pieces)]
    )
    columns = zip(*[piece.coefficients for piece in pieces], strict=True)
    value, *rest = [chosen([*map(x.number, column)]) for column in columns]
    for coefficient in rest:
        value = value.fma(z, coefficient)
    return where(size == math.inf, math.inf, value) * x


PIECES = {
    float32: (
        Piece(
            below=5.0,
            center=2.5,
            coefficients=(
                -8.931926e-09,
                2.3335968e-08,
                4.6813136e-07,
                -3.4639852e-06,
                -4.97242e-06,
                0.00021834939,
                -0.0012527264,
                -0.004177393,
                0.24664028,
                1.5014094,
            ),
        ),
        Piece(
            below=math.inf,
            center=3.1680339887498947,
            coefficients=(
                0.00011153858,
                -0.0001368446,
                -0.00034779139,
                0.0012232593,
                -0.0022089477,
                0.0032670023,
                -0.004692372,
                0.0064057778,
                1.004297,
                3.0015268,
            ),
        ),
    ),
    float64: (
        Piece(
            below=5.0,
            center=2.5,
            coefficients=(
                -6.890747263782666e-20,
                1.700908089393591e-19,
                4.909393921888345e-18,
                -2.6828646429085144e-17,
                -1.3661917890666732e-16,
                1.896729354143592e-15,
                -2.8811110175240593e-15,
                -7.612669130138496e-14,
                5.356343166393055e-13,
                9.115660381671943e-13,
                -3.110278672226475e-11,
                1.1960698817209524e-10,
                9.073036495405582e-10,
                -1.0861168938287872e-08,
                1.3416803755242823e-08,
                4.787252185239e-07,
                -3.416619596565087e-06,
                -4.996079598850206e-06,
                0.00021825026434406123,
                -0.0012527079078110321,
                -0.004177317724383624,
                0.246640276744167,
                1.501409351110792,
            ),
        ),
        Piece(
            below=3.6**2,
            center=2.9180339887498947,
            coefficients=(
                -6.713099607036066e-10,
                1.7458714212422313e-08,
                -3.665551147951946e-08,
                -3.768455200586217e-08,
                2.6342752802279615e-07,
                -3.986545369111512e-07,
                -3.326953463929478e-07,
                2.686949245487297e-06,
                -4.573840552777315e-06,
                -2.456142615455156e-06,
                2.6710542545395085e-05,
                -4.7100508061534805e-05,
                -1.527291006360146e-05,
                0.00023231268424073138,
                -0.0004461842943556681,
                8.912374507585745e-05,
                0.0015060076538589006,
                -0.0042995582331917075,
                0.007295085615850875,
                -0.009763380026538855,
                0.011574902886211963,
                0.9999594308281495,
                2.750941410324337,
            ),
        ),
        Piece(
            below=math.inf,
            center=4.85,
            coefficients=(
                3.4031309577785403e-13,
                -1.2093754697317281e-12,
                -8.19034592593438e-13,
                1.2569279675005207e-11,
                -3.915386226386476e-11,
                7.805791845909306e-11,
                -4.8730814570159396e-11,
                -4.184615274341066e-10,
                2.2776068821432685e-09,
                -7.3075145016646546e-09,
                1.8054002159142907e-08,
                -3.738903927568662e-08,
                6.99024535799336e-08,
                -1.372388500266319e-07,
                3.6048545816724095e-07,
                -1.3374645313757054e-06,
                5.735901824940847e-06,
                -2.4272671556129988e-05,
                9.241029306424352e-05,
                -0.0002653798342574345,
                -3.0996111293325344e-05,
                1.010326488226575,
                4.6983589762414,
            ),
        ),
    ),
}
