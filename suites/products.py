"""Matrix products: the seed's 64 x 768 x 768, BERT's, squares, and ragged ones.

iree#17012 reports 679 us for the first in float16, most of it not the kernel's. On the CPU
ours beside NumPy's OpenBLAS and PyTorch's oneDNN; on a GPU beside cuBLAS, with what follows
as kernels of its own, and beside Inductor, by ``-p impl=ours,torch,inductor_tuned``.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from steelyard import Builder, axis, benchmark
from steelyard.declare.handles import Call, Handle
from steelyard_kernels import array as xp
from steelyard_kernels import kernel

from .common import Made, available, inductor, torch_matmul

Shape = tuple[int, int, int]

SEED: Final = (64, 768, 768)
BERT: Final = [
    (m, n, k)
    for m in (64, 128, 256, 512, 1024, 2048, 4096, 8192)
    for n, k in ((768, 768), (2304, 768), (3072, 768), (768, 3072))
]
"""Of one sequence of 64 words, and of 1, 8 and 16 of 128, 256 and 512."""
SQUARES: Final = [(n, n, n) for n in (512, 1024, 2048, 4096, 8192)]
SKINNY: Final = [(m, n, k) for m in (1, 4, 16) for n, k in ((768, 768), (3072, 768))]
RAGGED: Final = [(100, 770, 776), (100, 776, 776), (97, 769, 776), (1031, 1033, 1048)]


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


@kernel
def gelu(x: Any, w: Any, b: Any) -> Any:
    """Multiply, add a bias, and bend by GELU, in float32 or wider."""
    y = x @ w + b
    wide = y.astype("float64" if y.dtype.name == "float64" else "float32")
    return (0.5 * wide * (1 + xp.erf(wide * math.sqrt(0.5)))).astype(y.dtype)


OTHERS: Final = [*BERT[1:], *SQUARES, *RAGGED, *SKINNY]
FORMS: Final = axis("plain", others=["linear", "layer", "gelu"])


@benchmark(
    shape=axis(SEED, others=OTHERS),
    dtype=axis("float32", others=["float16", "bfloat16", "float64"]),
    form=FORMS,
    impl=axis("numpy", *available("torch"), "ours", others=["packed"]),
)
def products(b: Builder, shape: Shape, dtype: str, form: str, impl: str) -> Call:
    """Multiply m x k by k x n on the CPU, or by n x k transposed, or with what follows.

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
    shape=axis(SEED, others=OTHERS),
    dtype=axis("float16", default="float16", others=["bfloat16"]),
    form=FORMS,
    impl=axis("ours", others=available("torch", "inductor", "inductor_tuned")),
)
def gpu_products(b: Builder, shape: Shape, dtype: str, form: str, impl: str) -> Call:
    """Multiply m x k by k x n, or by n x k transposed, or with bias and ReLU or GELU."""
    b.on("cuda")
    given, y = _declared(b, shape, form, dtype)
    b.check(REFERENCES[form], *given)
    if impl == "torch":
        return b.launch(TORCH[form], *given, out=y, as_="torch")
    if impl != "ours":
        mode = "max-autotune-no-cudagraphs" if impl == "inductor_tuned" else None
        made = Made(inductor(COMPILED[form], mode).make)
        return b.launch(made, *given, out=y, as_="torch")
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
    if form in {"layer", "gelu"}:
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


def _numpy_gelu(x: Any, w: Any, bias: Any, out: Any) -> None:
    """Do so by an erf of 1.5e-7: Abramowitz and Stegun, 7.1.26; NumPy has none."""
    np.matmul(x, w, out=out)
    out += bias
    z = np.abs(out) * np.float32(math.sqrt(0.5))
    t = 1 / (1 + np.float32(0.3275911) * z)
    series = np.zeros_like(t)
    for each in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series = (series + np.float32(each)) * t
    tail = out / 2 * series * np.exp(-z * z)  # out * (1 - erf(z)) / 2
    np.copyto(out, np.where(out > 0, out - tail, tail), casting="same_kind")


def _torch_linear(x: Any, w: Any, out: Any) -> None:
    torch_matmul(x, w.t(), out)


def _torch_layer(x: Any, w: Any, bias: Any, out: Any) -> None:
    import torch

    torch.addmm(bias, x, w, out=out).relu_()


def _torch_gelu(x: Any, w: Any, bias: Any, out: Any) -> None:
    import torch

    torch.addmm(bias, x, w, out=out)
    torch.ops.aten.gelu.out(out, out=out)


def _compiled_plain(x: Any, w: Any, out: Any) -> None:
    out.copy_(x @ w)


def _compiled_linear(x: Any, w: Any, out: Any) -> None:
    out.copy_(x @ w.t())


def _compiled_layer(x: Any, w: Any, bias: Any, out: Any) -> None:
    out.copy_((x @ w + bias).relu())


def _compiled_gelu(x: Any, w: Any, bias: Any, out: Any) -> None:
    from torch.nn import functional

    out.copy_(functional.gelu(x @ w + bias))


def _gelu(x: Any, w: Any, bias: Any) -> Any:
    y = x @ w + bias
    return y / 2 * (1 + np.vectorize(math.erf, otypes=[float])(y * math.sqrt(0.5)))


OURS: Final = {"plain": product, "linear": linear, "layer": layer, "gelu": gelu}
NUMPY: Final[dict[str, Any]] = {
    "plain": np.matmul,
    "linear": _numpy_linear,
    "layer": _numpy_layer,
    "gelu": _numpy_gelu,
}
TORCH: Final = {
    "plain": torch_matmul,
    "linear": _torch_linear,
    "layer": _torch_layer,
    "gelu": _torch_gelu,
}
COMPILED: Final = {
    "plain": _compiled_plain,
    "linear": _compiled_linear,
    "layer": _compiled_layer,
    "gelu": _compiled_gelu,
}
REFERENCES: Final = {
    "plain": np.matmul,
    "linear": lambda x, w: x @ w.T,
    "layer": lambda x, w, bias: np.maximum(x @ w + bias, 0),
    "gelu": _gelu,
}
