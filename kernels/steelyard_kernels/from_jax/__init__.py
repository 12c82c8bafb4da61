"""Functions written for JAX, each as one kernel; see `from_jax`."""

from steelyard_kernels.from_jax.function import JaxKernel, from_jax

__all__ = ["JaxKernel", "from_jax"]
