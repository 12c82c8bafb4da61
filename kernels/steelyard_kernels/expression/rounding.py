"""Which dtype holds another's values, and the nearest value of one to a number."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from steelyard_kernels import dtypes
from steelyard_kernels.dtypes import DType
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import Value


def widens(source: DType, target: DType) -> bool:
    """Say whether every value of source is exactly a value of target."""
    return (source.name, target.name) in _WIDENINGS


_WIDENINGS: Final = frozenset(
    {
        ("float16", "float32"),
        ("float16", "float64"),
        ("bfloat16", "float32"),
        ("bfloat16", "float64"),
        ("float32", "float64"),
        ("int32", "int64"),
        ("int32", "float64"),
    }
)


def round_constant(value: Value, dtype: DType) -> Value:
    """Round a Python number to the nearest value of dtype, as a Python number.

    Integers wrap as NumPy's casts do; a float that is not finite has no integer and
    raises KernelError.
    """
    if dtype.kind == "bool":
        return bool(value)
    if dtype.kind == "int":
        if isinstance(value, float) and not math.isfinite(value):
            raise KernelError(
                f"{value} has no value in {dtype.name}; use a floating dtype."
            )
        bits = 8 * dtype.bytes
        wrapped = int(value) & ((1 << bits) - 1)
        return wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped
    return _round_float(float(value), dtype)


def _round_float(value: float, dtype: DType) -> float:
    if dtype is dtypes.float64:
        return value
    exact = np.array(value, np.float64)
    if dtype is dtypes.bfloat16:
        return float(dtypes.from_bfloat16(dtypes.to_bfloat16(exact)))
    with np.errstate(over="ignore", under="ignore"):  # to infinity and to zero
        return float(exact.astype(dtype.numpy_name))
