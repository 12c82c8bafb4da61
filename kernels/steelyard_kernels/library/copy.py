"""Copy: the yardstick of memory traffic."""

from steelyard_kernels.array import Array
from steelyard_kernels.function import kernel


@kernel
def copy(a: Array) -> Array:
    """Return a."""
    return a
