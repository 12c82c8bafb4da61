"""The nearest value of a dtype to a number."""

from __future__ import annotations

import math

from steelyard_kernels import dtypes
from steelyard_kernels.dtypes import DType
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import Value


def round_constant(value: Value, dtype: DType) -> Value:
    """Round a Python number to the nearest value of dtype, as a Python number.

    Integers wrap as NumPy's casts do, floats go to the nearest bound; one that is not
    finite has no integer and raises KernelError.
    """
    if dtype.kind == "bool":
        return bool(value)
    if dtype.kind == "int":
        if isinstance(value, float) and not math.isfinite(value):
            raise KernelError(
                f"{value} has no value in {dtype.name}; use a floating dtype."
            )
        if isinstance(value, float):
            value = min(max(int(value), dtype.smallest), dtype.largest)
        bits = 8 * dtype.bytes
        wrapped = int(value) & ((1 << bits) - 1)
        return wrapped - (1 << bits) if wrapped > dtype.largest else wrapped
    exact = float(value)
    return exact if dtype is dtypes.float64 else float(dtypes.rounded(exact, dtype))
