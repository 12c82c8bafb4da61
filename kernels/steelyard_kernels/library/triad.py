"""STREAM's triad (McCalpin 1995)."""

from steelyard_kernels.array import Array
from steelyard_kernels.function import kernel


@kernel
def triad(a: Array, b: Array, *, s: float = 3.0) -> Array:
    """Return a + s * b."""
    return a + s * b
