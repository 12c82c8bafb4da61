"""Nothing: what a build costs before it builds anything."""

from steelyard_kernels.function import kernel


@kernel
def empty() -> None:
    """Compute nothing."""
