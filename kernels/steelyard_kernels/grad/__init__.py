"""Reverse mode: gradients of what kernels compute, as expressions of the same kind."""

from steelyard_kernels.grad.functions import (
    MEMORY,
    grad,
    stop_gradient,
    value_and_grad,
    vjp,
)

__all__ = ["MEMORY", "grad", "stop_gradient", "value_and_grad", "vjp"]
