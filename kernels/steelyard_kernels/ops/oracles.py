"""What NumPy has no function for, in float64 or longdouble."""

from __future__ import annotations

import math
from functools import partial
from typing import Final

import numpy as np

from steelyard_kernels.dtypes import DType
from steelyard_kernels.ops.row import Values

PI: Final = np.longdouble("3.14159265358979323846264338327950288")


def sigmoid(x: Values) -> Values:
    """Return 1 / (1 + exp(-x)) without an overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1.0) / (1.0 + small)


def erf_inv(x: Values) -> Values:
    """Return where erf is x, by Halley's method from Winitzki's guess."""
    rest = 1 - np.abs(x)  # exact where it is small
    log = np.log(rest) + np.log1p(np.abs(x))
    part = 2 / (np.pi * 0.147) + log / 2
    y = np.sqrt(np.sqrt(part * part - log / 0.147) - part)
    y = np.where(rest > 1 - 1e-6, np.abs(x) * np.sqrt(np.pi) / 2, y)
    for _ in range(4):
        off = np.where(rest < 0.5, rest - erfc(y), erf(y) - np.abs(x))
        step = off / (2 / np.sqrt(np.pi) * np.exp(-y * y))
        y = y - step / (1 + y * step)
    y = np.where(rest == 0, np.inf, y)
    return np.copysign(np.where(np.abs(x) <= 1, y, np.nan), x)


erf = np.vectorize(math.erf, otypes=[np.float64])
erfc = np.vectorize(math.erfc, otypes=[np.float64])


@partial(np.vectorize, otypes=[np.float64])
def lgamma(x: float) -> float:
    """Return log |gamma(x)|; infinite at poles and where it overflows."""
    try:
        return math.lgamma(x)
    except (ValueError, OverflowError):
        return math.inf


def digamma(x: Values) -> Values:
    """Return the slope of lgamma: Stirling's series, far from 0."""
    z = np.where(x < 0, 1 - x, x)
    shift = 1 / z + sum(1 / (z + k) for k in range(1, 16))
    w = 1 / np.square(z + 16)
    series = w * (1 / 12 - w * (1 / 120 - w * (1 / 252 - w * (1 / 240 - w / 132))))
    value = np.log(z + 16) - 1 / (2 * z + 32) - series - shift
    turn = np.where(turned(x, 0) == 0, np.nan, turned(x, 0))
    return np.asarray(np.where(x < 0, value - np.pi * turned(x, 1) / turn, value))


def turned(x: Values, quarters: int) -> Values:
    """Return sin(pi x + pi quarters / 2), the argument reduced exactly."""
    left = x - 2 * np.rint(x / 2)
    near = np.rint(2 * left)
    angle = left.dtype.type(PI) * (left - near / 2)
    turn = np.where(np.isfinite(x), near + quarters, 0).astype(np.int64) % 4
    sine, cosine = np.sin(angle), np.cos(angle)
    return np.choose(turn, [sine, cosine, -sine, -cosine])


def power(a: Values, b: Values) -> Values:
    """Return a ** b, of integers 0 where b is negative."""
    if a.dtype.kind == "f":
        return np.asarray(np.power(a, b))
    return np.where(b < 0, 0, np.power(a, np.where(b < 0, 0, b)))


def tf32(x: Values) -> Values:
    """Return float32 without the last 13 of its bits, carried in what x is."""
    bits = x.astype(np.float32).view(np.int32)
    return (bits & ~0x1FFF).view(np.float32).astype(x.dtype)


def nextafter(dtype: DType, x: Values, y: Values) -> Values:
    """Return the neighbours of numbers in a dtype, carried in float64."""
    a, b = (value.astype(dtype.numpy) for value in (x, y))
    return np.asarray(np.nextafter(a, b), np.float64)


def shift_right(dtype: DType, x: Values, amount: Values) -> Values:
    """Return integers shifted with their signs; from the width on all is shifted out."""
    width = 8 * dtype.bytes
    inside = (amount >= 0) & (amount < width)
    near = np.right_shift(x, np.where(inside, amount, width - 1).astype(x.dtype))
    return near if dtype.signed else np.where(inside, near, 0).astype(x.dtype)
