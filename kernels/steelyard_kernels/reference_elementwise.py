"""The oracle's elementwise operations, on values that are carried in wider types."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from steelyard_kernels.dtypes import DType
from steelyard_kernels.expression.elementwise import BITS

Values: TypeAlias = NDArray[Any]


def elementwise(op: str, dtype: DType, *args: Values) -> Values:
    """Return a row of `expr.OPERATIONS`, not yet rounded or wrapped.

    `dtype` is the operands'; floats are carried in float64, integers in int64.
    """
    if op in _ON_BITS:
        return _ON_BITS[op](dtype, *args)
    return _FUNCTIONS[op](*args)


def _sigmoid(x: Values) -> Values:
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1.0) / (1.0 + small)


def _erf_inv(x: Values) -> Values:
    """Return where erf is x, by Halley's method from Winitzki's guess."""
    rest = 1 - np.abs(x)  # exact where it is small
    log = np.log(rest) + np.log1p(np.abs(x))
    part = 2 / (np.pi * 0.147) + log / 2
    y = np.sqrt(np.sqrt(part * part - log / 0.147) - part)
    y = np.where(rest > 1 - 1e-6, np.abs(x) * np.sqrt(np.pi) / 2, y)
    for _ in range(4):
        off = np.where(rest < 0.5, rest - _erfc(y), _erf(y) - np.abs(x))
        step = off / (2 / np.sqrt(np.pi) * np.exp(-y * y))
        y = y - step / (1 + y * step)
    y = np.where(rest == 0, np.inf, y)
    return np.copysign(np.where(np.abs(x) <= 1, y, np.nan), x)


_erf = np.vectorize(math.erf, otypes=[np.float64])
_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def _turned(x: Values, quarters: int) -> Values:
    """Return sin(pi x + pi quarters / 2), the argument reduced exactly."""
    left = x - 2 * np.rint(x / 2)
    near = np.rint(2 * left)
    angle = np.pi * (left - near / 2)
    turn = np.where(np.isfinite(x), near + quarters, 0).astype(np.int64) % 4
    sine, cosine = np.sin(angle), np.cos(angle)
    return np.choose(turn, [sine, cosine, -sine, -cosine])


def _unsigned(dtype: DType, x: Values) -> Values:
    return x.astype(dtype.numpy_name).view(f"uint{8 * dtype.bytes}")


def _shift(dtype: DType, x: Values, amount: Values, *, left: bool) -> Values:
    """Shift bits; none are left where the amount is not one of their numbers."""
    bits, width = _unsigned(dtype, x), 8 * dtype.bytes
    inside = (amount >= 0) & (amount < width)
    by = np.where(inside, amount, 0).astype(bits.dtype)
    moved = np.left_shift(bits, by) if left else np.right_shift(bits, by)
    return np.where(inside, moved, 0).astype(bits.dtype).view(dtype.numpy_name)


def _multiply_high(dtype: DType, a: Values, b: Values) -> Values:
    wide = _unsigned(dtype, a).astype(np.uint64) * _unsigned(dtype, b)
    return (wide >> np.uint64(32)).astype(np.uint32).view(np.int32)


def _bitcast(dtype: DType, x: Values) -> Values:
    return x.astype(dtype.numpy_name).view(BITS[dtype].numpy_name)


_FUNCTIONS: Final[dict[str, Callable[..., Values]]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "negative": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "exp": np.exp,
    "log": np.log,
    "expm1": np.expm1,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "softplus": lambda x: np.logaddexp(0.0, x),
    "erf_inv": _erf_inv,
    "erf": _erf,
    "sin": np.sin,
    "cos": np.cos,
    "sinpi": lambda x: _turned(x, 0),
    "cospi": lambda x: _turned(x, 1),
    "floor": np.floor,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "logical_not": np.logical_not,
    "where": np.where,
}
_ON_BITS: Final[dict[str, Callable[..., Values]]] = {
    "bitwise_left_shift": lambda dtype, x, n: _shift(dtype, x, n, left=True),
    "shift_right_logical": lambda dtype, x, n: _shift(dtype, x, n, left=False),
    "multiply_high": _multiply_high,
    "bitcast": _bitcast,
}
