"""Three streams scaled in place: the yardstick of in-place updates.

An in-place update pays no write-allocate, so that copy would flatter it.
"""

from steelyard_kernels.array import Array
from steelyard_kernels.function import kernel


@kernel
def scale(a: Array, b: Array, c: Array, *, s: float = 0.5) -> dict[str, Array]:
    """Multiply each of three arrays by s, in place."""
    return {"a": a * s, "b": b * s, "c": c * s}
