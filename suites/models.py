"""BERT-base's layers: one, and all 12, as one program of several launches.

`berts` passes words forward, `bert_gradients` forward and backward, `bert_steps` trains:
gradients of all weights with Adam's update behind each; on a GPU by ``gpu_`` and their
names. `mlps` has the gradient of two layers of 1024 x 1024 and the cross-entropy behind.

PyTorch is the peer, eager and compiled, where it is installed: on a GPU by
``-p impl=ours,torch,inductor,inductor_tuned``, the last by max-autotune. JAX is another; on
a GPU it has streams of its own, so that ``-m latency/warm`` alone has its time. There
``-m per_launch/warm/graph`` holds graph against graph: a call is one CUDA graph.

hidet#426 reports no time of a call: 222 s, then 177 s, for the build and the runs of a
BERT whose candidates are compiled together, on 32 threads of an i9-13900K with an RTX 4090
(https://github.com/hidet-org/hidet/pull/426). `steelyard compile suites/models.py:gpu_bert
--candidates` builds all of ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from steelyard import Builder, axis, benchmark
from steelyard.declare.handles import Call, Handle
from steelyard_kernels import dtypes, reference
from steelyard_kernels.library import mlp
from steelyard_kernels.library.bert import (
    EPSILON,
    HEADS,
    NAMES,
    bert,
    bert_gradient,
    bert_step,
    shapes_of,
    weights_of,
)

from . import jax_models, torch_models
from .common import Peer, available

Tokens = tuple[int, int]  # sequences, and words of each

BASE: Final = 64 * HEADS  # columns of BERT-base
OTHERS: Final[list[Tokens]] = [(8, 128), (32, 128), (1, 512), (8, 512), (32, 512)]
TUNED: Final = available("torch", "inductor", "inductor_tuned", "jax")


@benchmark(
    tokens=axis((1, 128), others=OTHERS),
    layers=axis(1, others=[12]),
    width=axis(BASE),
    impl=axis("ours", *available("torch", "inductor", "jax"), others=["packed"]),
)
def berts(b: Builder, tokens: Tokens, layers: int, width: int, impl: str) -> Call:
    """Pass words through layers on the CPU, in float32; "packed": of constant weights."""
    return _launched(b, (*tokens, width), layers, "float32", impl)


@benchmark(
    tokens=axis((1, 128), others=OTHERS),
    layers=axis(1, others=[12]),
    width=axis(96, others=[BASE]),
    impl=["ours", *available("torch", "inductor", "jax")],
)
def bert_gradients(
    b: Builder, tokens: Tokens, layers: int, width: int, impl: str
) -> Call:
    """Pass words through layers and cotangents back, on the CPU, in float32."""
    return _pulled(b, (*tokens, width), layers, "float32", impl)


@benchmark(
    tokens=axis((1, 128), others=OTHERS),
    layers=axis(1, others=[12]),
    width=axis(96, others=[BASE]),
    impl=["ours", *available("jax")],
)
def bert_steps(b: Builder, tokens: Tokens, layers: int, width: int, impl: str) -> Call:
    """Train layers on the CPU, in float32: forward, backward and Adam's update."""
    return _trained(b, (*tokens, width), layers, "float32", impl)


@benchmark(
    tokens=axis((8, 128), others=[(1, 128), *OTHERS[1:]]),
    layers=axis(1, others=[12]),
    dtype=axis("float16", others=["bfloat16"]),
    impl=axis("ours", others=TUNED),
)
def gpu_bert(b: Builder, tokens: Tokens, layers: int, dtype: str, impl: str) -> Call:
    """Pass words through layers."""
    b.on("cuda")
    return _launched(b, (*tokens, BASE), layers, dtype, impl)


@benchmark(
    tokens=axis((8, 128), others=[(1, 128), *OTHERS[1:]]),
    layers=axis(1, others=[12]),
    dtype=axis("float16", others=["bfloat16"]),
    impl=axis("ours", others=TUNED),
)
def gpu_bert_gradients(
    b: Builder, tokens: Tokens, layers: int, dtype: str, impl: str
) -> Call:
    """Pass words through layers of halves and cotangents back."""
    b.on("cuda")
    return _pulled(b, (*tokens, BASE), layers, dtype, impl)


@benchmark(
    tokens=axis((8, 128), others=[(1, 128), *OTHERS[1:]]),
    layers=axis(1, others=[12]),
    dtype=axis("float16", others=["bfloat16"]),
)
def gpu_bert_steps(b: Builder, tokens: Tokens, layers: int, dtype: str) -> Call:
    """Train layers of halves, whose moments are float32."""
    b.on("cuda")
    return _trained(b, (*tokens, BASE), layers, dtype)


@benchmark(
    rows=axis(64, others=[1024]),
    width=axis(256, others=[1024]),
    impl=["ours", *available("torch", "jax")],
)
def mlps(b: Builder, rows: int, width: int, impl: str) -> Call:
    """Differentiate two layers of width x width, with ReLU, by a softmax's loss, on the CPU."""
    x = b.input((rows, width))
    target = b.input(rows, "int32", low=0, high=width)
    sizes = (width, width), (width,), (width, width), (width,)
    weights = [
        b.input(size, name=name, deviation=_spread(size))
        for name, size in zip(mlp.WEIGHTS, sizes, strict=True)
    ]
    loss = b.output(())
    slopes = [
        b.output(size, name=f"of_{name}")
        for name, size in zip(mlp.WEIGHTS, sizes, strict=True)
    ]
    b.count(operations=10 * rows * width**2)
    # Slopes are means over rows of what is below 1, of sums of `width` products.
    within = 8 * _epsilon("float32") * math.sqrt(width)
    b.check(_mlp, x, target, *weights, atol=within)
    b.mode("kernel/warm")
    given, out = (x, target, *weights), (loss, *slopes)
    if impl == "jax":
        return b.launch(Peer(jax_models.mlp), *given, out=out)
    if impl == "torch":
        return b.launch(torch_models.mlp, *given, out=out, as_="torch")
    return b.launch(mlp.gradient, *given, out=out)


def _launched(
    b: Builder, shape: tuple[int, int, int], layers: int, dtype: str, impl: str
) -> Call:
    dist = "fixed" if impl == "packed" else "normal"
    given = [b.input(shape, dtype, name="x"), *_weights(b, shape, layers, dtype, dist)]
    _count(b, shape, layers)
    _modes(b, impl)
    if impl == "jax" and b.device != "cpu":
        return b.launch(Peer(partial(jax_models.forward, waits=True)), *given)
    y = b.output(shape, dtype)
    b.check(_reference, *given, atol=_within(dtype, shape[2]) * layers)
    if impl in {"ours", "packed"}:
        constant = {"constant": tuple(weights_of(layers))} if impl == "packed" else {}
        return b.launch(bert(layers), *given, out=y, **constant)
    if impl == "jax":
        return b.launch(Peer(jax_models.forward), *given, out=y)
    return b.launch(torch_models.forward(impl, b.device), *given, out=y, as_="torch")


def _pulled(
    b: Builder, shape: tuple[int, int, int], layers: int, dtype: str, impl: str
) -> Call:
    """Describe a pass forward and one backward; peers return what nobody checks."""
    given = [b.input(shape, dtype, name="x"), b.input(shape, dtype, name="g")]
    given += _weights(b, shape, layers, dtype, "normal")
    _count(b, shape, layers, passes=3)
    _modes(b, impl)
    if impl == "jax":
        return b.launch(Peer(jax_models.gradient), *given)
    if impl != "ours":
        return b.launch(torch_models.gradient(impl), *given, as_="torch")
    made, out = bert_gradient(layers), [b.output(shape, dtype, name="y")]
    out += [
        b.output(size, dtype, name=f"of_{name}")
        for name, size in _sizes(shape[2], layers).items()
    ]

    def expected(*arrays: Any) -> list[Any]:
        specs = [(h.shape, dtypes.of(h.dtype)) for h in given]
        return list(reference.evaluate(made.program(*specs), arrays).values())

    # Cotangents of weights are sums over all words.
    words = math.sqrt(shape[0] * shape[1])
    b.check(expected, *given, atol=_within(dtype, shape[2]) * words * layers)
    return b.launch(made, *given, out=tuple(out))


def _trained(
    b: Builder,
    shape: tuple[int, int, int],
    layers: int,
    dtype: str,
    impl: str = "ours",
) -> Call:
    x = b.input(shape, dtype, name="x")
    wanted = b.input(shape, dtype, name="wanted")
    sizes = _sizes(shape[2], layers)
    w = [
        b.inout(size, dtype, name=name, dist="normal", deviation=_spread(size))
        for name, size in sizes.items()
    ]
    m = [
        b.inout(size, name=f"m_{name}", dist="normal", deviation=1e-3)
        for name, size in sizes.items()
    ]
    v = [
        b.inout(size, name=f"v_{name}", dist="uniform", low=1e-4, high=1e-3)
        for name, size in sizes.items()
    ]
    loss = b.output((), dtype, name="loss")
    made, given = bert_step(layers), (x, wanted, *w, *m, *v)

    def expected(*arrays: Any) -> list[Any]:
        specs = [(h.shape, dtypes.of(h.dtype)) for h in given]
        found = reference.evaluate(made.program(*specs), arrays)
        return [found[name] for name in ("loss", *(h.name for h in given[2:]))]

    b.check(expected, *given, atol=_within(dtype, shape[2]))
    _count(b, shape, layers, passes=3)
    b.mode("kernel/warm")
    if impl == "jax":
        return b.launch(Peer(jax_models.step), *given, out=loss)
    return b.launch(made, *given, out=loss)


def _modes(b: Builder, impl: str) -> None:
    """On a GPU a call is also one graph, but of JAX, whose streams are its own."""
    if b.device == "cpu":
        b.mode("kernel/warm")
    elif impl == "jax":
        b.mode("latency/warm")
    else:
        b.mode("kernel/warm", "per_launch/warm/graph")


def _sizes(width: int, layers: int) -> dict[str, tuple[int, ...]]:
    return dict(zip(weights_of(layers), shapes_of(width) * layers, strict=True))


def _spread(size: tuple[int, ...]) -> float:
    """Return the deviation of weights whose sums have a variance of about 1."""
    return 0.5 if len(size) == 1 else 1 / math.sqrt(size[1])


def _within(dtype: str, width: int) -> float:
    """Return by how much a layer's results may be off, which have a mean square of 1.

    A layer rounds anew, of float32 the sums of all products; of halves what goes into them.
    """
    depth = math.sqrt(4 * width) if dtype == "float32" else 1.0
    return 8 * _epsilon(dtype) * depth


def _epsilon(dtype: str) -> float:
    return 2.0 ** {"float32": -23, "float16": -10, "bfloat16": -7}[dtype]


def _weights(
    b: Builder, shape: Sequence[int], layers: int, dtype: str, dist: str
) -> list[Handle]:
    """Declare weights: normal numbers, which sums bring back to about 1."""
    return [
        b.input(size, dtype, name=name, dist=dist, deviation=_spread(size))
        for name, size in _sizes(shape[2], layers).items()
    ]


def _count(
    b: Builder, shape: tuple[int, int, int], layers: int, passes: int = 1
) -> None:
    batch, n, width = shape
    sums = 24 * width**2 * batch * n + 4 * n**2 * batch * width
    b.count(operations=passes * layers * sums)


def _mlp(x: Any, target: Any, *weights: Any) -> list[Any]:
    """Return the loss and its slopes, by NumPy, in which nothing is shared with ours."""
    w1, b1, w2, b2 = weights
    hidden = np.maximum(x @ w1 + b1, 0)
    logits = hidden @ w2 + b2
    share = np.exp(logits - logits.max(-1, keepdims=True))
    share /= share.sum(-1, keepdims=True)
    at = np.arange(len(x)), target.astype(np.int64)
    loss = -np.log(share[at]).mean()
    share[at] -= 1
    share /= len(x)
    back = (share @ w2.T) * (hidden > 0)
    return [loss, x.T @ back, back.sum(0), hidden.T @ share, share.sum(0)]


def _reference(x: Any, *weights: Any) -> Any:
    """Return the layers' result, by NumPy, in which nothing is shared with ours."""
    for first in range(0, len(weights), len(NAMES)):
        x = layer(x, *weights[first : first + len(NAMES)])
    return x


def layer(x: Any, *weights: Any) -> Any:
    """Return a layer's result, by NumPy."""
    erf: Callable[[Any], Any] = np.vectorize(math.erf, otypes=[np.float64])

    def norm(y: Any, scale: Any, bias: Any) -> Any:
        y = y - y.mean(-1, keepdims=True)
        return y / np.sqrt((y**2).mean(-1, keepdims=True) + EPSILON) * scale + bias

    w = dict(zip(NAMES, weights, strict=True))
    q, k, v = (
        (x @ w[name].T + w[f"{name}_bias"]).reshape(*x.shape[:2], HEADS, -1)
        for name in ("query", "key", "value")
    )
    s = np.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
    e = np.exp(s - s.max(-1, keepdims=True))
    p = e / e.sum(-1, keepdims=True)
    a = np.einsum("bhqk,bkhd->bqhd", p, v).reshape(x.shape)
    x = norm(x + a @ w["out"].T + w["out_bias"], w["norm1"], w["norm1_bias"])
    inner = x @ w["wide"].T + w["wide_bias"]
    inner = inner / 2 * (1 + erf(inner / math.sqrt(2)))
    y = x + inner @ w["narrow"].T + w["narrow_bias"]
    return norm(y, w["norm2"], w["norm2_bias"])
