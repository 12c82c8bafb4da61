"""Rounding, signs, classes of numbers and division to whole numbers."""

# ruff: noqa: ARG005 - all functions of a row's gradient take the same

from __future__ import annotations

from typing import Final

import numpy as np

from steelyard_kernels.dtypes import float32, float64
from steelyard_kernels.ir.functions import exact
from steelyard_kernels.ops import oracles
from steelyard_kernels.ops.row import INT, NUMBER, Cost, Op

FEW: Final = Cost(3, 3)
DIVIDED: Final = Cost(20, 20, (90.0, 40.0), (300.0, 120.0))

ROUNDING: Final = (
    Op(
        "floor",
        1,
        "Return the largest whole number that is not above x.",
        np.floor,
        llvm={"float": "llvm.floor"},
        cuda={"float": "floor{f}({a})"},
        jax="floor",
        keeps=INT,
    ),
    Op(
        "ceil",
        1,
        "Return the smallest whole number that is not below x.",
        np.ceil,
        llvm={"float": "llvm.ceil"},
        cuda={"float": "ceil{f}({a})"},
        jax="ceil",
        keeps=INT,
    ),
    Op(
        "trunc",
        1,
        "Return x without its fraction.",
        np.trunc,
        llvm={"float": "llvm.trunc"},
        cuda={"float": "trunc{f}({a})"},
        keeps=INT,
    ),
    Op(
        "tf32",
        1,
        "Return x of float32 cut to 11 binary digits, as tensor cores multiply it.",
        oracles.tf32,
        gradient=(lambda xp, g, y, x: g,),
        decompose=exact.tf32,
        only=frozenset({float32}),
    ),
    Op(
        "round",
        1,
        "Return the nearest whole number, of two the even one.",
        np.rint,
        llvm={"float": "llvm.rint"},
        cuda={"float": "rint{f}({a})"},
        keeps=INT,
    ),
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
    Op(
        "signbit",
        1,
        "Return whether the sign is set, of zeros too.",
        np.signbit,
        result="bool",
        decompose=exact.signbit,
    ),
    Op(
        "isnan",
        1,
        "Return whether x is no number.",
        np.isnan,
        NUMBER,
        "bool",
        decompose=exact.isnan,
    ),
    Op(
        "isinf",
        1,
        "Return whether x is an infinity.",
        np.isinf,
        NUMBER,
        "bool",
        decompose=exact.isinf,
    ),
    Op(
        "isfinite",
        1,
        "Return whether x is neither an infinity nor NaN.",
        np.isfinite,
        NUMBER,
        "bool",
        decompose=exact.isfinite,
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
        decompose=exact.copysign,
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
