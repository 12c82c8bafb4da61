"""The error function for float32 and float64.

Below 1 it is x + x * p(x**2), above it 1 - e**q(|x|) with q near log(1 - erf): both are
computed and one is chosen, as vectors have it. p and q have the least error relative to
erf that a polynomial of their degree can have (Lawson's iteration, in 50 digits).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from steelyard_kernels.dtypes import float32, float64
from steelyard_kernels.ir.functions.exp_log import EXP, power_of, reduced
from steelyard_kernels.ir.functions.floats import Floats

if TYPE_CHECKING:
    from steelyard_kernels.ir.functions.floats import Statements
    from steelyard_kernels.ir.loops import Operand


@dataclass(frozen=True, slots=True)
class Erf:
    """Polynomials of erf, highest power first."""

    one: float  # from here on it rounds to 1
    below: tuple[float, ...]  # of x**2: erf(x) / x - 1
    above: tuple[float, ...]  # of |x|: log(1 - erf(|x|))


def erf(b: Statements, x: Operand) -> Operand:
    """Return the error function."""
    s = Floats(b, x)
    c, size, one = ERF[s.dtype], b.let("abs", x), s.number(1.0)
    below = s.fma(s.polynomial(b.let("multiply", x, x), c.below), x, x)
    shifted, r = reduced(s, s.polynomial(s.at_most(size, c.one), c.above))
    near = b.let("negative", s.estrin(r, (*EXP[s.dtype].q, 1.0, 1.0)))
    rest = s.fma(near, s.two_to(power_of(s, shifted)), one)
    return b.let("where", b.let("less", size, one), below, s.signed_as(rest, x))


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
