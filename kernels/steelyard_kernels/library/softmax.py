"""Softmax over the last axis, in float32."""

from steelyard_kernels import array as xp
from steelyard_kernels.array import Array
from steelyard_kernels.function import kernel


@kernel
def softmax(x: Array) -> Array:
    """Return exp(x) / sum(exp(x)) of every row; float64 stays float64."""
    wide = x if x.dtype.name == "float64" else x.astype("float32")
    e = xp.exp(wide - xp.max(wide, axis=-1, keepdims=True))
    # One division a row: at most one rounding more than dividing every element.
    return (e * (1.0 / xp.sum(e, axis=-1, keepdims=True))).astype(x.dtype)
