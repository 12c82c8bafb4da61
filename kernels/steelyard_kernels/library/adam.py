"""Adam's update as three fused broadcasts (GPUCompiler.jl#65), as one kernel or three.

The formulas are that thread's, of `adam_combined!`, its decay of the second moment
by beta1 included; the gradient is overwritten by the step.
"""

from steelyard_kernels import array as xp
from steelyard_kernels.array import Array
from steelyard_kernels.function import kernel


@kernel
def adam_m(m: Array, gradient: Array, *, beta1: float = 0.9) -> dict[str, Array]:
    """Update the first moment m in place."""
    return {"m": beta1 * m + (1 - beta1) * gradient}


@kernel
def adam_v(
    v: Array, gradient: Array, *, beta1: float = 0.9, beta2: float = 0.999
) -> dict[str, Array]:
    """Update the second moment v in place."""
    return {"v": beta1 * v + (1 - beta2) * xp.square(gradient)}


@kernel
def adam_update(
    gradient: Array,  # noqa: ARG001 - overwritten, never read
    m: Array,
    v: Array,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    rate: float = 1e-3,
) -> dict[str, Array]:
    """Overwrite the gradient by the step."""
    step = m / (1 - beta1) / (xp.sqrt(v / (1 - beta2)) + epsilon) * rate
    return {"gradient": step}


@kernel
def adam(
    gradient: Array,
    m: Array,
    v: Array,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    rate: float = 1e-3,
) -> dict[str, Array]:
    """Update both moments and overwrite the gradient by the step, in one pass."""
    m = beta1 * m + (1 - beta1) * gradient
    v = beta1 * v + (1 - beta2) * xp.square(gradient)
    step = m / (1 - beta1) / (xp.sqrt(v / (1 - beta2)) + epsilon) * rate
    return {"gradient": step, "m": m, "v": v}
