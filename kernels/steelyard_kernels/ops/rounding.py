"""Rounding, signs, classes of numbers and division to whole numbers."""

# ruff: noqa: ARG005 - all functions of a row's gradient take the same

from __future__ import annotations

from typing import Final

import numpy as np

from steelyard_kernels.dtypes import float32, float64
from steelyard_kernels.ir.functions import exact
from steelyard_kernels.ops import oracles
from steelyard_kernels.ops.row import FLOAT, INT, NUMBER, Cost, Op

FEW: Final = Cost(3, 3)
DIVIDED: Final = Cost(20, 20, (90.0, 40.0), (300.0, 120.0))


def _whole(name: str, doc: str, function: str, jax: str = "") -> Op:
    """Return the row of a rounding, a function called so in NumPy, LLVM and CUDA."""
    return Op(
        name,
        1,
        doc,
        getattr(np, function),
        llvm={"float": f"llvm.{function}"},
        cuda={"float": f"{function}{{f}}({{a}})"},
        jax=jax,
        keeps=INT,
    )


def _asked(name: str, doc: str, kinds: frozenset[str] = NUMBER, jax: str = "") -> Op:
    """Return the row of a question about numbers."""
    made = getattr(exact, name)
    return Op(name, 1, doc, getattr(np, name), kinds, "bool", decompose=made, jax=jax)


ROUNDING: Final = (
    _whole(
        "floor",
        "Return the largest whole number that is not above x.",
        "floor",
        "floor",
    ),
    _whole(
        "ceil", "Return the smallest whole number that is not below x.", "ceil", "ceil"
    ),
    _whole("trunc", "Return x without its fraction.", "trunc"),
    Op(
        "tf32",
        1,
        "Return x of float32 cut to 11 binary digits, as tensor cores multiply it.",
        oracles.tf32,
        gradient=(lambda xp, g, y, x: g,),
        decompose=exact.tf32,
        only=frozenset({float32}),
    ),
    _whole("round", "Return the nearest whole number, of two the even one.", "rint"),
    Op(
        "sign",
        1,
        "Return -1, 0 or 1; NaN of NaN.",
        np.sign,
        NUMBER,
        cost=FEW,
        decompose=exact.sign,
        jax="sign",
    ),
    _asked("signbit", "Return whether the sign is set, of zeros too.", FLOAT),
    _asked("isnan", "Return whether x is no number."),
    _asked("isinf", "Return whether x is an infinity."),
    _asked(
        "isfinite",
        "Return whether x is neither an infinity nor NaN.",
        jax="is_finite",
    ),
    Op(
        "copysign",
        2,
        "Return the size of a with the sign of b.",
        np.copysign,
        gradient=(
            lambda xp, g, y, a, b: xp.where(xp.signbit(a) == xp.signbit(b), g, -g),
            lambda xp, g, y, a, b: g * 0.0,
        ),
        cost=FEW,
        cuda={"float": "copysign{f}({a}, {b})"},
        decompose=lambda x, y: x.signed_as(y),
    ),
    Op(
        "nextafter",
        2,
        "Return the number next to a on the way to b, of float32 and float64.",
        oracles.nextafter,
        cost=FEW,
        cuda={"float": "nextafter{f}({a}, {b})"},
        decompose=exact.nextafter,
        only=frozenset({float32, float64}),
        by_dtype=True,
        jax="nextafter",
    ),
    Op(
        "floor_divide",
        2,
        "Return the largest whole number not above a / b; of integers a / 0 is 0.",
        np.floor_divide,
        NUMBER,
        cost=DIVIDED,
        decompose=exact.floor_divide,
        ulps=(1.0, 1.0),  # of quotients beyond a float's digits
    ),
    Op(
        "remainder",
        2,
        "Return a - b floor(a / b), exactly; of integers by 0 it is 0.",
        np.remainder,
        NUMBER,
        gradient=(
            lambda xp, g, y, a, b: g,
            lambda xp, g, y, a, b: -g * xp.floor_divide(a, b),
        ),
        cost=DIVIDED,
        decompose=exact.remainder,
    ),
    Op(
        "div",
        2,
        "Return a / b of integers, truncated; b is not 0, nor -1 of the least a.",
        lambda a, b: (a - np.fmod(a, b)) // b,
        INT,
        llvm={"int": "sdiv", "uint": "udiv"},
        cuda={"int": "{a} / {b}"},
        hidden=True,
    ),
    Op(
        "rem",
        2,
        "Return what the truncated division of integers leaves.",
        np.fmod,
        INT,
        llvm={"int": "srem", "uint": "urem"},
        cuda={"int": "{a} % {b}"},
        hidden=True,
    ),
)
