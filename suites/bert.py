"""A layer of BERT-base: 768 columns, 12 heads, 3072 between its two last products.

Post-norm, with exact gelu and a mask of padding; one program, which is several launches.
PyTorch's layer is the peer by ``-p impl=ours,eager,compiled``; NumPy computes on the CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from math import erf, sqrt
from typing import Any, Final

import numpy as np

from steelyard import Builder, axis, benchmark
from steelyard.declare.handles import Call, Handle
from steelyard_kernels import array as xp
from steelyard_kernels import kernel

from .common import Array, Peer, available

HIDDEN: Final = 768
HEADS: Final = 12
INNER: Final = 3072
DEPTH: Final = HIDDEN // HEADS
EPSILON: Final = 1e-12  # of BERT's layer norms
ROOT: Final = sqrt(0.5)
# Of float32: the sums of four products, one after another, each wrong by its epsilon
# times the root of its terms. In float16 sums are of float32, and the default holds.
ERRORS: Final = 2.0**-23 * (3 * sqrt(HIDDEN) + sqrt(INNER))
SHAPES: Final = [(1, 128), (8, 128), (1, 512), (32, 128)]
"""Batch and tokens."""


@kernel
def layer(  # noqa: PLR0917 - a layer has as many weights
    x: Any, mask: Any, qkv: Any, qkv_bias: Any, mix: Any, mix_bias: Any,
    scale1: Any, shift1: Any, up: Any, up_bias: Any, down: Any, down_bias: Any,
    scale2: Any, shift2: Any,
) -> Any:  # fmt: skip
    """Return a layer of x; the mask, float32, is added to every query's scores.

    x is (batch, tokens, 768), the mask (batch, tokens).
    """
    batch, tokens, _ = x.shape
    split = xp.reshape(x @ qkv + qkv_bias, (batch, tokens, 3, HEADS, DEPTH))
    q, k, v = (xp.permute_dims(split[:, :, i], (0, 2, 1, 3)) for i in range(3))
    scores = xp.matmul(q, k.mT).astype("float32") * DEPTH**-0.5
    scores = scores + mask[:, None, None, :]
    weights = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
    weights = weights / xp.sum(weights, axis=-1, keepdims=True)
    heads = xp.matmul(weights.astype(x.dtype), v)
    merged = xp.reshape(xp.permute_dims(heads, (0, 2, 1, 3)), x.shape)
    attended = _norm(x + (merged @ mix + mix_bias), scale1, shift1)
    wide = (attended @ up + up_bias).astype("float32")
    wide = wide * 0.5 * (1.0 + xp.erf(wide * ROOT))
    inner = wide.astype(x.dtype) @ down + down_bias
    return _norm(attended + inner, scale2, shift2)


def _norm(x: Any, scale: Any, shift: Any) -> Any:
    wide = x.astype("float32")
    centred = wide - xp.mean(wide, axis=-1, keepdims=True)
    variance = xp.mean(centred * centred, axis=-1, keepdims=True)
    return (centred * xp.rsqrt(variance + EPSILON) * scale + shift).astype(x.dtype)


@benchmark(
    shape=axis(SHAPES[0], others=SHAPES[1:]),
    impl=axis("ours", others=["numpy", *available("torch_eager", "inductor")]),
)
def bert_layer(b: Builder, shape: tuple[int, int], impl: str) -> Call:
    """Compute a layer in float32 on the CPU."""
    arguments, y = _declared(b, shape, "float32")
    if impl == "numpy":
        b.mode("kernel/warm")  # tens of milliseconds, which no cache shortens
        return b.launch(_numpy, *arguments, out=y)
    if impl != "ours":
        peer = functools.partial(_torch, compiled=impl == "inductor")
        return b.launch(Peer(peer), *arguments, as_="torch")
    return b.launch(layer, *arguments, out=y)


@benchmark(
    shape=axis(SHAPES[0], others=SHAPES[1:]),
    impl=axis("ours", others=available("torch_eager", "inductor")),
)
def gpu_bert_layer(b: Builder, shape: tuple[int, int], impl: str) -> Call:
    """Compute a layer in float16 on a GPU."""
    b.on("cuda")
    arguments, y = _declared(b, shape, "float16")
    if impl != "ours":  # returns a new tensor, which nobody checks
        peer = functools.partial(_torch, compiled=impl == "inductor")
        return b.launch(Peer(peer), *arguments, as_="torch")
    return b.launch(layer, *arguments, out=y)


def _declared(
    b: Builder, shape: tuple[int, int], dtype: str
) -> tuple[list[Handle], Handle]:
    """Declare a layer's arrays: weights that keep values near 1."""
    x = b.input((*shape, HIDDEN), dtype)
    mask = b.input(shape, "float32", dist="uniform", low=-4.0, high=0.0)
    arguments = [x, mask]
    for name, rows, columns in (
        ("qkv", HIDDEN, 3 * HIDDEN),
        ("mix", HIDDEN, HIDDEN),
        ("norm1", 0, HIDDEN),
        ("up", HIDDEN, INNER),
        ("down", INNER, HIDDEN),
        ("norm2", 0, HIDDEN),
    ):
        std = rows**-0.5 if rows else 1.0
        first = (rows, columns) if rows else (columns,)
        arguments += [
            b.input(first, dtype, dist="normal", deviation=std, name=name),
            b.input((columns,), dtype, name=f"{name}_bias"),
        ]
    y = b.output((*shape, HIDDEN), dtype)
    rows = shape[0] * shape[1]
    products = HIDDEN * (4 * HIDDEN + 2 * INNER) + 2 * shape[1] * HIDDEN
    b.count(operations=2 * rows * products)
    within = ERRORS if dtype == "float32" else None
    b.check(reference, *arguments, rtol=within, atol=within)
    return arguments, y


def reference(x: Array, mask: Array, *weights: Array) -> Array:
    """Return a layer in the dtype of x."""
    qkv, qkv_bias, mix, mix_bias, scale1, shift1, *rest = weights
    up, up_bias, down, down_bias, scale2, shift2 = rest
    split = (x @ qkv + qkv_bias).reshape(*x.shape[:2], 3, HEADS, DEPTH)
    q, k, v = split.transpose(2, 0, 3, 1, 4)
    scores = q @ k.swapaxes(-1, -2) * DEPTH**-0.5 + mask[:, None, None, :]
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    heads = powers / powers.sum(-1, keepdims=True) @ v
    merged = heads.transpose(0, 2, 1, 3).reshape(x.shape)
    attended = _normal(x + merged @ mix + mix_bias, scale1, shift1)
    wide = attended @ up + up_bias
    wide = wide * 0.5 * (1.0 + _erf(wide * ROOT))
    return _normal(attended + wide @ down + down_bias, scale2, shift2)


_erf: Final = np.vectorize(erf, otypes=["float64"])


def _normal(x: Array, scale: Array, shift: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred * centred).mean(-1, keepdims=True)
    normal: Array = centred / np.sqrt(variance + EPSILON) * scale + shift
    return normal


def _numpy(*arrays: Array, out: Array) -> None:
    out[...] = reference(*arrays)


@functools.cache
def _torch(*, compiled: bool) -> Callable[..., Any]:
    """Return PyTorch's layer of the same arguments, eager or by Inductor."""
    import torch
    from torch.nn import functional

    def call(x: Any, mask: Any, *weights: Any) -> Any:
        qkv, qkv_bias, mix, mix_bias, scale1, shift1, *rest = weights
        up, up_bias, down, down_bias, scale2, shift2 = rest
        batch, tokens, _ = x.shape
        split = torch.matmul(x, qkv) + qkv_bias
        split = split.view(batch, tokens, 3, HEADS, DEPTH).permute(2, 0, 3, 1, 4)
        heads = functional.scaled_dot_product_attention(
            split[0], split[1], split[2], attn_mask=mask[:, None, None, :].to(x.dtype)
        )
        merged = heads.transpose(1, 2).reshape(x.shape)
        summed = x + (torch.matmul(merged, mix) + mix_bias)
        attended = functional.layer_norm(summed, (HIDDEN,), scale1, shift1, EPSILON)
        inner = functional.gelu(torch.matmul(attended, up) + up_bias)
        summed = attended + (torch.matmul(inner, down) + down_bias)
        return functional.layer_norm(summed, (HIDDEN,), scale2, shift2, EPSILON)

    return torch.compile(call) if compiled else call
