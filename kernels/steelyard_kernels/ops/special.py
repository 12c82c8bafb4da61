"""Error functions, those of the gamma function, and the cube root: rows as those of `functions`.

Errors of erfc, lgamma and digamma are the largest of 50,000 arguments, against series in
40 digits; of the last two above 0: below, where they are reflected, the larger term's.
"""

# ruff: noqa: ARG005 - all functions of a row's gradient take the same

from __future__ import annotations

import math
from typing import Any, Final

from steelyard_kernels.ir.functions import erf, gamma, power
from steelyard_kernels.ops import oracles
from steelyard_kernels.ops.functions import of_floats
from steelyard_kernels.ops.row import Cost


def _trigamma(xp: Any, x: Any) -> Any:
    """Return the slope of digamma: Stirling's series, far from 0."""
    low = x < 0.5
    z = xp.where(low, 1.0 - x, x)
    far = z + 10.0
    inverse = 1.0 / far
    w, series = inverse * inverse, 0.0
    for number in gamma.BERNOULLI[::-1]:
        series = (series + number) * w
    value = inverse * (1.0 + series) + 0.5 * w
    for k in range(10):
        value = value + 1.0 / xp.square(z + float(k))
    turned = xp.square(math.pi / xp.sinpi(xp.where(low, x, 0.5)))
    return xp.where(low, turned - value, value)


GAMMA: Final = Cost(120, 50.0, (200.0, 80.0), (700.0, 300.0))

SPECIAL: Final = (
    of_floats(
        "erf",
        "Return the error function.",
        lambda xp, g, y, x: g * (2 / math.sqrt(math.pi) * xp.exp(-(x * x))),
        cost=Cost(30, 18.0, (60.0, 20.0), (280.0, 100.0)),
        decompose=erf.erf,
        oracle=oracles.erf,
        ulps=(1.35, 1.30),
        cuda={"single": "erf_single({a})", "double": "erf({a})"},
    ),
    of_floats(
        "erfc",
        "Return 1 - erf(x), exact where that is small.",
        lambda xp, g, y, x: g * (-2 / math.sqrt(math.pi) * xp.exp(-(x * x))),
        cost=Cost(45, 25.0, (80.0, 28.0), (350.0, 130.0)),
        decompose=erf.erfc,
        oracle=oracles.erfc,
        ulps=(3.3, 3.4),
    ),
    of_floats(  # erf'(y) = 2 / sqrt(pi) * exp(-y^2), and its inverse the inverse slope
        "erf_inv",
        "Return the value whose error function is x; infinite at -1 and 1.",
        lambda xp, g, y, x: g * (math.sqrt(math.pi) / 2 * xp.exp(y * y)),
        cost=Cost(30, 14.0, (120.0, 40.0), (350.0, 150.0)),
        decompose=erf.erf_inv,
        oracle=oracles.erf_inv,
        ulps=(2.85, 3.45),
        cuda="erfinv{f}({a})",
    ),
    of_floats(
        "lgamma",
        "Return log |gamma(x)|.",
        lambda xp, g, y, x: g * xp.digamma(x),
        cost=GAMMA,
        decompose=gamma.lgamma,
        oracle=oracles.lgamma,
        ulps=(2.6, 2.5),
    ),
    of_floats(
        "digamma",
        "Return the slope of lgamma; at 0 infinite, NaN at whole numbers below.",
        lambda xp, g, y, x: g * _trigamma(xp, x),
        cost=GAMMA,
        decompose=gamma.digamma,
        oracle=oracles.digamma,
        ulps=(3.4, 3.7),
        cuda={},
    ),
    of_floats(
        "cbrt",
        "Return the cube root, of the sign of x.",
        lambda xp, g, y, x: g / (3.0 * (y * y)),
        cost=Cost(50, 30.0, (60.0, 20.0), (250.0, 90.0)),
        decompose=power.cbrt,
        cuda={"single": "(float)cbrt((double){a})"},
        ulps=(0.51, 0.51),
    ),
)
