"""The element types: one table, which everything else reads.

To add a dtype is to add its row. NumPy has no bfloat16 and no float8: their arrays are
those of `ml_dtypes`, as JAX's are. A float8 is only stored: arithmetic takes it as the
float32 that it equals.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

from steelyard_kernels.errors import KernelError

if TYPE_CHECKING:
    import numpy as np


class DType(Struct, frozen=True, eq=False):
    """One element type; the constants below are the only ones, compared by identity.

    name: NumPy's or ml_dtypes'.
    bytes: of an element.
    kind: "float", "int" or "bool".
    llvm, cuda: how a value in registers is spelled; halves and float8 are their bits.
    digits: binary ones of a significand, or of the largest integer.
    largest: the largest finite number.
    least: the exponent of the smallest positive number.
    signed: whether there are negative numbers.
    """

    name: str
    bytes: int
    kind: str
    llvm: str
    cuda: str
    digits: int
    largest: float
    least: int = 0
    signed: bool = True

    def __reduce__(self) -> tuple[Any, ...]:  # a pickle comes back as the constant
        return of, (self.name,)

    def __repr__(self) -> str:
        return self.name

    @property
    def family(self) -> str:
        """The kind, "uint" of integers without a sign: as instructions differ."""
        return "uint" if self.kind == "int" and not self.signed else self.kind

    @property
    def smallest(self) -> float:
        """The negative number that is furthest from 0; 0 where there is none."""
        if self.kind == "float":
            return -self.largest
        return -self.largest - 1 if self.signed else 0

    @property
    def numpy(self) -> np.dtype[Any]:
        """The dtype of its arrays, NumPy's or ml_dtypes'."""
        return _numpy(self)


@cache
def _numpy(dtype: DType) -> np.dtype[Any]:
    import numpy as np

    if dtype in FOREIGN:
        import ml_dtypes  # noqa: F401 - tells NumPy its names
    return np.dtype(dtype.name)


def _integers(bits: int, cuda: str) -> tuple[DType, DType]:
    """Return the integers of a width, with a sign and without."""
    size, llvm, most = bits // 8, f"i{bits}", 1 << bits
    return (
        DType(f"int{bits}", size, "int", llvm, cuda, bits - 1, most // 2 - 1),
        DType(
            *(f"uint{bits}", size, "int", llvm),
            f"unsigned {cuda.removeprefix('signed ')}",
            *(bits, most - 1),
            signed=False,
        ),
    )


# Formats: IEEE 754; bfloat16 and float8 as ml_dtypes and OCP's "OFP8" (2023) have them.
float8_e4m3fn = DType("float8_e4m3fn", 1, "float", "i8", "unsigned char", 4, 448.0, -9)
float8_e5m2 = DType("float8_e5m2", 1, "float", "i8", "unsigned char", 3, 57344.0, -16)
float16 = DType("float16", 2, "float", "i16", "unsigned short", 11, 65504.0, -24)
bfloat16 = DType(
    *("bfloat16", 2, "float", "i16", "unsigned short"),
    *(8, (2 - 2.0**-7) * 2.0**127, -133),
)
float32 = DType(
    *("float32", 4, "float", "float", "float"), 24, (2 - 2.0**-23) * 2.0**127, -149
)
float64 = DType(
    *("float64", 8, "float", "double", "double"), 53, (2 - 2.0**-52) * 2.0**1023, -1074
)
int8, uint8 = _integers(8, "signed char")
int16, uint16 = _integers(16, "short")
int32, uint32 = _integers(32, "int")
int64, uint64 = _integers(64, "long long")
bool_ = DType("bool", 1, "bool", "i1", "bool", 1, 1, signed=False)

HALVES: Final = (float16, bfloat16)
"""Computed in float32, rounded after each operation."""

STORED: Final = (float8_e4m3fn, float8_e5m2)
"""Widened to float32 before any arithmetic; results are cast to them by name."""

TENSOR: Final = (*HALVES, *STORED, float32, int8, uint8)
"""What tensor cores multiply: float32 only as tf32, which has its first 11 digits."""

FOREIGN: Final = (bfloat16, *STORED)
"""Whose arrays are ml_dtypes'."""

INTEGERS: Final = (int8, int16, int32, int64, uint8, uint16, uint32, uint64)
ALL: Final = (*HALVES, float32, float64, *INTEGERS, bool_, *STORED)
_BY_NAME: Final = {dtype.name: dtype for dtype in ALL} | {"bool_": bool_}  # NumPy 1


def of(dtype: Any) -> DType:
    """Return the element type of a name, a NumPy dtype or scalar type, or a `DType`.

    Raises `KernelError` for any other.
    """
    if isinstance(dtype, DType):
        return dtype
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or dtype
    found = _BY_NAME.get(name) if isinstance(name, str) else None
    if found is None or getattr(dtype, "isnative", True) is False:
        known = ", ".join(dtype.name for dtype in ALL)
        seen = f"{dtype.str} (swapped bytes)" if found is not None else f"{name}"
        raise KernelError(
            f"dtype {seen} is not supported, expected one of {known}; "
            f"cast the array to one of them."
        )
    return found


def computed(dtype: DType) -> DType:
    """Return the dtype in which arithmetic takes values of a dtype."""
    return float32 if dtype in STORED else dtype


def widest(dtype: DType) -> DType:
    """Return the dtype in which integers add up: of 64 bits, with a sign or without."""
    return int64 if dtype.signed else uint64


def unsigned(dtype: DType) -> DType:
    """Return the integers without a sign that are as wide."""
    return INTEGERS[4 + (1, 2, 4, 8).index(dtype.bytes)]


@cache
def widens(source: DType, target: DType) -> bool:
    """Say whether every number of source is exactly one of another dtype, target."""
    if "bool" in {source.kind, target.kind} or source is target:
        return False
    if target.kind == "int" and (source.kind == "float" or source.signed):
        return source.kind == "int" and target.signed and source.digits < target.digits
    return (
        source.digits <= target.digits
        and source.largest <= target.largest
        and source.least >= target.least
    )


@cache
def promote(a: DType, b: DType) -> DType:
    """Return the dtype that holds both, by the array API's tables, each of one kind.

    float16 with bfloat16 gives float32; kinds never mix, nor does uint64 with integers
    that have a sign (`KernelError`).
    """
    a, b = computed(a), computed(b)
    held = [
        dtype
        for dtype in ALL
        if dtype.kind == a.kind == b.kind
        and all(dtype is each or widens(each, dtype) for each in (a, b))
    ]
    if not held:
        why = f"one is {a.kind}, the other {b.kind}"
        why = "no integer holds both" if a.kind == b.kind else why
        raise KernelError(
            f"{a.name} and {b.name} do not mix: {why}; cast one of them with astype."
        )
    return min(held, key=lambda dtype: dtype.bytes)


def rounded(values: ArrayLike, dtype: DType) -> NDArray[Any]:
    """Return numbers as an array of a dtype, rounded once, to nearest, ties to even.

    Beyond the largest number is infinity, of float8_e4m3fn, which has none, NaN.
    float64 and integers go to ml_dtypes' dtypes, which would round them twice, through
    float32 rounded to odd (Boldo and Melquiond, "Emulation of FMA and correctly rounded
    sums", 2008). Integers wrap; a float goes to an integer dtype truncated, to the
    nearest bound where it has no such number, and NaN to 0, all undefined in NumPy.
    """
    import numpy as np

    array = np.asarray(values)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        foreign = array.dtype.isbuiltin == 2  # whatever is not NumPy's own
        if dtype in FOREIGN and not foreign:
            array = _to_odd_float32(array)
        elif dtype.kind == "int" and (foreign or array.dtype.kind == "f"):
            return _truncated(array.astype(np.float64), dtype)
        return np.asarray(array.astype(dtype.numpy))


def _truncated(values: NDArray[Any], dtype: DType) -> NDArray[Any]:
    import numpy as np

    whole, top = np.trunc(values), 2.0**dtype.digits
    inside = (whole >= dtype.smallest) & (whole < top)
    near = np.where(inside, whole, 0).astype(dtype.numpy)
    high = np.where(whole >= top, dtype.numpy.type(dtype.largest), near)
    return np.where(whole < dtype.smallest, dtype.numpy.type(dtype.smallest), high)


def bits(value: float, dtype: DType) -> int:
    """Return the bits of a number rounded to a floating dtype."""
    import numpy as np

    array = rounded(np.array([value], np.float64), dtype)
    return int(array.view(f"uint{8 * dtype.bytes}")[0])


def _to_odd_float32(array: NDArray[Any]) -> NDArray[np.float32]:
    """Round to float32 so that a second rounding to nearest is the first one's."""
    import numpy as np

    if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
        # Bits below 2**11 stick, so float64 is exact.
        low = np.asarray(array & 0x7FF != 0).astype(array.dtype)
        sticky = array >> 11 << 11 | low << 11
        array = np.where(np.abs(array >> 1) < 2**52, array, sticky)
    exact = array.astype(np.float64)
    near = exact.astype(np.float32)
    inexact = (near != exact) & ~np.isnan(exact)
    above = inexact & (np.abs(near) > np.abs(exact))
    down, odd = above.astype(np.uint32), inexact.astype(np.uint32)
    found: NDArray[np.float32] = ((near.view(np.uint32) - down) | odd).view(np.float32)
    return found
