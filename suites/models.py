"""BERT-base's layers: one, and all 12, as one program of several launches.

`bert_steps` trains them: gradients of all weights with Adam's update behind each.

PyTorch is the peer, eager and compiled, where it is installed: on a GPU by
``-p impl=ours,torch,inductor,inductor_tuned``, the last by max-autotune. On a CPU JAX is
another.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from steelyard import Builder, axis, benchmark
from steelyard.declare.handles import Call, Handle
from steelyard_kernels import KernelFunction, dtypes, reference
from steelyard_kernels import array as xp
from steelyard_kernels.grad import value_and_grad

from . import jax_models
from .common import Made, Peer, available, inductor

Tokens = tuple[int, int]  # sequences, and words of each

HEADS: Final = 12
BASE: Final = 64 * HEADS  # columns of BERT-base
EPSILON: Final = 1e-12  # of its normalization
NAMES: Final = (
    "query", "query_bias", "key", "key_bias", "value", "value_bias", "out", "out_bias",
    "norm1", "norm1_bias", "wide", "wide_bias", "narrow", "narrow_bias", "norm2",
    "norm2_bias",
)  # fmt: skip
"""A layer's weights, in the order in which all functions here take them."""


def _linear(x: Any, w: Any, bias: Any) -> Any:
    """Return x @ w.T + bias, of halves rounded once."""
    wide = "float64" if x.dtype.name == "float64" else "float32"
    found = x.astype(wide) @ w.astype(wide).T + bias.astype(wide)
    return found.astype(x.dtype)


def _normal(x: Any, w: Any, bias: Any) -> Any:
    wide = x.astype("float32")
    centred = wide - xp.mean(wide, axis=-1, keepdims=True)
    scale = xp.rsqrt(xp.var(wide, axis=-1, keepdims=True) + EPSILON)
    found = centred * scale * w.astype("float32") + bias.astype("float32")
    return found.astype(x.dtype)


def _gelu(x: Any) -> Any:
    wide = x.astype("float32")
    return (0.5 * wide * (1 + xp.erf(wide * math.sqrt(0.5)))).astype(x.dtype)


def _attended(q: Any, k: Any, v: Any) -> Any:
    """Return every head's softmax(q @ k.T / sqrt(columns)) @ v."""
    batch, n, width = q.shape
    shape = batch, n, HEADS, width // HEADS
    q, k, v = (xp.permute_dims(xp.reshape(x, shape), (0, 2, 1, 3)) for x in (q, k, v))
    scores = xp.matmul(q, k.mT).astype("float32") * (1 / math.sqrt(width // HEADS))
    e = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
    weights = (e / xp.sum(e, axis=-1, keepdims=True)).astype(v.dtype)
    found = xp.permute_dims(xp.matmul(weights, v), (0, 2, 1, 3))
    return xp.reshape(found, (batch, n, width))


def _layer(x: Any, w: Sequence[Any]) -> Any:
    q, k, v = (_linear(x, w[i], w[i + 1]) for i in (0, 2, 4))
    x = _normal(x + _linear(_attended(q, k, v), w[6], w[7]), w[8], w[9])
    inner = _gelu(_linear(x, w[10], w[11]))
    return _normal(x + _linear(inner, w[12], w[13]), w[14], w[15])


@functools.cache
def bert(layers: int) -> KernelFunction:
    """Return the kernel of so many layers: of x[batch, words, columns] and weights."""

    def function(x: Any, *weights: Any) -> Any:
        for first in range(0, len(weights), len(NAMES)):
            x = _layer(x, weights[first : first + len(NAMES)])
        return x

    return _kernel(function, f"bert_{layers}", ["x", *_weights(layers)])


@functools.cache
def bert_step(layers: int) -> KernelFunction:
    """Return a step of training: of x, what it is to come to, weights and Adam's moments.

    All but the first two are updated in place; the result is the mean square error.
    """
    names = _weights(layers)
    moments = [f"{which}_{name}" for which in "mv" for name in names]

    def function(x: Any, wanted: Any, *state: Any) -> dict[str, Any]:
        count = len(names)
        w, m, v = (state[first : first + count] for first in range(0, 3 * count, count))

        def error(*weights: Any) -> Any:
            y = x
            for first in range(0, count, len(NAMES)):
                y = _layer(y, weights[first : first + len(NAMES)])
            return xp.mean((y - wanted) ** 2)

        loss, slopes = value_and_grad(error, argnums=tuple(range(count)))(*w)
        out = {"loss": loss}
        for name, g, *old in zip(names, slopes, w, m, v, strict=True):
            new = _adam(g, *old)
            out |= dict(zip((name, f"m_{name}", f"v_{name}"), new, strict=True))
        return out

    return _kernel(function, f"bert_step_{layers}", ["x", "wanted", *names, *moments])


def _adam(g: Any, w: Any, m: Any, v: Any) -> tuple[Any, Any, Any]:
    """Return a weight and its moments, which have its digits or more, after one step."""
    g, wide = g.astype(m.dtype), w.astype(m.dtype)
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    new = wide - 1e-3 * (m / 0.1) / (xp.sqrt(v / 0.001) + 1e-8)
    return new.astype(w.dtype), m, v


def _weights(layers: int) -> list[str]:
    return [f"{name}{i}" for i in range(layers) for name in NAMES]


def _kernel(function: Any, name: str, names: Sequence[str]) -> KernelFunction:
    """Return a kernel of a function of any number of arrays, by these names."""
    function.__name__ = name
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    every = [inspect.Parameter(each, kind) for each in names]
    vars(function)["__signature__"] = inspect.Signature(every)
    return KernelFunction(function)


@benchmark(
    tokens=axis((1, 128), others=[(8, 128), (1, 512)]),
    layers=axis(1, others=[12]),
    width=axis(BASE),
    impl=axis("ours", *available("torch", "inductor", "jax"), others=["packed"]),
)
def berts(b: Builder, tokens: Tokens, layers: int, width: int, impl: str) -> Call:
    """Pass words through layers on the CPU, in float32; "packed": of constant weights."""
    return _launched(b, (*tokens, width), layers, "float32", impl)


@benchmark(
    tokens=axis((1, 128)),
    layers=axis(1),
    width=axis(96, others=[BASE]),
    impl=["ours", *available("jax")],
)
def bert_steps(b: Builder, tokens: Tokens, layers: int, width: int, impl: str) -> Call:
    """Train layers on the CPU, in float32: forward, backward and Adam's update."""
    return _trained(b, (*tokens, width), layers, "float32", impl)


@benchmark(
    tokens=axis((8, 128), others=[(1, 128)]),
    layers=axis(1),
    dtype=axis("float16", others=["bfloat16"]),
)
def gpu_bert_steps(b: Builder, tokens: Tokens, layers: int, dtype: str) -> Call:
    """Train layers of halves, whose moments are float32."""
    b.on("cuda")
    return _trained(b, (*tokens, BASE), layers, dtype)


def _trained(
    b: Builder,
    shape: tuple[int, int, int],
    layers: int,
    dtype: str,
    impl: str = "ours",
) -> Call:
    x = b.input(shape, dtype, name="x")
    wanted = b.input(shape, dtype, name="wanted")
    sizes = dict(zip(_weights(layers), _shapes(shape[2]) * layers, strict=True))
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

    b.check(expected, *given, atol=_epsilon(dtype) * 8 * _depth(dtype, shape[2]))
    b.mode("kernel/warm")
    if impl == "jax":
        return b.launch(Peer(jax_models.step), *given, out=loss)
    return b.launch(made, *given, out=loss)


def _shapes(width: int) -> list[tuple[int, ...]]:
    """Return the shapes of a layer's weights, in the order of `NAMES`."""
    square, vector = (width, width), (width,)
    wide, narrow = (4 * width, width), (width, 4 * width)
    ends = [wide, (4 * width,), narrow, vector, vector, vector]
    return [*[square, vector] * 4, vector, vector, *ends]


def _spread(size: tuple[int, ...]) -> float:
    """Return the deviation of weights whose sums have a variance of about 1."""
    return 0.5 if len(size) == 1 else 1 / math.sqrt(size[1])


@benchmark(
    tokens=axis((8, 128), others=[(1, 128), (32, 128), (1, 512), (8, 512), (32, 512)]),
    layers=axis(1, others=[12]),
    dtype=axis("float16", others=["bfloat16"]),
    impl=axis("ours", others=available("torch", "inductor", "inductor_tuned")),
)
def gpu_bert(b: Builder, tokens: Tokens, layers: int, dtype: str, impl: str) -> Call:
    """Pass words through layers."""
    b.on("cuda")
    return _launched(b, (*tokens, BASE), layers, dtype, impl)


def _launched(
    b: Builder, shape: tuple[int, int, int], layers: int, dtype: str, impl: str
) -> Call:
    given = _declared(
        b, shape, layers, dtype, "fixed" if impl == "packed" else "normal"
    )
    y = b.output(shape, dtype)
    # Results have a mean square of 1. Each layer rounds anew, and of halves what goes
    # into its sums.
    within = 8 * _epsilon(dtype) * _depth(dtype, shape[2])
    b.check(_reference, *given, atol=within * layers)
    b.mode("kernel/warm")
    if impl in {"ours", "packed"}:
        constant = {"constant": tuple(_weights(layers))} if impl == "packed" else {}
        return b.launch(bert(layers), *given, out=y, **constant)
    if impl == "jax":
        return b.launch(Peer(jax_models.forward), *given, out=y)
    return b.launch(_peer(impl, b.device), *given, out=y, as_="torch")


def _epsilon(dtype: str) -> float:
    return 2.0 ** {"float32": -23, "float16": -10, "bfloat16": -7}[dtype]


def _depth(dtype: str, width: int) -> float:
    """Return by how much sums' errors add up: of float32 those of all products."""
    return math.sqrt(4 * width) if dtype == "float32" else 1.0


def _peer(impl: str, device: str) -> Callable[..., Any]:
    """Return PyTorch's layers: eager, or compiled, also with what it finds by measuring."""
    if impl == "torch":
        return _torch
    mode = "max-autotune-no-cudagraphs" if impl == "inductor_tuned" else None
    compiled = inductor(_torch, mode)
    return compiled if device == "cpu" else Made(compiled.make)


def _declared(
    b: Builder, shape: tuple[int, int, int], layers: int, dtype: str, dist: str
) -> list[Handle]:
    """Declare words and weights: normal numbers, which sums bring back to about 1."""
    batch, n, width = shape
    given = [b.input(shape, dtype, name="x")]
    sizes = _shapes(width) * layers
    given += [
        b.input(size, dtype, name=name, dist=dist, deviation=_spread(size))
        for name, size in zip(_weights(layers), sizes, strict=True)
    ]
    sums = 24 * width**2 * batch * n + 4 * n**2 * batch * width
    b.count(operations=layers * sums)
    return given


def _reference(x: Any, *weights: Any) -> Any:
    """Return the layers' result, by NumPy, in which nothing is shared with ours."""
    erf = np.vectorize(math.erf, otypes=[np.float64])

    def norm(y: Any, scale: Any, bias: Any) -> Any:
        y = y - y.mean(-1, keepdims=True)
        return y / np.sqrt((y**2).mean(-1, keepdims=True) + EPSILON) * scale + bias

    for first in range(0, len(weights), len(NAMES)):
        w = dict(zip(NAMES, weights[first : first + len(NAMES)], strict=True))
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
        x = norm(y, w["norm2"], w["norm2_bias"])
    return x


def _torch(x: Any, *weights: Any, out: Any) -> None:
    """Do the same in PyTorch's functions."""
    import torch
    from torch.nn import functional

    size = x.shape[-1:]
    with torch.no_grad():
        for first in range(0, len(weights), 16):
            w = weights[first : first + 16]
            q, k, v = (
                functional.linear(x, w[i], w[i + 1]).unflatten(-1, (12, -1))
                for i in (0, 2, 4)
            )
            q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
            a = functional.scaled_dot_product_attention(q, k, v)
            y = functional.linear(a.transpose(1, 2).flatten(2), w[6], w[7])
            x = functional.layer_norm(x + y, size, w[8], w[9], 1e-12)
            y = functional.gelu(functional.linear(x, w[10], w[11]))
            y = functional.linear(y, w[12], w[13])
            x = functional.layer_norm(x + y, size, w[14], w[15], 1e-12)
        out.copy_(x)
