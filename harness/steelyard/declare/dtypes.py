"""Element types of buffers: NumPy's, and bfloat16, which is `ml_dtypes`'."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np  # 64 ms that importing steelyard does not spend

BFLOAT16: Final = "bfloat16"


def named(name: Any) -> np.dtype[Any]:
    """Return an element type by its name; raises TypeError for none."""
    import numpy as np

    if name == BFLOAT16:
        import ml_dtypes  # noqa: F401 # which makes NumPy know it
    found: np.dtype[Any] = np.dtype(name)
    return found


def is_float(dtype: np.dtype[Any]) -> bool:
    """Say whether elements are floating-point numbers."""
    return dtype.kind == "f" or dtype.name == BFLOAT16


def limits(dtype: np.dtype[Any]) -> Any:
    """Return what a floating-point type can hold, as `numpy.finfo` has it."""
    if dtype.kind == "f":
        import numpy as np

        return np.finfo(dtype)
    import ml_dtypes

    other: Any = ml_dtypes.finfo
    return other(dtype)
