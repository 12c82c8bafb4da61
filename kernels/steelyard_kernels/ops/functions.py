"""Mathematical functions, which `ir.functions` decomposes for every emitter.

Errors (`ulps`) are the largest seen, float32 against float64 and float64 against
longdouble, on 20 million arguments a function and more (erf_inv on a million, its
float64 on 20,000 against erf in 40 digits); tests hold them on a sample (of
logaddexp where an operand is 0.5 or more). CUDA's own are
its library's (CUDA Programming Guide, "Mathematical Functions").
"""

# ruff: noqa: ARG005 - all functions of a row's gradient take the same

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from steelyard_kernels.ir.functions import exp_log, hyperbolic, power, sines
from steelyard_kernels.ops import oracles
from steelyard_kernels.ops.row import FLOAT, NUMBER, Cost, Gradient, Op, Values

EXP: Final = Cost(20, 12.0, (40.0, 10.0), (140.0, 50.0))
LOG: Final = Cost(24, 12.0, (40.0, 10.0), (140.0, 50.0))
WAVE: Final = Cost(30, 18.0, (60.0, 20.0), (200.0, 70.0))
HALF_WAVE: Final = Cost(30, 12.0, (60.0, 20.0), (200.0, 70.0))
GROWTH: Final = Cost(30, 12.0, (90.0, 30.0), (280.0, 100.0))
LOGISTIC: Final = Cost(30, 14.0, (82.0, 29.0), (196.0, 105.0))


def of_floats(
    name: str,
    doc: str,
    *gradient: Gradient,
    cost: Cost,
    decompose: Callable[..., Any],
    ulps: tuple[float, float],
    oracle: Callable[..., Values] | None = None,
    cuda: str | dict[str, str] = "",
    kinds: frozenset[str] = FLOAT,
    jax: str | None = None,
) -> Op:
    """Return the row of a function of one float or two, by default called so elsewhere."""
    given = ", ".join(("{a}", "{b}")[: len(gradient)])
    text = cuda if cuda != "" else f"{name}{{f}}({given})"
    return Op(
        name,
        len(gradient),
        doc,
        getattr(np, name) if oracle is None else oracle,
        kinds,
        gradient=gradient,
        cost=cost,
        cuda=text if isinstance(text, dict) else {"float": text},
        decompose=decompose,
        jax=name if jax is None else jax,
        ulps=ulps,
    )


def _of_base(xp: Any, g: Any, a: Any, b: Any) -> Any:
    """Return the cotangent of a base: nothing of 0 ** 0, nor of NaN ** 0.

    Of others a zeroth power has a slope by its exponent.
    """
    flat = xp.logical_and(b == 0, xp.logical_not(a * a > 0))
    one = xp.full((), 1.0, dtype=a.dtype)
    return g * xp.where(flat, 0.0, b * xp.pow(xp.where(flat, one, a), b - 1.0))


def _of_power(xp: Any, g: Any, y: Any, a: Any, b: Any) -> Any:
    """Return the cotangent of an exponent: NaN of negative bases, nothing of 0 ** 0 up."""
    flat = xp.logical_and(a == 0, b >= 0)
    return g * xp.where(flat, 0.0, y * xp.log(a))


def _of_length(xp: Any, g: Any, y: Any, a: Any) -> Any:
    """Return the cotangent of a side of a triangle: nothing of a point."""
    return g * (a / xp.where(y == 0, xp.full((), 1.0, dtype=y.dtype), y))


def _of_term(xp: Any, g: Any, a: Any, b: Any) -> Any:
    """Return the cotangent of a term: a half of equal infinities."""
    return g * xp.sigmoid(xp.where(xp.logical_and(a == b, xp.isinf(a)), 0.0, a - b))


FUNCTIONS: Final = (
    of_floats(
        "exp",
        "Return e ** x.",
        lambda xp, g, y, x: g * y,
        cost=EXP,
        decompose=exp_log.exp,
        ulps=(0.9, 0.89),
    ),
    of_floats(
        "log",
        "Return the natural logarithm.",
        lambda xp, g, y, x: g / x,
        cost=LOG,
        decompose=exp_log.log,
        ulps=(0.84, 0.87),
    ),
    of_floats(
        "expm1",
        "Return e ** x - 1, exact where x is small.",
        lambda xp, g, y, x: g * (y + 1.0),
        cost=GROWTH,
        decompose=hyperbolic.expm1,
        ulps=(1.60, 1.95),
    ),
    of_floats(
        "log1p",
        "Return log(1 + x), exact where x is small.",
        lambda xp, g, y, x: g / (x + 1.0),
        cost=GROWTH,
        decompose=hyperbolic.log1p,
        ulps=(0.86, 0.83),
    ),
    # The slopes of tanh and sigmoid are made of their results, as in JAX: what is left
    # of 1 - y near 1 has few digits.
    of_floats(
        "tanh",
        "Return the hyperbolic tangent.",
        lambda xp, g, y, x: g * ((1.0 - y) * (1.0 + y)),
        cost=LOGISTIC,
        decompose=hyperbolic.tanh,
        ulps=(2.50, 2.63),
    ),
    of_floats(
        "sigmoid",
        "Return 1 / (1 + exp(-x)).",
        lambda xp, g, y, x: g * (y * (1.0 - y)),
        cost=LOGISTIC,
        decompose=hyperbolic.sigmoid,
        oracle=oracles.sigmoid,
        ulps=(2.45, 2.40),
        cuda="sigmoid({a})",
        jax="logistic",
    ),
    of_floats(
        "softplus",
        "Return log(1 + exp(x)).",
        lambda xp, g, y, x: g * xp.sigmoid(x),
        cost=Cost(30, 14.0, GROWTH.narrow, GROWTH.wide),
        decompose=hyperbolic.softplus,
        oracle=lambda x: np.logaddexp(0.0, x),
        ulps=(1.60, 1.65),
        cuda="softplus({a})",
        jax="",
    ),
    of_floats(
        "sin",
        "Return the sine of radians; of any size, reduced exactly.",
        lambda xp, g, y, x: g * xp.cos(x),
        cost=WAVE,
        decompose=sines.sin,
        ulps=(1.50, 1.50),
    ),
    of_floats(
        "cos",
        "Return the cosine of radians; of any size, reduced exactly.",
        lambda xp, g, y, x: g * -xp.sin(x),
        cost=WAVE,
        decompose=sines.cos,
        ulps=(1.50, 1.50),
    ),
    of_floats(
        "sinpi",
        "Return sin(pi x), exact at multiples of 1 / 2.",
        lambda xp, g, y, x: g * (math.pi * xp.cospi(x)),
        cost=HALF_WAVE,
        decompose=sines.sinpi,
        oracle=lambda x: oracles.turned(x, 0),
        ulps=(0.97, 0.85),
        cuda={"single": "sinpif({a})", "double": "sin_half_turns({a}, 0)"},
        jax="",
    ),
    of_floats(
        "cospi",
        "Return cos(pi x), exact at multiples of 1 / 2.",
        lambda xp, g, y, x: g * (-math.pi * xp.sinpi(x)),
        cost=HALF_WAVE,
        decompose=sines.cospi,
        oracle=lambda x: oracles.turned(x, 1),
        ulps=(0.70, 0.80),
        cuda={"single": "cospif({a})", "double": "sin_half_turns({a}, 1)"},
        jax="",
    ),
    of_floats(
        "log2",
        "Return the logarithm of base 2.",
        lambda xp, g, y, x: g / (x * math.log(2)),
        cost=LOG,
        decompose=power.log2,
        ulps=(1.65, 1.6),
        jax="",
    ),
    of_floats(
        "log10",
        "Return the logarithm of base 10.",
        lambda xp, g, y, x: g / (x * math.log(10)),
        cost=LOG,
        decompose=power.log10,
        ulps=(2.0, 2.85),
        jax="",
    ),
    of_floats(
        "tan",
        "Return the tangent of radians; of any size, reduced exactly.",
        lambda xp, g, y, x: g * (1.0 + y * y),
        cost=WAVE,
        decompose=sines.tan,
        ulps=(2.85, 3.1),
    ),
    of_floats(
        "asin",
        "Return the angle between -pi / 2 and pi / 2 whose sine is x.",
        lambda xp, g, y, x: g * xp.rsqrt((1.0 - x) * (1.0 + x)),
        cost=WAVE,
        decompose=sines.asin,
        oracle=np.arcsin,
        ulps=(3.1, 2.45),
    ),
    of_floats(
        "acos",
        "Return the angle between 0 and pi whose cosine is x.",
        lambda xp, g, y, x: -g * xp.rsqrt((1.0 - x) * (1.0 + x)),
        cost=WAVE,
        decompose=sines.acos,
        oracle=np.arccos,
        ulps=(2.8, 2.2),
    ),
    of_floats(
        "atan",
        "Return the angle between -pi / 2 and pi / 2 whose tangent is x.",
        lambda xp, g, y, x: g / (1.0 + x * x),
        cost=WAVE,
        decompose=sines.atan,
        oracle=np.arctan,
        ulps=(2.05, 0.9),
    ),
    of_floats(
        "sinh",
        "Return the hyperbolic sine.",
        lambda xp, g, y, x: g * xp.cosh(x),
        cost=GROWTH,
        decompose=hyperbolic.sinh,
        ulps=(2.2, 2.5),
    ),
    of_floats(
        "cosh",
        "Return the hyperbolic cosine.",
        lambda xp, g, y, x: g * xp.sinh(x),
        cost=GROWTH,
        decompose=hyperbolic.cosh,
        ulps=(1.4, 1.4),
    ),
    of_floats(
        "asinh",
        "Return the number whose hyperbolic sine is x.",
        lambda xp, g, y, x: g * xp.rsqrt(1.0 + x * x),
        cost=GROWTH,
        decompose=hyperbolic.asinh,
        oracle=np.arcsinh,
        ulps=(1.6, 1.6),
    ),
    of_floats(
        "acosh",
        "Return the number that is not negative whose hyperbolic cosine is x.",
        lambda xp, g, y, x: g * xp.rsqrt((x - 1.0) * (x + 1.0)),
        cost=GROWTH,
        decompose=hyperbolic.acosh,
        oracle=np.arccosh,
        ulps=(1.95, 1.8),
    ),
    of_floats(
        "atanh",
        "Return the number whose hyperbolic tangent is x.",
        lambda xp, g, y, x: g / ((1.0 - x) * (1.0 + x)),
        cost=GROWTH,
        decompose=hyperbolic.atanh,
        oracle=np.arctanh,
        ulps=(1.9, 1.85),
    ),
    of_floats(
        "atan2",
        "Return the angle of the point (b, a), between -pi and pi.",
        lambda xp, g, y, a, b: g * (b / xp.hypot(a, b) / xp.hypot(a, b)),
        lambda xp, g, y, a, b: g * (-a / xp.hypot(a, b) / xp.hypot(a, b)),
        cost=WAVE,
        decompose=sines.atan2,
        oracle=np.arctan2,
        ulps=(2.35, 1.5),
    ),
    of_floats(
        "pow",
        "Return a ** b; of a negative a NaN, but for whole exponents; of integers with "
        "a negative b 0.",
        lambda xp, g, y, a, b: _of_base(xp, g, a, b),
        _of_power,
        cost=Cost(60, 30, (150.0, 50.0), (400.0, 200.0)),
        decompose=power.power,
        oracle=oracles.power,
        ulps=(0.51, 0.7),
        kinds=NUMBER,
    ),
    of_floats(
        "hypot",
        "Return sqrt(a * a + b * b), which does not overflow on the way.",
        lambda xp, g, y, a, b: _of_length(xp, g, y, a),
        lambda xp, g, y, a, b: _of_length(xp, g, y, b),
        cost=Cost(14, 10, (90.0, 28.0), (300.0, 80.0)),
        decompose=power.hypot,
        ulps=(2.0, 2.0),
        jax="",
    ),
    of_floats(
        "logaddexp",
        "Return log(exp(a) + exp(b)), which does not overflow on the way.",
        lambda xp, g, y, a, b: _of_term(xp, g, a, b),
        lambda xp, g, y, a, b: _of_term(xp, g, b, a),
        cost=GROWTH,
        decompose=power.logaddexp,
        ulps=(1.25, 1.25),
        cuda={},
        jax="",
    ),
)
