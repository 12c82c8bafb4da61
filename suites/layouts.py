"""Arrays read along another axis than they are written, sums of columns, results of rows.

Beside each stands a copy of as many bytes, read and written: what memory gives. Names
begin with ``gpu_`` where they need one; rows there stand beside Inductor and Triton by
``-p impl=ours,inductor,triton``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from steelyard import Builder, axis, benchmark
from steelyard.declare.handles import Call, Handle
from steelyard_kernels import array as xp
from steelyard_kernels import kernel, library

from . import softmax
from .common import Array, Made, Peer, WithStores, available, copied, inductor

SIDE: Final = 4096
ROWS: Final = 8192
TOLERANCE: Final = {"float32": 2.0**-17, "float16": 2.0**-8}

AXES: Final = {"ji": (1, 0), "bji": (0, 2, 1), "jbi": (2, 0, 1), "jib": (2, 1, 0)}
"""The axes of the results, by letters: of ij and of bij."""


@kernel
def ji(x: Any) -> Any:
    """Return x[i, j] at j, i."""
    return x.T


@kernel
def bji(x: Any) -> Any:
    """Return x[b, i, j] at b, j, i."""
    return xp.permute_dims(x, AXES["bji"])


@kernel
def jbi(x: Any) -> Any:
    """Return x[b, i, j] at j, b, i."""
    return xp.permute_dims(x, AXES["jbi"])


@kernel
def jib(x: Any) -> Any:
    """Return x[b, i, j] at j, i, b."""
    return xp.permute_dims(x, AXES["jib"])


@kernel
def sum_columns(x: Any) -> Any:
    """Return the sums of columns."""
    return xp.sum(x, axis=0)


@kernel
def logsumexp(x: Any) -> Any:
    """Return the logarithm of the sum of exponentials of each row, in float32."""
    wide = x.astype("float32")
    top = xp.max(wide, axis=-1, keepdims=True)
    return xp.log(xp.sum(xp.exp(wide - top), axis=-1, keepdims=True)) + top


@kernel
def argmax(x: Any) -> Any:
    """Return where the largest value of each row is."""
    return xp.argmax(x, axis=-1, keepdims=True)


@kernel
def cross_entropy(x: Any, target: Any) -> Any:
    """Return the gradient of the cross-entropy of classes named by number, and the loss."""
    wide = x.astype("float32")
    top = xp.max(wide, axis=-1, keepdims=True)
    e = xp.exp(wide - top)
    total = xp.sum(e, axis=-1, keepdims=True)
    loss = xp.log(total) + top - xp.take_along_axis(wide, target, axis=-1)
    hit = xp.arange(x.shape[-1], dtype="int32") == target
    share = e * (1.0 / total)  # one division a row, as in the library's softmax
    return xp.where(hit, share - 1.0, share).astype(x.dtype), loss


@kernel
def rms_norm(x: Any, weight: Any) -> Any:
    """Divide rows by the root of their mean square."""
    wide = x.astype("float32")
    scale = xp.rsqrt(xp.mean(xp.square(wide), axis=-1, keepdims=True) + 1e-6)
    return (wide * scale * weight.astype("float32")).astype(x.dtype)


PERMUTED: Final = {"ji": ji, "bji": bji, "jbi": jbi, "jib": jib}


def _permuted(b: Builder, n: int, form: str, dtype: str, impl: str) -> Call:
    axes = AXES[form]
    shape = (n, n) if len(axes) == 2 else (16, n // 4, n // 4)
    if impl == "copy":
        return copied(b, shape, dtype)
    x = b.input(shape, dtype)
    y = b.output(tuple(shape[k] for k in axes), dtype)
    b.check(lambda x: x.transpose(axes), x, rtol=0.0, atol=0.0)
    if impl == "numpy":

        def turned(x: Array, out: Array) -> None:
            np.copyto(out, x.transpose(axes))

        return b.launch(Peer(lambda: turned), x, out=y)
    return b.launch(PERMUTED[form], x, out=y)


def _summed(b: Builder, n: int, dtype: str, impl: str, *, gpu: bool) -> Call:
    if impl == "copy":
        copy = library.copy if gpu else WithStores(library.copy, True)
        return copied(b, (n // 2, n), dtype, copy)
    x = b.input((n, n), dtype)
    y = b.output(n, dtype)
    bound = TOLERANCE[dtype]
    b.check(lambda x: x.sum(0), x, rtol=bound, atol=bound * n**0.5)
    if impl == "numpy":

        def sums(x: Array, out: Array) -> None:
            np.sum(x, axis=0, out=out)

        return b.launch(Peer(lambda: sums), x, out=y)
    return b.launch(sum_columns, x, out=y)


@benchmark(
    n=[SIDE], form=list(AXES), dtype=["float32", "float16"], impl=["ours", "copy"]
)
def gpu_permuted(b: Builder, n: int, form: str, dtype: str, impl: str) -> Call:
    """Write n x n, or 16 times a quarter of that each way, along other axes, on a GPU."""
    b.on("cuda")
    return _permuted(b, n, form, dtype, impl)


@benchmark(n=[SIDE], dtype=["float32", "float16"], impl=["ours", "copy"])
def gpu_column_sums(b: Builder, n: int, dtype: str, impl: str) -> Call:
    """Add up the columns of n x n on a GPU."""
    b.on("cuda")
    return _summed(b, n, dtype, impl, gpu=True)


@benchmark(
    n=[SIDE],
    form=list(AXES),
    dtype=["float32", "float16"],
    impl=["numpy", "ours", "copy"],
)
def permuted(b: Builder, n: int, form: str, dtype: str, impl: str) -> Call:
    """Write n x n, or 16 times a quarter of that each way, along other axes."""
    b.mode("kernel/cold")
    return _permuted(b, n, form, dtype, impl)


@benchmark(n=[SIDE], dtype=["float32", "float16"], impl=["numpy", "ours", "copy"])
def column_sums(b: Builder, n: int, dtype: str, impl: str) -> Call:
    """Add up the columns of n x n."""
    b.mode("kernel/cold")
    return _summed(b, n, dtype, impl, gpu=False)


RESULTS: Final[dict[str, Callable[[Array], Array]]] = {
    "softmax": softmax.reference,
    "logsumexp": lambda x: np.log(np.exp(x).sum(-1, keepdims=True)),
    "argmax": lambda x: x.argmax(-1, keepdims=True),
}
KERNELS: Final = {
    "softmax": library.softmax,
    "logsumexp": logsumexp,
    "argmax": argmax,
    "rms_norm": rms_norm,
    "cross_entropy": cross_entropy,
}


@benchmark(
    kind=list(KERNELS),
    cols=axis(1000, 4096, others=[32000, 50257]),
    impl=axis("ours", "copy", others=available("inductor", "inductor_tuned", "triton")),
)
def gpu_rows(b: Builder, kind: str, cols: int, impl: str) -> Call:
    """Normalise, reduce or differentiate the rows of 8192 x cols halves, on a GPU."""
    b.on("cuda")
    single = kind in {
        "logsumexp",
        "argmax",
    }  # a value a row: next to nothing is written
    shape = (ROWS, cols)
    if impl == "copy":
        return copied(b, (ROWS // 2, cols) if single else shape, "float16")
    x = b.input(shape, "float16")
    if kind == "cross_entropy":
        target = b.input((ROWS, 1), "int32", low=0, high=cols)
        gradient, loss = (
            b.output(shape, "float16", name="gradient"),
            b.output((ROWS, 1), "float32", name="loss"),
        )
        b.check(_entropy, x, target, rtol=2.0**-8, atol=2.0**-8)
        return _rows(b, kind, impl, x, target, out=(gradient, loss))
    if kind == "rms_norm":
        weight = b.input(cols, "float16")
        y = b.output(shape, "float16")
        b.check(_rms, x, weight, rtol=2.0**-8, atol=2.0**-8)
        return _rows(b, kind, impl, x, weight, out=y)
    dtype = {"logsumexp": "float32", "argmax": "int64"}.get(kind, "float16")
    y = b.output((ROWS, 1) if single else shape, dtype)
    b.check(RESULTS[kind], x, rtol=2.0**-8, atol=2.0**-8)
    return _rows(b, kind, impl, x, out=y)


def _rows(b: Builder, kind: str, impl: str, *given: Handle, out: Any) -> Call:
    """Launch one kind of rows: ours, or a peer's."""
    if impl == "ours":
        return b.launch(KERNELS[kind], *given, out=out)
    if impl == "triton":

        def rows() -> Callable[..., None]:
            from . import triton_kernels

            return triton_kernels.rows(kind)

        return b.launch(Made(rows), *given, out=out, as_="torch")
    mode = "max-autotune-no-cudagraphs" if impl == "inductor_tuned" else None
    made = Made(inductor(TENSORS[kind], mode).make)
    return b.launch(made, *given, out=out, as_="torch")


def _tensor_softmax(x: Any, out: Any) -> None:
    out.copy_(x.float().softmax(-1))


def _tensor_logsumexp(x: Any, out: Any) -> None:
    out.copy_(x.float().logsumexp(-1, keepdim=True))


def _tensor_argmax(x: Any, out: Any) -> None:
    out.copy_(x.argmax(-1, keepdim=True))


def _tensor_rms_norm(x: Any, weight: Any, out: Any) -> None:
    wide = x.float()
    scale = (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    out.copy_(wide * scale * weight.float())


def _tensor_cross_entropy(x: Any, target: Any, out: Any) -> None:
    import torch

    wide, (gradient, loss) = x.float(), out
    logs = wide - wide.logsumexp(-1, keepdim=True)
    loss.copy_(-logs.gather(-1, target.long()))
    classes = torch.arange(x.shape[-1], device=x.device)
    gradient.copy_(logs.exp() - (classes == target).float())


TENSORS: Final = {
    "softmax": _tensor_softmax,
    "logsumexp": _tensor_logsumexp,
    "argmax": _tensor_argmax,
    "rms_norm": _tensor_rms_norm,
    "cross_entropy": _tensor_cross_entropy,
}


def _rms(x: Array, weight: Array) -> Array:
    found: Array = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-6) * weight
    return found


def _entropy(x: Array, target: Array) -> tuple[Array, Array]:
    share = softmax.reference(x)
    at = target.astype(np.int64)
    loss = -np.log(np.take_along_axis(share, at, -1))
    np.put_along_axis(share, at, np.take_along_axis(share, at, -1) - 1, -1)
    return share, loss
