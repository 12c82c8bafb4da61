"""Functions written for JAX, each as one kernel; see `from_jax`."""

from typing import Final

from steelyard_kernels.from_jax.function import JaxKernel, from_jax
from steelyard_kernels.from_jax.interpret import RULES

PRIMITIVES: Final = tuple(sorted(RULES))
"""The primitives of JAX's that a kernel may have."""

__all__ = ["PRIMITIVES", "JaxKernel", "from_jax"]
