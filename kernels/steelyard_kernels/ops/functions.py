"""Mathematical functions, which `ir.functions` decomposes for every emitter.

Errors (`ulps`) are the largest seen, float32 against float64 and float64 against
longdouble, on 20 million arguments a function and more (erf_inv on a million, its
float64 on 20,000 against erf in 40 digits); tests hold them on a sample. CUDA's own are
its library's (CUDA Programming Guide, "Mathematical Functions").
"""

# ruff: noqa: ARG005 - all functions of a row's gradient take the same

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from steelyard_kernels.ir.functions import erf, erf_inv, exp_log, sigmoid, sines
from steelyard_kernels.ops import oracles
from steelyard_kernels.ops.row import Cost, Gradient, Op, Values

EXP: Final = Cost(20, 12.0, (40.0, 10.0), (140.0, 50.0))
LOG: Final = Cost(24, 12.0, (40.0, 10.0), (140.0, 50.0))
WAVE: Final = Cost(30, 18.0, (60.0, 20.0), (200.0, 70.0))
HALF_WAVE: Final = Cost(30, 12.0, (60.0, 20.0), (200.0, 70.0))
GROWTH: Final = Cost(30, 12.0, (90.0, 30.0), (280.0, 100.0))
LOGISTIC: Final = Cost(30, 14.0, (82.0, 29.0), (196.0, 105.0))


def _function(
    name: str,
    doc: str,
    oracle: Callable[..., Values],
    gradient: Gradient,
    *,
    cost: Cost,
    decompose: Callable[..., Any],
    ulps: tuple[float, float],
    cuda: str | dict[str, str] = "",
    jax: str | None = None,
) -> Op:
    """Return the row of a function of one float, by default called so in CUDA and JAX."""
    text = cuda or f"{name}{{f}}({{a}})"
    return Op(
        name,
        1,
        doc,
        oracle,
        gradient=(gradient,),
        cost=cost,
        cuda=text if isinstance(text, dict) else {"float": text},
        decompose=decompose,
        jax=name if jax is None else jax,
        ulps=ulps,
    )


FUNCTIONS: Final = (
    _function(
        "exp",
        "Return e ** x.",
        np.exp,
        lambda xp, g, y, x: g * y,
        cost=EXP,
        decompose=exp_log.exp,
        ulps=(1.02, 1.01),
    ),
    _function(
        "log",
        "Return the natural logarithm.",
        np.log,
        lambda xp, g, y, x: g / x,
        cost=LOG,
        decompose=exp_log.log,
        ulps=(0.84, 0.87),
    ),
    _function(
        "expm1",
        "Return e ** x - 1, exact where x is small.",
        np.expm1,
        lambda xp, g, y, x: g * (y + 1.0),
        cost=GROWTH,
        decompose=sigmoid.expm1,
        ulps=(1.60, 1.95),
    ),
    _function(
        "log1p",
        "Return log(1 + x), exact where x is small.",
        np.log1p,
        lambda xp, g, y, x: g / (x + 1.0),
        cost=GROWTH,
        decompose=sigmoid.log1p,
        ulps=(0.86, 0.83),
    ),
    # The slopes of tanh and sigmoid are made of their results, as in JAX: what is left
    # of 1 - y near 1 has few digits.
    _function(
        "tanh",
        "Return the hyperbolic tangent.",
        np.tanh,
        lambda xp, g, y, x: g * ((1.0 - y) * (1.0 + y)),
        cost=LOGISTIC,
        decompose=sigmoid.tanh,
        ulps=(2.50, 2.63),
    ),
    _function(
        "sigmoid",
        "Return 1 / (1 + exp(-x)).",
        oracles.sigmoid,
        lambda xp, g, y, x: g * (y * (1.0 - y)),
        cost=LOGISTIC,
        decompose=sigmoid.sigmoid,
        ulps=(2.45, 2.40),
        cuda="sigmoid({a})",
        jax="logistic",
    ),
    _function(
        "softplus",
        "Return log(1 + exp(x)).",
        lambda x: np.logaddexp(0.0, x),
        lambda xp, g, y, x: g * xp.sigmoid(x),
        cost=Cost(30, 14.0, GROWTH.narrow, GROWTH.wide),
        decompose=sigmoid.softplus,
        ulps=(1.60, 1.65),
        cuda="softplus({a})",
        jax="",
    ),
    _function(
        "erf",
        "Return the error function.",
        oracles.erf,
        lambda xp, g, y, x: g * (2 / math.sqrt(math.pi) * xp.exp(-(x * x))),
        cost=Cost(30, 18.0, (60.0, 20.0), (280.0, 100.0)),
        decompose=erf.erf,
        ulps=(1.35, 1.30),
    ),
    _function(  # erf'(y) = 2 / sqrt(pi) * exp(-y^2), and its inverse the inverse slope
        "erf_inv",
        "Return the value whose error function is x; infinite at -1 and 1.",
        oracles.erf_inv,
        lambda xp, g, y, x: g * (math.sqrt(math.pi) / 2 * xp.exp(y * y)),
        cost=Cost(30, 14.0, (120.0, 40.0), (350.0, 150.0)),
        decompose=erf_inv.erf_inv,
        ulps=(2.85, 3.45),
        cuda="erfinv{f}({a})",
    ),
    _function(
        "sin",
        "Return the sine of radians; of any size, reduced exactly.",
        np.sin,
        lambda xp, g, y, x: g * xp.cos(x),
        cost=WAVE,
        decompose=sines.sin,
        ulps=(1.50, 1.50),
    ),
    _function(
        "cos",
        "Return the cosine of radians; of any size, reduced exactly.",
        np.cos,
        lambda xp, g, y, x: g * -xp.sin(x),
        cost=WAVE,
        decompose=sines.cos,
        ulps=(1.50, 1.50),
    ),
    _function(
        "sinpi",
        "Return sin(pi x), exact at multiples of 1 / 2.",
        lambda x: oracles.turned(x, 0),
        lambda xp, g, y, x: g * (math.pi * xp.cospi(x)),
        cost=HALF_WAVE,
        decompose=sines.sinpi,
        ulps=(0.97, 0.85),
        cuda={"single": "sinpif({a})", "double": "sin_half_turns({a}, 0)"},
        jax="",
    ),
    _function(
        "cospi",
        "Return cos(pi x), exact at multiples of 1 / 2.",
        lambda x: oracles.turned(x, 1),
        lambda xp, g, y, x: g * (-math.pi * xp.sinpi(x)),
        cost=HALF_WAVE,
        decompose=sines.cospi,
        ulps=(0.70, 0.80),
        cuda={"single": "cospif({a})", "double": "sin_half_turns({a}, 1)"},
        jax="",
    ),
)
