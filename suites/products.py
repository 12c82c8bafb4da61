"""Matrix products in float16: the seed's 64 x 768 x 768, BERT's, squares, and ragged ones.

iree#17012 reports 679 us for the first, most of it not the kernel's. NumPy multiplies on
the CPU; ours on a GPU, and cuBLAS through PyTorch by ``-p impl=ours,torch``.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from steelyard import Builder, axis, benchmark
from steelyard.declare.handles import Call, Handle
from steelyard_kernels import array as xp
from steelyard_kernels import kernel

from .common import available

Shape = tuple[int, int, int]

SEED: Final = (64, 768, 768)
BERT: Final = [
    (m, n, k)
    for m in (64, 128, 512, 4096)
    for n, k in ((768, 768), (2304, 768), (3072, 768), (768, 3072))
]
SQUARES: Final = [(n, n, n) for n in (512, 1024, 2048, 4096, 8192)]
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


@benchmark(shape=axis(SEED, others=SQUARES[:2]), impl=["numpy"])
def products(b: Builder, shape: Shape, impl: str) -> Call:
    """Multiply m x k by k x n on the CPU."""
    del impl
    x, w, y = _declared(b, shape, across=False)
    b.check(np.matmul, x, w)
    b.mode("kernel/warm")  # a tenth of a second, which no cache shortens
    return b.launch(_numpy, x, w, out=y)


@benchmark(
    shape=axis(SEED, others=[*BERT[1:], *SQUARES, *RAGGED]),
    form=axis("plain", others=["linear", "layer"]),
    impl=axis("ours", others=available("torch")),
)
def gpu_products(b: Builder, shape: Shape, form: str, impl: str) -> Call:
    """Multiply m x k by k x n, or by n x k transposed, or by k x n with bias and ReLU."""
    b.on("cuda")
    x, w, y = _declared(b, shape, across=form == "linear")
    given = [x, w]
    if form == "layer":
        given.append(b.input(shape[1], "float16", name="bias"))
    b.check(REFERENCES[form], *given)
    if impl == "torch":
        return b.launch(TORCH[form], *given, out=y, as_="torch")
    return b.launch(OURS[form], *given, out=y)


def _declared(
    b: Builder, shape: Shape, *, across: bool
) -> tuple[Handle, Handle, Handle]:
    """Declare both factors and the product, normal numbers in float16."""
    m, n, k = shape
    x = b.input((m, k), "float16", name="x")
    w = b.input((n, k) if across else (k, n), "float16", name="w")
    y = b.output((m, n), "float16")
    b.count(operations=2 * m * n * k)
    return x, w, y


def _numpy(x: Any, w: Any, out: Any) -> None:
    np.matmul(x, w, out=out)


def _torch(x: Any, w: Any, out: Any) -> None:
    import torch

    torch.matmul(x, w, out=out)


def _torch_linear(x: Any, w: Any, out: Any) -> None:
    import torch

    torch.matmul(x, w.t(), out=out)


def _torch_layer(x: Any, w: Any, bias: Any, out: Any) -> None:
    import torch

    torch.addmm(bias, x, w, out=out).relu_()


OURS: Final = {"plain": product, "linear": linear, "layer": layer}
TORCH: Final = {"plain": _torch, "linear": _torch_linear, "layer": _torch_layer}
REFERENCES: Final = {
    "plain": np.matmul,
    "linear": lambda x, w: x @ w.T,
    "layer": lambda x, w, bias: np.maximum(x @ w + bias, 0),
}
