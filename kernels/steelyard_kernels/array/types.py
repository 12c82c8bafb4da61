"""What the array API asks of dtypes: limits, kinds, promotion."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Final

from steelyard_kernels import dtypes
from steelyard_kernels.array.value import Array
from steelyard_kernels.dtypes import DType
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.rounding import widens


@dataclass(frozen=True, slots=True)
class FloatLimits:
    """Limits of a floating dtype: bits, the step above 1, largest, smallest normal."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


@dataclass(frozen=True, slots=True)
class IntegerLimits:
    """Limits of an integer dtype."""

    bits: int
    max: int
    min: int
    dtype: DType


DIGITS: Final = {  # stored bits of the mantissa, and the largest exponent
    dtypes.float16: (10, 15),
    dtypes.bfloat16: (7, 127),
    dtypes.float32: (23, 127),
    dtypes.float64: (52, 1023),
}
KINDS: Final = {
    "bool": {"bool"},
    "signed integer": {"int"},
    "unsigned integer": set[str](),
    "integral": {"int"},
    "real floating": {"float"},
    "complex floating": set[str](),
    "numeric": {"int", "float"},
}


def finfo(dtype: DType | str | Array, /) -> FloatLimits:
    """Return the limits of a floating dtype, IEEE 754's or bfloat16's."""
    found = _dtype(dtype)
    if found not in DIGITS:
        raise KernelError(f"finfo of {found.name}, expected a float; call iinfo.")
    digits, exponent = DIGITS[found]
    largest = (2.0 - 2.0**-digits) * 2.0**exponent
    least = 2.0 ** (1 - exponent)
    return FloatLimits(8 * found.bytes, 2.0**-digits, largest, -largest, least, found)


def iinfo(dtype: DType | str | Array, /) -> IntegerLimits:
    """Return the limits of an integer dtype."""
    found = _dtype(dtype)
    if found.kind != "int":
        raise KernelError(f"iinfo of {found.name}, expected an integer; call finfo.")
    most = 1 << (8 * found.bytes - 1)
    return IntegerLimits(8 * found.bytes, most - 1, -most, found)


def isdtype(dtype: DType | str, kind: DType | str | tuple[DType | str, ...]) -> bool:
    """Say whether a dtype is one, is of a kind of the array API's, or of one of many."""
    if isinstance(kind, tuple):
        return any(isdtype(dtype, each) for each in kind)
    found = _dtype(dtype)
    if isinstance(kind, str) and kind in KINDS and kind != "bool":
        return found.kind in KINDS[kind]
    return found is _dtype(kind)


def result_type(*values: Array | DType | str) -> DType:
    """Return the dtype that arithmetic of arrays and dtypes has."""
    if not values:
        raise KernelError(
            "result_type of nothing, expected arrays or dtypes; pass one."
        )
    return reduce(dtypes.promote, map(_dtype, values))


def can_cast(source: Array | DType | str, target: DType | str, /) -> bool:
    """Say whether every value of a dtype is exactly one of another."""
    before, after = _dtype(source), _dtype(target)
    return before is after or widens(before, after)


def _dtype(value: Array | DType | str) -> DType:
    return value.dtype if isinstance(value, Array) else dtypes.of(value)
