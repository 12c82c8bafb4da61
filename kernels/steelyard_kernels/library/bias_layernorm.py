"""Two bias additions with a cast between them, then LayerNorm (Fuser#383's kernel)."""

from steelyard_kernels import array as xp
from steelyard_kernels.array import Array
from steelyard_kernels.function import kernel


@kernel
def bias_layernorm(
    x: Array,
    bias1: Array,
    bias2: Array,
    weight: Array,
    bias: Array,
    *,
    epsilon: float = 1e-5,
) -> Array:
    """Return LayerNorm(x + bias1 + bias2) * weight + bias over the last axis.

    Arithmetic is float32; the first sum is rounded to x's dtype, as in the thread.
    """
    first = (x.astype("float32") + bias1.astype("float32")).astype(x.dtype)
    t = first.astype("float32") + bias2.astype("float32")
    scale = xp.rsqrt(xp.var(t, axis=-1, keepdims=True) + epsilon)
    y = (t - xp.mean(t, axis=-1, keepdims=True)) * scale
    return (y * weight.astype("float32") + bias.astype("float32")).astype(x.dtype)
