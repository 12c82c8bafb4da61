"""What the array API asks of dtypes: limits, kinds, promotion."""

from __future__ import annotations

from functools import reduce
from typing import Final

from msgspec import Struct

from steelyard_kernels import dtypes
from steelyard_kernels.array.value import Array, kind_of, widest
from steelyard_kernels.dtypes import DType
from steelyard_kernels.errors import KernelError


class FloatLimits(Struct, frozen=True):
    """Limits of a floating dtype: bits, the step above 1, largest, smallest normal."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


class IntegerLimits(Struct, frozen=True):
    """Limits of an integer dtype."""

    bits: int
    max: int
    min: int
    dtype: DType


KINDS: Final = {  # families of dtypes
    "bool": {"bool"},
    "signed integer": {"int"},
    "unsigned integer": {"uint"},
    "integral": {"int", "uint"},
    "real floating": {"float"},
    "complex floating": set[str](),
    "numeric": {"int", "uint", "float"},
}


def finfo(dtype: DType | str | Array, /) -> FloatLimits:
    """Return the limits of a floating dtype."""
    found = _dtype(dtype)
    if found.kind != "float":
        raise KernelError(f"finfo of {found.name}, expected a float; call iinfo.")
    stored = found.digits - 1
    least = 2.0 ** (found.least + stored)
    ends = found.largest, found.smallest
    return FloatLimits(8 * found.bytes, 2.0**-stored, *ends, least, found)


def iinfo(dtype: DType | str | Array, /) -> IntegerLimits:
    """Return the limits of an integer dtype."""
    found = _dtype(dtype)
    if found.kind != "int":
        raise KernelError(f"iinfo of {found.name}, expected an integer; call finfo.")
    ends = int(found.largest), int(found.smallest)
    return IntegerLimits(8 * found.bytes, *ends, found)


def isdtype(dtype: DType | str, kind: DType | str | tuple[DType | str, ...]) -> bool:
    """Say whether a dtype is one, is of a kind of the array API's, or of one of many."""
    if isinstance(kind, tuple):
        return any(isdtype(dtype, each) for each in kind)
    found = _dtype(dtype)
    if isinstance(kind, str) and kind in KINDS and kind != "bool":
        return found.family in KINDS[kind]
    return found is _dtype(kind)


def result_type(*arrays_and_dtypes: Array | DType | str | float) -> DType:
    """Return the dtype that arithmetic of arrays, dtypes and Python numbers has.

    Numbers take the dtype of others of their kind, ints that of floats too.
    """
    numbers = [each for each in arrays_and_dtypes if isinstance(each, int | float)]
    others = [_dtype(e) for e in arrays_and_dtypes if not isinstance(e, int | float)]
    if not arrays_and_dtypes:
        raise KernelError(
            "result_type of nothing, expected arrays or dtypes; pass one."
        )
    if not others:
        return widest(map(kind_of, numbers))
    found = reduce(dtypes.promote, others)
    for kind in map(kind_of, numbers):
        if kind != found.kind and (kind, found.kind) != ("int", "float"):
            dtypes.promote(found, widest([kind]))  # raises: kinds do not mix
    return found


def can_cast(source: Array | DType | str, target: DType | str, /) -> bool:
    """Say whether every value of a dtype is exactly one of another."""
    before, after = _dtype(source), _dtype(target)
    return before is after or dtypes.widens(before, after)


def _dtype(value: Array | DType | str) -> DType:
    return value.dtype if isinstance(value, Array) else dtypes.of(value)
