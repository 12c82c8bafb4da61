"""Other people's kernels on a GPU beside ours, as far as they are installed.

cuBLAS through PyTorch and CuPy; Adam and LayerNorm by PyTorch eager (several kernels a
launch: the rows say how many), by ``torch.compile``, in hand-written Triton and, Adam,
in CuPy. The version of a library stands in its rows. ``--relative-to impl=ours``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from steelyard import Builder, axis, benchmark
from steelyard.declare.handles import Call
from steelyard_kernels import library

from . import adam, bias_layernorm
from .common import Made, available, inductor, scaled, torch_matmul
from .gpu import (
    HIDDEN,
    OTHER_HIDDEN,
    copied_rows,
    described_adam,
    described_layernorm,
    three_streams,
)

BLAS: Final = available("torch", "cupy")
EPSILON: Final = bias_layernorm.EPSILON

if BLAS:

    @benchmark(shape=axis((64, 768, 768), others=[(4096, 4096, 4096)]), impl=BLAS)
    def gpu_peers_matmul(b: Builder, shape: tuple[int, int, int], impl: str) -> Call:
        """Multiply m x k by k x n in float16: cuBLAS, whoever calls it (iree#17012)."""
        b.on("cuda")
        m, n, k = shape
        x, w = (
            b.input((m, k), "float16", name="x"),
            b.input((k, n), "float16", name="w"),
        )
        y = b.output((m, n), "float16")
        b.check(np.matmul, x, w)
        b.count(operations=2 * m * n * k)
        b.mode("kernel/cold", "kernel/warm", "latency/warm")
        return b.launch(
            {"torch": torch_matmul, "cupy": _cupy_matmul}[impl], x, w, out=y, as_=impl
        )


@benchmark(
    n=[100, 1 << 24],
    impl=["ours", "scale", *available("torch_eager", "inductor", "triton", "cupy")],
)
def gpu_peers_adam(b: Builder, n: int, impl: str) -> Call:
    """Update Adam's moments in place and turn the gradient into the step."""
    if impl == "scale":
        return scaled(b, *three_streams(b, n))
    form = {"ours": "numpy", "cupy": "cupy"}.get(impl, "torch")
    return described_adam(b, n, ADAM[impl], form)


@benchmark(
    hidden=axis(*HIDDEN, others=OTHER_HIDDEN),
    dtype=axis("float16", default="float16", others=["bfloat16"]),
    impl=["ours", "copy", *available("torch_eager", "inductor", "triton")],
)
def gpu_peers_layernorm(b: Builder, hidden: int, dtype: str, impl: str) -> Call:
    """Add two biases and normalise 8192 rows of halves; `copy` moves the same bytes.

    Eager PyTorch returns a new tensor from its pool, which nobody checks: writing it to
    an array of ours would be one kernel more.
    """
    if impl == "copy":
        return copied_rows(b, hidden, dtype)
    eager, form = impl == "torch_eager", "numpy" if impl == "ours" else "torch"
    # Compiled for each case anew: PyTorch goes back to eager after eight shapes.
    normalise = _inductor_layernorm() if impl == "inductor" else LAYERNORM[impl]
    return described_layernorm(b, hidden, dtype, normalise, form, returns=eager)


def _cupy_matmul(x: Any, w: Any, out: Any) -> None:
    import cupy

    cupy.matmul(x, w, out=out)


def _eager_adam(gradient: Any, m: Any, v: Any) -> None:
    m.mul_(adam.BETA1).add_(gradient, alpha=1 - adam.BETA1)
    v.mul_(adam.BETA1).addcmul_(gradient, gradient, value=1 - adam.BETA2)
    root = (v / (1 - adam.BETA2)).sqrt_().add_(adam.EPSILON)
    gradient.copy_(m).div_(root).mul_(adam.RATE / (1 - adam.BETA1))


def _eager_layernorm(x: Any, bias1: Any, bias2: Any, weight: Any, bias: Any) -> Any:
    from torch.nn import functional

    return functional.layer_norm(x + bias1 + bias2, weight.shape, weight, bias, EPSILON)


def _triton(name: str) -> Made:
    def make() -> Callable[..., Any]:
        from . import triton_kernels

        made: Callable[..., Any] = getattr(triton_kernels, name)()
        return made

    return Made(make)


def _cupy_adam() -> Callable[..., Any]:
    import cupy

    made: Callable[..., Any] = cupy.ElementwiseKernel(
        "float32 old, float32 b1, float32 k1, float32 k2, float32 rate, float32 eps",
        "float32 g, float32 m, float32 v",
        "m = b1 * m + k1 * old; v = b1 * v + k2 * old * old;"
        "g = m / k1 / (sqrt(v / k2) + eps) * rate",
        "cupy_adam",
    )
    beta, rest = np.float32(adam.BETA1), np.float32(1 - adam.BETA1)
    keep, rate = np.float32(1 - adam.BETA2), np.float32(adam.RATE)
    epsilon = np.float32(adam.EPSILON)

    def update(gradient: Any, m: Any, v: Any) -> None:
        made(gradient, beta, rest, keep, rate, epsilon, gradient, m, v)

    return update


def _inductor_layernorm() -> Made:
    return Made(inductor(bias_layernorm._tensors).make)  # noqa: SLF001 # the suite's own


ADAM: Final[dict[str, Callable[..., Any]]] = {
    "ours": library.adam,
    "torch_eager": _eager_adam,
    "inductor": Made(inductor(adam._tensors).make),  # noqa: SLF001 # as above
    "triton": _triton("adam"),
    "cupy": Made(_cupy_adam),
}
LAYERNORM: Final[dict[str, Callable[..., Any]]] = {
    "ours": library.bias_layernorm,
    "torch_eager": _eager_layernorm,
    "triton": _triton("layernorm"),
}
