"""The element types, their promotion, and bfloat16 bits for NumPy.

NumPy has no bfloat16: such arrays are carried as `uint16` bit patterns, made by
`to_bfloat16` and read by `from_bfloat16`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from steelyard_kernels.errors import KernelError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """One element type; the constants below are the only ones, compared by identity."""

    name: str
    bytes: int
    kind: str  # "float", "int" or "bool"
    numpy_name: str  # the NumPy dtype that carries its bits

    def __reduce__(self) -> tuple[Any, ...]:  # a pickle comes back as the constant
        return of, (self.name,)

    def __repr__(self) -> str:
        return self.name


float16 = DType("float16", 2, "float", "float16")
bfloat16 = DType("bfloat16", 2, "float", "uint16")
float32 = DType("float32", 4, "float", "float32")
float64 = DType("float64", 8, "float", "float64")
int32 = DType("int32", 4, "int", "int32")
int64 = DType("int64", 8, "int", "int64")
bool_ = DType("bool", 1, "bool", "bool")

ALL = (float16, bfloat16, float32, float64, int32, int64, bool_)
HALVES = (float16, bfloat16)  # computed in float32, rounded after each operation
_BY_NAME = {dtype.name: dtype for dtype in ALL} | {"bool_": bool_}  # NumPy 1
_RANK = {float16: 0, bfloat16: 0, float32: 1, float64: 2, int32: 0, int64: 1, bool_: 0}


def of(dtype: Any) -> DType:
    """Return the element type of a name, a NumPy dtype or scalar type, or a `DType`.

    Raises `KernelError` for any other, `uint16` included: bits alone do not say
    that they are a bfloat16.
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


def promote(a: DType, b: DType) -> DType:
    """Return the dtype that holds both, by the array API's table of one kind.

    float16 with bfloat16 gives float32; kinds never mix (`KernelError`).
    """
    if a is b:
        return a
    if a.kind != b.kind:
        raise KernelError(
            f"{a.name} and {b.name} do not mix: one is {a.kind}, the other {b.kind}; "
            f"cast one of them with astype."
        )
    if _RANK[a] == _RANK[b]:
        return float32
    return a if _RANK[a] > _RANK[b] else b


def to_bfloat16(array: NDArray[Any]) -> NDArray[np.uint16]:
    """Round an array to bfloat16 bits (uint16), to nearest, ties to even.

    Denormals are kept, overflow gives infinity, NaN stays a quiet NaN of its
    sign. float64 and integers round once: through float32 to odd (Boldo and
    Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    """
    import numpy as np

    if array.dtype.name == "bfloat16":  # ml_dtypes' own
        return array.view(np.uint16)
    bits = _to_odd_float32(array).view(np.uint32)
    nearest = (bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))) >> 16
    quiet = (bits >> 16) | np.uint32(0x40)
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    rounded: NDArray[np.uint16] = np.where(is_nan, quiet, nearest).astype(np.uint16)
    return rounded


def from_bfloat16(bits: NDArray[Any]) -> NDArray[np.float32]:
    """Widen bfloat16 bits (uint16, or an ml_dtypes array) to float32, exactly."""
    import numpy as np

    high = bits.view(np.uint16).astype(np.uint32) << np.uint32(16)
    widened: NDArray[np.float32] = high.view(np.float32)
    return widened


def _to_odd_float32(array: NDArray[Any]) -> NDArray[np.float32]:
    """Round to float32 so that a second rounding to nearest is the first one's."""
    import numpy as np

    if array.dtype.name in {"float32", "float16", "bool"}:
        return array.astype(np.float32)
    if array.dtype.name == "int64":  # bits below 2**11 stick, so float64 is exact
        sticky = (array >> 11 << 11) | ((array & 0x7FF) != 0).astype(np.int64) << 11
        array = np.where(np.abs(array >> 1) < 2**52, array, sticky)
    exact = array.astype(np.float64)
    with np.errstate(over="ignore", under="ignore"):
        near = exact.astype(np.float32)
    inexact = (near != exact) & ~np.isnan(exact)
    above = inexact & (np.abs(near) > np.abs(exact))
    down, odd = above.astype(np.uint32), inexact.astype(np.uint32)
    rounded: NDArray[np.float32] = ((near.view(np.uint32) - down) | odd).view(
        np.float32
    )
    return rounded
