"""Matrix products in float16: the seed's 64 x 768 x 768, BERT's, squares, and ragged ones.

iree#17012 reports 679 us for the first, most of it not the kernel's. NumPy multiplies on
the CPU; ours and cuBLAS, through PyTorch, on a GPU. ``--relative-to impl=torch``.
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
LAYER: Final = (128, 3072, 768)
WIDER: Final = [(512, 3072, 768), (4096, 3072, 768)]
GPU: Final = ["ours", *available("torch")]


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


@benchmark(shape=axis(SEED, others=[*BERT[1:], *SQUARES]), impl=["numpy", *GPU])
def products(b: Builder, shape: Shape, impl: str) -> Call:
    """Multiply m x k by k x n."""
    x, w, y = _declared(b, shape, across=False, gpu=impl != "numpy")
    b.check(np.matmul, x, w)
    if impl == "numpy":
        b.mode("kernel/warm")  # milliseconds, which no cache shortens
        return b.launch(_numpy, x, w, out=y)
    if impl == "torch":
        return b.launch(_torch, x, w, out=y, as_="torch")
    return b.launch(product, x, w, out=y)


@benchmark(shape=axis(SEED, others=[*BERT[1:], *RAGGED]), impl=GPU)
def products_linear(b: Builder, shape: Shape, impl: str) -> Call:
    """Multiply m x k by n x k, transposed: weights as PyTorch keeps them."""
    x, w, y = _declared(b, shape, across=True, gpu=True)
    b.check(lambda x, w: x @ w.T, x, w)
    if impl == "torch":
        return b.launch(_torch_linear, x, w, out=y, as_="torch")
    return b.launch(linear, x, w, out=y)


@benchmark(shape=axis(LAYER, others=WIDER), impl=["ours", "product"])
def products_layer(b: Builder, shape: Shape, impl: str) -> Call:
    """Fuse a bias and ReLU with the product, beside the product alone."""
    x, w, y = _declared(b, shape, across=False, gpu=True)
    if impl == "product":
        b.check(np.matmul, x, w)
        return b.launch(product, x, w, out=y)
    bias = b.input(shape[1], "float16", name="bias")
    b.check(lambda x, w, bias: np.maximum(x @ w + bias, 0), x, w, bias)
    return b.launch(layer, x, w, bias, out=y)


def _declared(
    b: Builder, shape: Shape, *, across: bool, gpu: bool
) -> tuple[Handle, Handle, Handle]:
    """Declare both factors and the product, normal numbers in float16."""
    if gpu:
        b.on("cuda")
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
