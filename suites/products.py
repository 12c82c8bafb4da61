"""Matrix products: the seed's 64 x 768 x 768, BERT's, squares, and ragged ones.

iree#17012 reports 679 us for the first in float16, most of it not the kernel's. On the CPU
ours beside NumPy's OpenBLAS and PyTorch's oneDNN; on a GPU beside cuBLAS, by
``-p impl=ours,torch``.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from steelyard import Builder, axis, benchmark
from steelyard.declare.handles import Call, Handle
from steelyard_kernels import array as xp
from steelyard_kernels import kernel

from .common import available, torch_matmul

Shape = tuple[int, int, int]

SEED: Final = (64, 768, 768)
BERT: Final = [
    (m, n, k)
    for m in (64, 128, 512, 4096)
    for n, k in ((768, 768), (2304, 768), (3072, 768), (768, 3072))
]
SQUARES: Final = [(n, n, n) for n in (512, 1024, 2048, 4096, 8192)]
SKINNY: Final = [(m, n, k) for m in (1, 4, 16) for n, k in ((768, 768), (3072, 768))]
RAGGED: Final = [(100, 776, 776), (97, 769, 776), (1031, 1033, 1048)]


@kernel
def product(x: Any, w: Any) -> Any:
    """Multiply x[m, k] by w[k, n]."""
    return x @ w


@kernel
def linear(x: Any, w: Any) -> Any:
    """Multiply x[m, k] by the transpose of w[n, k]."""
    return x @ w.T


@kernel
def layer(x: Any, w: Any, b: Any) -> Any:
    """Multiply, add a bias, and let what is above zero through."""
    return xp.maximum(x @ w + b, 0)


@benchmark(
    shape=axis(SEED, others=[*BERT[1:], *SQUARES[:3], *RAGGED, *SKINNY]),
    dtype=axis("float32", others=["float16", "bfloat16", "float64"]),
    form=axis("plain", others=["linear", "layer"]),
    impl=axis("numpy", *available("torch"), "ours", others=["packed"]),
)
def products(b: Builder, shape: Shape, dtype: str, form: str, impl: str) -> Call:
    """Multiply m x k by k x n on the CPU, or by n x k transposed, or with bias and ReLU.

    "packed" is ours where weights are constant.
    """
    given, y = _declared(b, shape, form, dtype, "fixed" if impl == "packed" else None)
    if dtype in {"float32", "float64"}:
        # Of sums of k products: Higham and Mary, "A new approach to probabilistic
        # rounding error analysis", 2019, with lambda = 8; the mean of |x * w| is 2 / pi.
        k, unit = shape[2], float(np.finfo(dtype).eps) / 2
        b.check(REFERENCES[form], *given, atol=8 * k**0.5 * unit * k * 2 / np.pi)
    else:
        b.check(REFERENCES[form], *given)
    b.mode("kernel/warm")  # little of a product is memory
    if impl == "numpy":
        return b.launch(NUMPY[form], *given, out=y)
    if impl == "torch":
        return b.launch(TORCH[form], *given, out=y, as_="torch")
    constant = {"constant": ("w",)} if impl == "packed" else {}
    return b.launch(OURS[form], *given, out=y, **constant)


@benchmark(
    shape=axis(SEED, others=[*BERT[1:], *SQUARES, *RAGGED]),
    form=axis("plain", others=["linear", "layer"]),
    impl=axis("ours", others=available("torch")),
)
def gpu_products(b: Builder, shape: Shape, form: str, impl: str) -> Call:
    """Multiply m x k by k x n, or by n x k transposed, or by k x n with bias and ReLU."""
    b.on("cuda")
    given, y = _declared(b, shape, form, "float16")
    b.check(REFERENCES[form], *given)
    if impl == "torch":
        return b.launch(TORCH[form], *given, out=y, as_="torch")
    return b.launch(OURS[form], *given, out=y)


def _declared(
    b: Builder, shape: Shape, form: str, dtype: str, weights: str | None = None
) -> tuple[list[Handle], Handle]:
    """Declare what is multiplied, normal numbers, and the product."""
    m, n, k = shape
    given = [
        b.input((m, k), dtype, name="x"),
        b.input((n, k) if form == "linear" else (k, n), dtype, name="w", dist=weights),
    ]
    if form == "layer":
        given.append(b.input(n, dtype, name="bias"))
    b.count(operations=2 * m * n * k)
    y = b.output((m, n), dtype)
    return given, y


def _numpy_linear(x: Any, w: Any, out: Any) -> None:
    np.matmul(x, w.T, out=out)


def _numpy_layer(x: Any, w: Any, bias: Any, out: Any) -> None:
    np.matmul(x, w, out=out)
    out += bias
    np.maximum(out, 0, out=out)


def _torch_linear(x: Any, w: Any, out: Any) -> None:
    torch_matmul(x, w.t(), out)


def _torch_layer(x: Any, w: Any, bias: Any, out: Any) -> None:
    import torch

    torch.addmm(bias, x, w, out=out).relu_()


OURS: Final = {"plain": product, "linear": linear, "layer": layer}
NUMPY: Final = {"plain": np.matmul, "linear": _numpy_linear, "layer": _numpy_layer}
TORCH: Final = {"plain": torch_matmul, "linear": _torch_linear, "layer": _torch_layer}
REFERENCES: Final = {
    "plain": np.matmul,
    "linear": lambda x, w: x @ w.T,
    "layer": lambda x, w, bias: np.maximum(x @ w + bias, 0),
}
